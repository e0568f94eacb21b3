//! What `docs/performance.md` says about many sequences at once.

use super::{Batched, Measured, SEQUENCES};
use crate::bench::sample::Samples;
use crate::bench::table::{markdown, number};
use crate::bench::{llama_cpp, machine};

impl Batched {
    /// The section between the two marks: tokens a second, and what they are of one sequence's and
    /// of the machine's limit.
    pub fn section(&self, command: &str) -> String {
        let plan = self.plan;
        let settings =
            self.measured.iter().map(|it| format!("{}: {}", it.format.name, it.settings));
        let counts = SEQUENCES.map(|it| it.to_string());
        let [one, two, four, eight, sixteen] = counts.clone();
        let prompts = format!("prompts of {sixteen}");
        let speeds = ["sequences".into(), one, two, four, eight, sixteen, prompts];
        let [one, two, four, eight, sixteen] = counts;
        let shares = ["sequences".into(), one, two, four, eight, sixteen];
        format!(
            "{}, {}, threads: {}. `{command}`: contexts of {} tokens, then {} single tokens of each \
             sequence; {}; turns of the two programs, of which medians: {}. llama.cpp's settings are the \
             fastest of four: {}.\n\n\
             Tokens a second of all sequences together: ours / llama.cpp's (ratio: the median of \
             those of the turns).\n\n{}\n\
             Ours beside one sequence, and of what the machine allows: the weights read once a \
             step, or multiplied in f32, whichever takes longer.\n\n{}",
            machine::describe(),
            machine::today(),
            self.threads,
            plan.prompt,
            plan.generate,
            llama_cpp::described(),
            plan.turns,
            settings.collect::<Vec<_>>().join("; "),
            markdown(&speeds, self.measured.iter().map(speeds_of)),
            markdown(&shares, self.measured.iter().map(|it| self.shares_of(it))),
        )
    }

    /// "2.6x, 85%" for each number of sequences.
    fn shares_of(&self, it: &Measured) -> [String; 6] {
        let context = self.plan.prompt + self.plan.generate / 2;
        let [one, _] = it.both(SEQUENCES[0], |rate| rate.decode);
        let cells = SEQUENCES.map(|sequences| {
            let [ours, _] = it.both(sequences, |rate| rate.decode);
            let limit = it.limit(sequences, &self.shape, context);
            let share = ours.median().zip(limit).map(|(ours, limit)| 100.0 * ours / limit);
            match ours.over(&one).zip(share) {
                Some((multiple, share)) => format!("{}x, {share:.0}%", number(multiple)),
                None => "?".to_owned(),
            }
        });
        line(it.format.name.to_owned(), cells)
    }
}

/// "57.3 / 44.9 (1.28x)" for each number of sequences, and for the prompts of the most.
fn speeds_of(it: &Measured) -> [String; 7] {
    let decode = SEQUENCES.map(|sequences| beside(&it.both(sequences, |rate| rate.decode)));
    let prompts = it.both(SEQUENCES[SEQUENCES.len() - 1], |rate| rate.prompt);
    let name = format!("{} / {}", it.format.name, it.format.llama);
    let [name, one, two, four, eight, sixteen] = line(name, decode);
    [name, one, two, four, eight, sixteen, beside(&prompts)]
}

fn line(name: String, [one, two, four, eight, sixteen]: [String; 5]) -> [String; 6] {
    [name, one, two, four, eight, sixteen]
}

fn beside([ours, llama]: &[Samples; 2]) -> String {
    match (ours.median(), llama.median(), ours.over(llama)) {
        (Some(a), Some(b), Some(ratio)) => {
            format!("{} / {} ({}x)", number(a), number(b), number(ratio))
        }
        _ => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::unit_tests::example;

    #[test]
    fn every_number_of_sequences_has_its_cells() {
        let text = example().section("cargo xtask bench --part batched");
        let rows: Vec<Vec<_>> = text
            .lines()
            .filter(|line| line.starts_with("| stored"))
            .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim()).collect())
            .collect();
        let [speeds, shares] = &rows[..] else { panic!("{text}") };
        // Turn by turn ours is 2, 2 and 1.25 times as fast.
        assert_eq!(speeds[0], "stored / BF16");
        assert_eq!(speeds[1], "10.0 / 8.00 (2.00x)");
        assert_eq!(speeds[3], "20.0 / 16.0 (2.00x)");
        assert_eq!(speeds[6], "100 / 80.0 (2.00x)");
        assert_eq!((shares[0], shares.len()), ("stored", 6));
        // 20 tokens a second is what a step of one sequence can be at most, less its attention.
        assert!(shares[1].starts_with("1.00x, "), "{shares:?}");
        assert!(shares[5].starts_with("4.00x, "), "{shares:?}");
        for said in ["stored: flash attention on, mmap on", "contexts of 128", "medians: 3."] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}
