//! How a model is opened, and how answers are to be.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use xla_session::batching::{Gap, Speculate};
use xla_session::cache::Cache;
use xla_session::pooling::normalize;
use xla_session::sample::SamplerOptions;
use xla_session::{EngineOptions, Pooling, Precision, SessionOptions};

use crate::sentence_transformers::Said;
use crate::{Dense, Form, Progress, Result, ToolChoice};

/// How a model is opened.
#[derive(Clone)]
pub struct LlmOptions {
    /// What it is called, as by who asks a server for it; `None` is its id, or the end of its path.
    pub name: Option<String>,
    /// The device, the precision of weights, and where compiled graphs are kept: in the user's cache folder, where nothing
    /// else is said.
    pub session: SessionOptions,
    /// The memory for keys and values, and the longest context; without a size of it,
    /// [the usual room](EngineOptions::with_usual_room).
    pub engine: EngineOptions,
    /// Most requests that run at once; the others wait.
    pub parallel: usize,
    /// How long streams may wait for prompts beside them.
    pub gap: Gap,
    /// Whether tokens are guessed and verified. Answers are the same.
    pub speculate: Speculate,
    /// The name of a smaller model with the same tokenizer that guesses them; `None` guesses what followed the last few where
    /// they occurred before.
    pub draft_model: Option<String>,
    /// How its weights lie in memory: what it gets wrong costs time and nothing else.
    pub draft_precision: Precision,
    /// Hears of a model that is fetched.
    pub progress: Arc<dyn Progress>,
}

impl Default for LlmOptions {
    fn default() -> Self {
        let cache_dir = Cache::default_folder();
        Self {
            name: None,
            session: SessionOptions { cache_dir, ..SessionOptions::default() },
            engine: EngineOptions::default(),
            parallel: 16,
            gap: Gap::default(),
            speculate: Speculate::Auto,
            draft_model: None,
            draft_precision: Precision::Int4,
            progress: Arc::new(()),
        }
    }
}

impl fmt::Debug for LlmOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmOptions")
            .field("name", &self.name)
            .field("session", &self.session)
            .field("engine", &self.engine)
            .field("parallel", &self.parallel)
            .field("gap", &self.gap)
            .field("speculate", &self.speculate)
            .field("draft_model", &self.draft_model)
            .field("draft_precision", &self.draft_precision)
            .finish_non_exhaustive()
    }
}

/// How an answer is to be.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// Most tokens of it; `None` is what there is room for.
    pub max_tokens: Option<usize>,
    /// How tokens are drawn, as [the model's makers recommend](crate::Llm::recommended) or otherwise; `None` takes the likeliest.
    pub sampling: Option<SamplerOptions>,
    /// Texts that end it, and are no part of it.
    pub stop: Vec<String>,
    /// Whether it goes on past the model's end of text.
    pub ignore_eos: bool,
    /// Whether each of [its tokens](crate::Response::tokens) comes with how likely it was, and with how many of the most likely
    /// ones.
    pub likelihood: Option<usize>,
    /// Whether a chat's answer goes on with the words of the last message, which is the assistant's.
    pub continue_final_message: bool,
    /// What the model may call, as JSON schemas (`{"type": "function", "function": {"name", "description",
    /// "parameters"}}`). Its calls are kept to [their schemas](crate::Tools), which takes what a form takes, and answers to such
    /// requests are not guessed ahead.
    pub tools: Vec<serde_json::Value>,
    /// Whether one of them has to be called.
    pub tool_choice: ToolChoice,
    /// Whether it calls one of them at most.
    pub one_call: bool,
    /// What else the chat template takes: `enable_thinking`.
    pub variables: BTreeMap<String, serde_json::Value>,
    /// What it is kept to: JSON of a schema, or other text of a form, which the model is not told. It stands behind thoughts
    /// that the prompt has begun, and those of gpt-oss; a model that may think or not is asked for the form alone. Beside
    /// tools an answer is calls or in the form. With
    /// `max_tokens` it may be the beginning of one.
    pub form: Option<Form>,
    /// Higher goes first.
    pub priority: i32,
}

/// How a model makes a vector of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Vectors {
    /// What goes before each text.
    pub prompt: String,
    /// Which hidden states it is made of.
    pub pooling: Pooling,
    /// What that goes through; shared, as each request has its own `Vectors`.
    pub layers: Arc<[Dense]>,
    /// Whether its length is 1.
    pub normalized: bool,
    /// Whether texts become small letters first.
    pub lowercase: bool,
    /// Most tokens of a text that it was made for, where the model says so: texts that are to be cut off are so there.
    pub most_tokens: Option<usize>,
}

impl Default for Vectors {
    /// Of the last token, of length 1.
    fn default() -> Self {
        Self {
            prompt: String::new(),
            pooling: Pooling::Last,
            layers: Arc::from([]),
            normalized: true,
            lowercase: false,
            most_tokens: None,
        }
    }
}

impl Vectors {
    /// Numbers of one, of a model with hidden states of so many.
    pub fn width(&self, hidden_size: usize) -> usize {
        self.layers.last().map_or(hidden_size, Dense::outputs)
    }

    /// Whether the layers fit each other and hidden states of so many numbers.
    ///
    /// # Errors
    ///
    /// They do not.
    pub fn check(&self, hidden_size: usize) -> Result<()> {
        let mut width = hidden_size;
        for layer in &*self.layers {
            if layer.inputs() != width {
                let message =
                    format!("a layer of {} inputs behind {width} numbers", layer.inputs());
                return Err(crate::Error::Unsupported(message));
            }
            width = layer.outputs();
        }
        Ok(())
    }

    /// What is read of `text`: it with what goes before, in small letters where the model wants these.
    pub fn text(&self, text: &str) -> String {
        let all = format!("{}{text}", self.prompt);
        if self.lowercase { all.to_lowercase() } else { all }
    }

    /// The vector that becomes of pooled hidden states, or its first `width` numbers.
    pub fn finish(&self, pooled: Vec<f32>, width: Option<usize>) -> Vec<f32> {
        let mut vector = self.layers.iter().fold(pooled, |vector, layer| layer.apply(&vector));
        if let Some(width) = width {
            vector.truncate(width);
        }
        if self.normalized {
            normalize(&mut vector);
        }
        vector
    }

    /// Most tokens of a text that is cut off, in a context of so many.
    pub fn most_tokens(&self, context: usize) -> usize {
        self.most_tokens.unwrap_or(context).min(context)
    }
}

impl Vectors {
    /// As a model has `said`, of texts behind `prompt`, or behind what it says that goes before all; what is not said is as by
    /// default.
    ///
    /// # Errors
    ///
    /// There is no such prompt as its default, or its states are not pooled with those of the text.
    pub fn of(said: &Said, prompt: Option<&str>) -> Result<Self> {
        let Self { pooling, normalized, .. } = Self::default();
        let pooling = said.pooling.unwrap_or(pooling);
        let prompt = match prompt {
            Some(prompt) => prompt,
            None => said.prompts.find(None)?,
        };
        if !prompt.is_empty() && !said.include_prompt && pooling != Pooling::Last {
            let message = "the model's vectors leave out what goes before a text (`include_prompt`), which is not supported";
            return Err(crate::Error::Unsupported(message.into()));
        }
        Ok(Self {
            prompt: prompt.to_owned(),
            pooling,
            layers: said.layers.clone().into(),
            normalized: said.normalized.unwrap_or(normalized),
            lowercase: said.lowercase,
            most_tokens: said.most_tokens,
        })
    }
}
