//! What a kind of device does for an engine.

use checkpoint::config::ModelConfig;

use super::Batch;
use crate::cache::Key;
use crate::pages::PageCopy;
use crate::{Profile, Result};

/// A model on its device: weights and compiled graphs, which engines share.
pub(crate) trait Loaded: Send + Sync {
    /// What the model is.
    fn config(&self) -> &ModelConfig;

    /// The device, as the runtime names it.
    fn device(&self) -> String;

    /// Most rows of a step.
    fn most_rows(&self) -> usize;

    /// Whether hidden states can be read.
    fn has_hidden(&self) -> bool;

    /// Bytes of a page, of all layers.
    fn page_bytes(&self) -> usize;

    /// Bytes of the states of a sequence, of all layers; 0 where none keeps one.
    fn state_bytes(&self) -> usize;

    /// What tells the pages of this model from those of all others; `None` where the system does not say
    /// when its files, or the program's, were changed.
    fn page_identity(&self) -> Option<Key>;

    /// Memory for `pages` pages and `states` states, and what runs steps over them.
    fn executor(&self, pages: usize, states: usize) -> Result<Box<dyn Executor>>;
}

/// Runs steps, one at a time.
pub(crate) trait Executor: Send {
    /// Copies the beginning of a page.
    fn copy(&mut self, copy: PageCopy) -> Result<()>;

    /// Fills `data` with a page, of all layers.
    fn read_page(&mut self, page: u32, data: &mut [u8]) -> Result<()>;

    /// Fills a page with `data`.
    fn write_page(&mut self, page: u32, data: &[u8]) -> Result<()>;

    /// Runs rows, of which there is one at least, and stores their keys and values; they may be on their
    /// way when it returns.
    fn run(&mut self, batch: &Batch) -> Result<()>;

    /// Waits for the rows that are on their way.
    fn finish(&mut self) -> Result<()>;

    /// Appends the most likely token after each of these rows of the last step.
    fn tokens(&mut self, rows: &[usize], tokens: &mut Vec<u32>) -> Result<()>;

    /// Appends the logits after each of these rows of the last step, `[vocab_size]` each.
    fn logits(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<()>;

    /// Appends the residual stream of each of these rows of the last step behind the last norm,
    /// `[hidden_size]` each.
    fn hidden(&mut self, rows: &[usize], hidden: &mut Vec<f32>) -> Result<()>;

    /// What has been run since the last look.
    fn take_profile(&mut self) -> Result<Profile>;
}
