//! `iree-llm quantize`: a model in four bits, rounded by what it reads of a text.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use calibration::{Error, Quantisation};

use crate::interrupt;
use crate::lines::read_text;
use crate::model_source::ModelArgs;
use crate::progress::QuietArgs;
use crate::quality::contexts;
use crate::text_files;

/// What to round, by which text, and into what.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// File with text like that which the model will meet; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    calibrate: PathBuf,

    /// The folder to make; one that is there has to be empty, or begun by the same command
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,

    /// Most tokens of the text to read, taken evenly from all of it
    #[arg(short = 'n', long, value_name = "N", default_value_t = 16384,
          value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,

    /// The text is read in pieces of this many tokens, each with an empty context before it
    #[arg(long, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(2..))]
    window: u32,

    #[command(flatten)]
    quiet: QuietArgs,
}

const EXAMPLES: &str = "\
Examples:
  iree-llm quantize -m ./Llama-3.2-1B --calibrate book.txt -o ./Llama-3.2-1B-4bit
  iree-llm quality -m ./Llama-3.2-1B --with ./Llama-3.2-1B-4bit -f other.txt     what that lost
  iree-llm chat -m ./Llama-3.2-1B-4bit

The text runs through the model, layer by layer. The matrices of a layer get four bits, 4.5 with their \
scales (groups of 32 columns); each column is rounded so that the following ones make up for what it \
loses, for what the layer reads of the text behind the layers that were rounded before (GPTQ). Embedding, \
output projection, the first layer's attention, and the output projections of the first and the last MLP \
get eight bits, norms and biases stay. Some ten pages of text do, more is a little better; take what the \
model will be used for: chats in its template for a chat model, code for code.

The folder is in Hugging Face layout, encoded as compressed-tensors has it, for this program: others \
that read it (vLLM, transformers) have no embedding of eight bits. A second run of the same \
command goes on where one was stopped: layers that are finished are kept. Memory: one layer in f32, its moments (the width of the MLP, squared, times 20 bytes), and for each token six times \
the width of the model and four times that of the MLP, times 4 bytes.";

impl Args {
    /// Rounds and prints the folder.
    ///
    /// # Errors
    ///
    /// The text or the model cannot be read, the model has mixtures of experts, or the folder has
    /// something else in it or cannot be written.
    pub fn run(self) -> Result<ExitCode> {
        let progress = self.quiet.progress();
        let text = self.text()?;
        let model = self.model.locate(&progress)?;
        let tokenizer = model.tokenizer()?;
        let begin = tokenizer.encode("", true)?;
        let ids = tokenizer.encode(&text, false)?;
        let quantisation = Quantisation::open(&model.folder)?;
        let most = self.tokens as usize;
        let window = (self.window as usize).min(quantisation.config().max_position_embeddings);
        let all = contexts::cut(&begin, &ids, window, usize::MAX);
        let texts = contexts::limit(evenly(all, most.div_ceil(window)), most);

        let _interruptible = interrupt::generating();
        let shown = progress.weights("rounding", quantisation.weights());
        let mut watch = |rounded| {
            shown.add(rounded);
            if interrupt::stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let end = quantisation.run(&texts, &self.output, &mut watch);
        drop(shown);
        let made = match end {
            Err(Error::Stopped) => {
                progress.say("stopped; the same command goes on behind the last finished layer");
                return Ok(interrupt::exit_code(true));
            }
            made => made?,
        };
        // Whoever finds a model there finds these beside it.
        text_files::write(&model, &self.output, &progress)?;
        made.finish()?;
        writeln!(io::stdout(), "{}", self.output.display())?;
        Ok(ExitCode::SUCCESS)
    }

    fn text(&self) -> Result<String> {
        let path = &self.calibrate;
        let text = read_text(path)?;
        ensure!(!text.trim().is_empty(), "{}: is empty: give at least some pages", path.display());
        Ok(text)
    }
}

/// `count` of `all`, or all, from places that lie evenly.
fn evenly<T>(all: Vec<T>, count: usize) -> Vec<T> {
    let (length, count) = (all.len(), count.min(all.len()));
    let mut all = all.into_iter().enumerate();
    let places = (0..count).map(|number| number * length / count);
    places.filter_map(|place| all.find(|(at, _)| *at == place)).map(|(_, it)| it).collect()
}

#[cfg(test)]
mod tests {
    use super::evenly;

    #[test]
    fn pieces_lie_evenly() {
        assert_eq!(evenly((0..10).collect(), 3), [0, 3, 6]);
        assert_eq!(evenly(vec![1, 2], 5), [1, 2]);
        assert!(evenly(Vec::<u8>::new(), 5).is_empty());
    }
}
