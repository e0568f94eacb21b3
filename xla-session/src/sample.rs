//! Choosing a token from logits.

/// Chooses tokens at random, reproducibly.
#[derive(Debug)]
pub struct Sampler {}

impl Sampler {
    /// Chooses a token from `logits` (overwritten), given the tokens so far.
    pub fn sample(&mut self, logits: &mut [f32], prompt: &[u32], generated: &[u32]) -> u32 {
        let _ = (logits, prompt, generated);
        unimplemented!()
    }
}
