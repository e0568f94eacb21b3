//! What an answer may be.

use std::fmt::Debug;
use std::ops::ControlFlow;

/// What an answer may be: says of each token which ones may come.
pub trait Constraint: Debug + Send {
    /// Makes the logits of tokens that may not come next −∞, `[vocab_size]`; an error of its own ends
    /// the request.
    fn restrict(&mut self, logits: &mut [f32]) -> ControlFlow<()>;

    /// `token` has come. Breaks off where nothing may follow.
    fn accept(&mut self, token: u32) -> ControlFlow<()>;

    /// Tokens that have to come next, one after the other: they are taken without asking the model, also
    /// those that it must not generate, and run as one piece.
    fn forced(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// Another one, in the same state.
    fn duplicate(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.duplicate()
    }
}
