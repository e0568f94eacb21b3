//! Which graphs run a step on a GPU: each is of one number of rows, and weights are read once for all of them.

use std::ops::Range;

/// How many graphs of a step may run with any number of rows.
const SMALL: usize = 2;

/// Rows of a run that is not worth a graph of a prompt.
const SHORT: usize = 32;

/// The same where there are several a little longer, which have a graph together.
const SHORT_OF_SEVERAL: usize = 128;

/// Most rows of a step, in as many calls as it takes, where no graph of a prompt takes more.
pub(super) const MOST_ROWS: usize = 256;

/// Rows of a call begin at a multiple of this in the hidden rows, so that views of them are aligned.
pub(super) const APART: usize = 16;

/// Which graphs run a step whose runs have so many rows, each with the rows that it runs: those of prompts long runs,
/// and others what is left between them. `steps` and `prompts` have the rows of the graphs; those of prompts are
/// counted behind those of steps.
pub(super) fn calls(
    runs: &[usize],
    steps: &[usize],
    prompts: &[usize],
) -> Vec<(usize, Range<usize>)> {
    let is_middling = |rows: &&usize| (SHORT + 1..=SHORT_OF_SEVERAL).contains(rows);
    let several = runs.iter().filter(is_middling).count() > 1;
    let short = if several { SHORT_OF_SEVERAL } else { SHORT };
    let (mut calls, mut from, mut end) = (Vec::new(), 0, 0);
    // All that is not yet in a call, by graphs of steps or of a prompt.
    let mut until = |end: usize, graphs: &[usize], small: usize, rest: usize, before: usize| {
        for which in cut(end - from, graphs, small, rest) {
            let rows = from..end.min(from + graphs[which]);
            from = rows.end;
            calls.push((before + which, rows));
        }
    };
    for &rows in runs {
        if rows > short && !prompts.is_empty() {
            until(end, steps, SMALL, 0, 0);
            // A short rest is with what comes behind it.
            until(end + rows, prompts, 1, SHORT, steps.len());
        }
        end += rows;
    }
    until(end, steps, SMALL, 0, 0);
    calls
}

/// Which graphs run `rows` rows, one behind the other. Padding is computed too, but a pass over the weights costs about
/// as much as eight rows: the last graph may be half empty, or one of the `small` smallest. `steps` has the rows of each.
/// A rest of `rest` rows at most is left.
fn cut(mut rows: usize, steps: &[usize], small: usize, rest: usize) -> Vec<usize> {
    let mut calls = Vec::new();
    while rows > rest {
        let holds = steps.iter().position(|&most| most >= rows);
        let full = steps.iter().rposition(|&most| most <= rows).unwrap_or(0);
        let which = holds.filter(|&it| it < small || 2 * rows > steps[it]).unwrap_or(full);
        calls.push(which);
        rows = rows.saturating_sub(steps[which]);
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::paged::HIDDEN_ROWS;
    use crate::lower::{cuda, vulkan};

    #[test]
    fn steps_are_cut_into_few_calls_that_hold_them() {
        let rows = |of: usize, steps: &[usize]| -> Vec<_> {
            calls(&[of], steps, &[]).into_iter().map(|(which, _)| steps[which]).collect()
        };
        let of_cuda = |of| rows(of, &cuda::STEP_ROWS);
        assert_eq!(of_cuda(1), [1]);
        assert_eq!(of_cuda(2), [8]);
        assert_eq!(of_cuda(9), [8, 1]);
        assert_eq!(of_cuda(17), [32]);
        assert_eq!(of_cuda(100), [32, 32, 32, 8]);
        assert_eq!(of_cuda(129), [256]);
        assert_eq!(rows(70, &vulkan::STEP_ROWS), [32, 32, 8]);
        for steps in [&cuda::STEP_ROWS[..], &vulkan::STEP_ROWS[..]] {
            for of in 1..=MOST_ROWS {
                let calls = rows(of, steps);
                assert!(calls.iter().sum::<usize>() >= of, "{of}: {calls:?}");
            }
        }
    }

    #[test]
    fn long_runs_are_prompts_and_others_are_together() {
        let (steps, prompts) = (&cuda::STEP_ROWS, &cuda::PROMPT_ROWS);
        let of = |runs: &[usize]| calls(runs, steps, prompts);
        let [one, eight, thirty_two] = [0, 1, 2];
        let [short, long] = [4, 5];
        assert_eq!(of(&[1, 1, 1]), [(eight, 0..3)]);
        assert_eq!(of(&[33]), [(short, 0..33)]);
        assert_eq!(of(&[300]), [(short, 0..256), (short, 256..300)]);
        assert_eq!(of(&[600]), [(long, 0..600)]);
        let mixed = [(eight, 0..3), (long, 3..1003), (thirty_two, 1003..1035), (one, 1035..1036)];
        assert_eq!(of(&[1, 2, 1000, 32, 1]), mixed);
        assert_eq!(of(&[100, 100]), [(3, 0..200)]);
        assert_eq!(of(&[100, 200]), [(short, 0..100), (short, 100..300)]);
        assert_eq!(of(&[257]), [(short, 0..256), (one, 256..257)]);
        assert_eq!(of(&[260, 1]), [(short, 0..256), (eight, 256..261)]);
        assert_eq!(of(&[796]), [(long, 0..796)]);
        // However many there are, all rows are run in order, and the hidden rows hold them with their padding.
        let all = [&steps[..], &prompts[..]].concat();
        for run in 1..=1024 {
            let mut runs = vec![run; 1024 / run];
            runs.push(1024 % run);
            let (mut next, mut place) = (0, 0);
            for (which, rows) in calls(&runs, steps, prompts) {
                assert_eq!(rows.start, next);
                assert!(rows.len() <= all[which], "{run}");
                assert!(place + all[which] <= HIDDEN_ROWS, "{run}");
                place = (place + rows.len()).next_multiple_of(APART);
                next = rows.end;
            }
            assert_eq!(next, 1024);
        }
    }
}
