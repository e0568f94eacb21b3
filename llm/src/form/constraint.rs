//! Keeps answers to their forms, while the model writes them.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use xla_session::batching;

/// Keeps an answer to its form. Which tokens may come next is worked out while the model runs the one before.
pub struct Constraint {
    state: Mutex<State>,
    /// Why it could not be kept to.
    failure: Arc<OnceLock<String>>,
}

enum State {
    /// With what may come next, where it has been asked for.
    Here(Box<Matcher>, Option<Mask>),
    /// With a thread beside the step.
    Away(Receiver<(Box<Matcher>, Mask)>),
}

type Mask = anyhow::Result<SimpleVob>;

impl State {
    /// Waits for it if need be.
    fn here(&mut self) -> (&mut Matcher, &mut Option<Mask>) {
        if let Self::Away(receiver) = self {
            *self = match receiver.recv() {
                Ok((matcher, mask)) => Self::Here(matcher, Some(mask)),
                Err(_) => {
                    let lost = anyhow::anyhow!("the thread that had it is gone");
                    Self::Here(Box::new(Matcher::new(Err(lost))), None)
                }
            };
        }
        match self {
            Self::Here(matcher, mask) => (matcher, mask),
            Self::Away(_) => unreachable!("it has come back"),
        }
    }

    fn send_away(&mut self) {
        let (sender, receiver) = channel();
        if let Self::Here(mut matcher, _) = std::mem::replace(self, Self::Away(receiver)) {
            rayon::spawn(move || {
                let mask = matcher.compute_mask();
                // An answer that was given up has no use for it.
                let _ = sender.send((matcher, mask));
            });
        }
    }
}

impl Constraint {
    /// At the beginning, and where it says why it has failed.
    pub(super) fn new(matcher: &Matcher) -> (Self, Arc<OnceLock<String>>) {
        let failure = Arc::new(OnceLock::new());
        (Self::of(matcher, failure.clone()), failure)
    }

    fn of(matcher: &Matcher, failure: Arc<OnceLock<String>>) -> Self {
        Self { state: Mutex::new(State::Here(Box::new(matcher.deep_clone()), None)), failure }
    }

    fn state(&mut self) -> &mut State {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: &anyhow::Error) -> ControlFlow<()> {
        let _ = self.failure.set(error.to_string());
        ControlFlow::Break(())
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("failure", &self.failure).finish_non_exhaustive()
    }
}

impl batching::Constraint for Constraint {
    fn restrict(&mut self, logits: &mut [f32]) -> ControlFlow<()> {
        let (matcher, mask) = self.state().here();
        match mask.take().unwrap_or_else(|| matcher.compute_mask()) {
            Ok(mask) => {
                mask.iter_unset_entries(|id| {
                    if let Some(logit) = logits.get_mut(id) {
                        *logit = f32::NEG_INFINITY;
                    }
                });
                // Those that the model must not generate are so already.
                if logits.iter().all(|logit| *logit == f32::NEG_INFINITY) {
                    return self.fail(&anyhow::anyhow!(
                        "the model must not generate any of the tokens that may come next"
                    ));
                }
                ControlFlow::Continue(())
            }
            Err(error) => self.fail(&error),
        }
    }

    fn forced(&mut self) -> Vec<u32> {
        let state = self.state();
        let forced = state.here().0.compute_ff_tokens();
        if forced.is_empty() {
            state.send_away();
        }
        forced
    }

    fn duplicate(&self) -> Box<dyn batching::Constraint> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Box::new(Self::of(state.here().0, self.failure.clone()))
    }

    fn accept(&mut self, token: u32) -> ControlFlow<()> {
        let (matcher, mask) = self.state().here();
        *mask = None;
        match matcher.consume_token(token) {
            Ok(()) if matcher.is_stopped() => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => self.fail(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use llguidance::api::TopLevelGrammar;

    use super::*;
    use crate::form::tests::matcher;

    #[test]
    fn tokens_that_a_model_must_not_generate_are_none_of_an_answer_in_a_form() {
        let (mut constraint, failure) =
            Constraint::new(&matcher(&TopLevelGrammar::from_regex("[ab]")));
        for (suppressed, goes_on) in [("", true), ("bc", true), ("ab", false)] {
            let mut logits = vec![0.0; 257];
            for byte in suppressed.bytes() {
                logits[usize::from(byte)] = f32::NEG_INFINITY;
            }
            let restricted = batching::Constraint::restrict(&mut constraint, &mut logits);
            assert_eq!((restricted.is_continue(), failure.get().is_none()), (goes_on, goes_on));
        }
    }
}
