//! Drafts that are looked up: what followed the last few tokens when they occurred before.

use std::collections::HashMap;

/// Tokens of the longest run that is looked up.
const LONGEST: usize = 4;

/// And of the shortest: a single token has been followed by too much.
const SHORTEST: usize = 2;

/// A run of tokens, filled up at the front with [`NONE`].
type Ngram = [u32; LONGEST];

/// No vocabulary is as large.
const NONE: u32 = u32::MAX;

/// The last 4 tokens, or the last 3, or 2, are looked up in the prompt and the answer so far, and drafted is what
/// followed them the last time: answers that quote or edit a text, code, loops (Saxena: "Prompt Lookup
/// Decoding", 2023).
#[derive(Debug, Default)]
pub(super) struct Ngrams {
    /// Where what follows each run begins; the last occurrence counts.
    following: HashMap<Ngram, usize>,
    /// Tokens whose runs are in there.
    tokens: Vec<u32>,
}

impl Ngrams {
    /// Takes in at most `most` of the tokens that it has not seen yet. Returns whether those are all.
    pub fn read(&mut self, tokens: &[u32], most: usize) -> bool {
        let end = tokens.len().min(self.tokens.len().saturating_add(most));
        for at in self.tokens.len()..end {
            for ngram in ngrams(&tokens[..at]) {
                self.following.insert(ngram, at);
            }
            self.tokens.push(tokens[at]);
        }
        end == tokens.len()
    }

    /// At most `most` tokens that may follow `tokens`, all of which it has seen.
    pub fn look_up(&self, tokens: &[u32], most: usize) -> Vec<u32> {
        let found = ngrams(tokens).find_map(|ngram| self.following.get(&ngram));
        let Some(&at) = found else { return Vec::new() };
        // Past the end it goes on with itself: a loop goes round.
        let period = tokens.len() - at;
        (0..most).map(|i| tokens[at + i % period]).collect()
    }
}

/// The runs that `tokens` end with, the longest first.
fn ngrams(tokens: &[u32]) -> impl Iterator<Item = Ngram> {
    (SHORTEST..=LONGEST.min(tokens.len())).rev().map(|length| {
        let mut ngram = [NONE; LONGEST];
        ngram[LONGEST - length..].copy_from_slice(&tokens[tokens.len() - length..]);
        ngram
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(ngrams: &mut Ngrams, tokens: &[u32], most: usize) -> Vec<u32> {
        assert!(ngrams.read(tokens, usize::MAX));
        ngrams.look_up(tokens, most)
    }

    fn fresh(tokens: &[u32], most: usize) -> Vec<u32> {
        draft(&mut Ngrams::default(), tokens, most)
    }

    #[test]
    fn what_followed_the_longest_run_the_last_time() {
        assert_eq!(fresh(&[1, 2, 3, 4, 1, 2], 2), [3, 4]);
        assert_eq!(fresh(&[1, 2, 3, 1, 2, 5, 1, 2], 1), [5], "the last occurrence");
        // 1 2 3 is followed by 4, the later 2 3 by 9.
        assert_eq!(fresh(&[1, 2, 3, 4, 2, 3, 9, 1, 2, 3], 1), [4], "the longest run");
        let long = [7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3];
        assert_eq!(fresh(&long, 1), [4], "four tokens before three");
        assert!(fresh(&[1, 2, 3, 2], 4).is_empty(), "one token is not looked up");
        assert!(fresh(&[], 4).is_empty() && fresh(&[1], 4).is_empty());
    }

    #[test]
    fn a_loop_goes_round() {
        assert_eq!(fresh(&[9, 1, 2, 3, 1, 2, 3, 1, 2], 5), [3, 1, 2, 3, 1]);
        assert_eq!(fresh(&[5, 5, 5], 4), [5, 5, 5, 5]);
    }

    #[test]
    fn tokens_that_come_are_found() {
        let mut ngrams = Ngrams::default();
        let text: Vec<u32> = (0..500).map(|i| i * i % 37).collect();
        for end in 100..text.len() {
            let (found, expected) = (draft(&mut ngrams, &text[..end], 3), fresh(&text[..end], 3));
            assert_eq!(found, expected, "{end} tokens");
            assert!(!found.is_empty());
        }
    }

    #[test]
    fn a_long_context_takes_a_few_entries_for_each_token() {
        let tokens: Vec<u32> = (0..100_000).map(|i| i * 7919 % 50_021).collect();
        let mut ngrams = Ngrams::default();
        draft(&mut ngrams, &tokens, 4);
        assert!(ngrams.following.len() <= 3 * tokens.len());
        // One token more is three entries more, not all of them again.
        let before = ngrams.tokens.len();
        assert!(ngrams.read(&[&tokens[..], &[1]].concat(), 5));
        assert_eq!(ngrams.tokens.len(), before + 1);
        // A long text is taken in piece by piece.
        let mut slow = Ngrams::default();
        for _ in 0..9 {
            assert!(!slow.read(&tokens, 10_000));
        }
        assert!(slow.read(&tokens, 10_000));
        assert_eq!(slow.look_up(&tokens, 9), fresh(&tokens, 9));
    }
}
