//! Text in, tokens out, and text again while tokens come.
//!
//! The modules in reading order: what a model file says of its tokens ([`Vocabulary`]), a model's
//! tokenizer ([`Tokenizer`]), the text of tokens as they are generated ([`Detokenizer`]), up to a
//! stop string ([`StopStrings`]), both together ([`TextStream`]); a conversation as the text that
//! the model was trained on ([`ChatTemplate`]); what an answer is made of ([`Reply`]); a place in a text to fill in
//! ([`Infill`]).
//!
//! Libraries below panic on some damaged files: such panics are errors here, and the first call puts a panic hook before
//! the one that is there, which keeps them from being printed and passes all others on. A program that aborts where it
//! panics (`panic = "abort"`) ends on such a file without a word.

mod vocabulary;

mod tokenizer;

mod detokenizer;
mod stop_strings;
mod stream;

mod chat_template;

mod reply;

mod infill;

mod error;
mod panics;

pub use chat_template::{ChatTemplate, Message, Prompt, RenderOptions, dumps};
pub use detokenizer::Detokenizer;
pub use error::{Error, Result};
pub use infill::{Infill, Place};
pub use reply::{
    AnswerStyle, ArgumentMarks, COHERE_THINK, CallMarks, Calls, GEMMA_TEXT, GEMMA_THINK, Keys,
    MISTRAL_THINK, NameMarks, Part, Reply, THINK, Thoughts, takes_text,
};
pub use stop_strings::StopStrings;
pub use stream::TextStream;
pub use tokenizer::{Tokenizer, tokens_in};
pub use vocabulary::{TokenType, Vocabulary};
