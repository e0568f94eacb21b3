//! Whether texts that are too long are cut off.

use crate::Problem;
use crate::fields::Fields;

/// `truncate_prompt_tokens`, as vLLM has it: how many tokens are left of a text, or -1 for as many as the model takes. What is cut
/// off is the end.
pub(crate) struct Cut(Option<usize>);

const FIELD: &str = "truncate_prompt_tokens";

/// Of a cut to what the model takes.
const MODEL: usize = usize::MAX;

impl Cut {
    /// What is asked for, if something is.
    ///
    /// # Errors
    ///
    /// It is no such number.
    pub fn take(fields: &mut Fields) -> Result<Self, Problem> {
        let most = match fields.take::<i64>(FIELD)? {
            None => None,
            Some(-1) => Some(MODEL),
            Some(most) => match usize::try_from(most) {
                Ok(most @ 1..) => Some(most),
                _ => {
                    let message = format!(
                        "is {most}: give a number of tokens, or -1 for what the model takes"
                    );
                    return Err(Problem::field(FIELD, message));
                }
            },
        };
        Ok(Self(most))
    }

    /// How many tokens are left at most, of a model that was made for `own` and takes `context`.
    pub fn most(&self, own: usize, context: usize) -> Option<usize> {
        self.0.map(|most| if most == MODEL { own } else { most.min(context) })
    }
}
