//! Cutting a prompt into chunks that the compiled graphs take.

use crate::emit::KV_BLOCK;

/// Rows of the prefill graphs, fewest first.
pub(super) const ROWS: [usize; 3] = [8, 64, 256];

/// A chunk may only start at a multiple of this, whatever its rows.
pub(super) const ALIGN: usize = ROWS[0];

/// Most `rows * keys` of a chunk of more rows than the smallest: attention holds the scores of a
/// layer, `heads * rows * keys` floats.
const MOST_SCORES: usize = 256 * 8192;

/// One call of a prefill graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Position of its first token.
    pub start: usize,
    /// Rows of the graph; those behind the end of the prompt are padding.
    pub rows: usize,
}

/// The cheapest chunks that cover positions `start` up to `end`; `start` is a multiple of
/// [`ALIGN`].
pub(super) fn chunks(start: usize, end: usize) -> Vec<Chunk> {
    debug_assert!(start.is_multiple_of(ALIGN) && start < end);
    let steps = (end - start).div_ceil(ALIGN);
    // The cost of covering the last `i` steps, and the rows of the first chunk that does.
    let mut best = vec![(0, 0); steps + 1];
    for i in 1..=steps {
        let at = start + (steps - i) * ALIGN;
        best[i] = ROWS
            .into_iter()
            .filter(|&rows| {
                let fits = rows * (at + rows) <= MOST_SCORES || rows == ALIGN;
                at.is_multiple_of(rows.min(KV_BLOCK)) && fits
            })
            .map(|rows| {
                let used = rows.min(end - at);
                (cost(rows, used) + best[i.saturating_sub(rows / ALIGN)].0, rows)
            })
            .min()
            .unwrap_or((usize::MAX, ROWS[0]));
    }
    let mut chunks = Vec::new();
    let mut left = steps;
    while left > 0 {
        let rows = best[left].1;
        chunks.push(Chunk { start: start + (steps - left) * ALIGN, rows });
        left = left.saturating_sub(rows / ALIGN);
    }
    chunks
}

/// Time of one call, relative: one pass over the weights, then the arithmetic of the rows in use,
/// and a little for those that are padding.
fn cost(rows: usize, used: usize) -> usize {
    let (pass, row, padding) = (60, 16, 1);
    pass + used * row + (rows - used) * padding
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prompt_is_covered_by_aligned_chunks() {
        for start in (0..600).step_by(ALIGN) {
            for tokens in [1, 7, 8, 9, 17, 31, 33, 64, 255, 256, 300, 700] {
                let mut at = start;
                for chunk in chunks(start, start + tokens) {
                    assert_eq!(chunk.start, at);
                    assert_eq!(at % chunk.rows.min(KV_BLOCK), 0);
                    assert!(at < start + tokens, "a chunk of padding");
                    at += chunk.rows;
                }
                assert!(at >= start + tokens);
            }
        }
    }

    #[test]
    fn short_prompts_take_short_chunks() {
        assert_eq!(chunks(0, 5), [Chunk { start: 0, rows: 8 }]);
        assert_eq!(chunks(0, 256), [Chunk { start: 0, rows: 256 }]);
        assert_eq!(chunks(0, 30), [Chunk { start: 0, rows: 64 }]);
        assert_eq!(chunks(0, 200), [Chunk { start: 0, rows: 256 }]);
        assert_eq!(chunks(56, 66), [Chunk { start: 56, rows: 8 }, Chunk { start: 64, rows: 8 }]);
    }

    #[test]
    fn chunks_shrink_where_the_scores_of_a_long_context_are_held() {
        assert!(chunks(16_384, 17_408).iter().all(|chunk| chunk.rows == 64));
        assert!(chunks(65_536, 65_600).iter().all(|chunk| chunk.rows == ALIGN));
    }
}
