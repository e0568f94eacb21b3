//! `iree-llm inspect`: look into a model folder, a safetensors file or a compiled module.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use xla_session::LoadMode;
use xla_session::checkpoint::architecture::{
    Attention, Experts, FeedForward, GatedDelta, Layer, Mixer, RopeScaling,
};
use xla_session::checkpoint::{Checkpoint, Listed, Matrices};
use xla_session::config::ModelConfig;

use crate::model_source::{Model, ModelArgs};
use crate::progress::Progress;

/// What to look into.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm inspect                            the default model
  iree-llm inspect ./Llama-3.2-1B             a model folder: sizes, options, files
  iree-llm inspect ./Llama-3.2-1B --tensors   and every tensor
  iree-llm inspect model.gguf                 a GGUF file: the model, and the types of its tensors
  iree-llm inspect model.safetensors          the tensors of one file
  iree-llm inspect add.vmfb                   a compiled module's functions and signatures

What is wrong with a part of a model stands where that part would be, and the exit code is 1.")]
pub struct Args {
    /// A model (folder, .gguf file, name or Hugging Face id), a .safetensors file or a .vmfb file
    /// [default: smollm2 once it was pulled, else the small model in `models/`]
    #[arg(env = "IREE_LLM_MODEL", value_name = "MODEL|FILE")]
    what: Option<String>,

    /// List every tensor of a model
    #[arg(long)]
    tensors: bool,
}

impl Args {
    /// Looks.
    pub fn run(self) -> Result<ExitCode> {
        // Whole, then out: a reader that stops early is no error of the inspection.
        let (mut out, mut whole) = (Vec::new(), true);
        let file = self.what.as_ref().map(PathBuf::from).filter(|path| path.is_file());
        // Of GGUF files the whole model is shown: they say what it is.
        let file = file.filter(|path| path.extension().is_none_or(|end| end != "gguf"));
        match file {
            Some(path) => match path.extension().and_then(|it| it.to_str()) {
                Some("safetensors") => {
                    tensors(&mut out, &Checkpoint::of_file(&path)?)?;
                }
                Some("vmfb") => module(&mut out, &path)?,
                _ => {
                    bail!("{}: neither .safetensors nor .vmfb, and no model folder", path.display())
                }
            },
            None => {
                let model = ModelArgs { model: self.what }.locate(&Progress::new(false))?;
                whole = self::model(&mut out, &model, self.tensors)?;
            }
        }
        std::io::stdout().write_all(&out)?;
        Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Shows a model; whether nothing of it is wrong.
fn model(out: &mut Vec<u8>, model: &Model, list: bool) -> Result<bool> {
    let folder = &model.folder;
    let (mut config, checkpoint) =
        match (ModelConfig::from_dir(folder), Checkpoint::open(folder, LoadMode::Mmap)) {
            (Err(error), Err(_)) => return Err(error.into()),
            parts => parts,
        };
    let mut whole = true;
    let mut line = |out: &mut Vec<u8>, name: &str, value: Result<String>| {
        whole &= value.is_ok();
        writeln!(out, "{name:<12} {}", value.unwrap_or_else(|error| crate::chain(&error)))
    };
    line(out, "folder", Ok(folder.display().to_string()))?;
    let mut matches = Ok(());
    if let (Ok(config), Ok(checkpoint)) = (&mut config, &checkpoint) {
        matches = checkpoint.is_tied(config).and_then(|tied| {
            config.tie_word_embeddings = tied;
            checkpoint.check(config).map(drop)
        });
    }
    match &config {
        Ok(config) => shape(out, config)?,
        Err(error) => line(out, "family", Err(anyhow!("{error}")))?,
    }
    let kind = model.find_tokenizer().map(|it| it.map_or("none".into(), |it| it.kind()));
    line(out, "tokenizer", kind)?;
    let template = model.find_chat_template();
    line(out, "chat", template.map(|it| presence(it.is_some())))?;
    let checkpoint = match checkpoint {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            line(out, "weights", Err(error.into()))?;
            return Ok(false);
        }
    };
    weights(out, &checkpoint)?;
    if let Err(error) = matches {
        line(out, "", Err(error.into()))?;
    }
    if let Ok(config) = &config {
        match checkpoint.encodings(config) {
            Ok(encodings) => {
                for (encoding, Matrices { count, bytes }) in encodings {
                    let size = size(bytes);
                    line(out, "quantised", Ok(format!("{encoding}: {count} matrices, {size}")))?;
                }
            }
            Err(error) => line(out, "quantised", Err(error.into()))?,
        }
    }
    if list {
        writeln!(out)?;
        tensors(out, &checkpoint)?;
    }
    Ok(whole)
}

/// What a configuration says.
fn shape(out: &mut Vec<u8>, config: &ModelConfig) -> Result<()> {
    let layers = &config.architecture.layers;
    let first = &layers[0];
    let attention = layers.iter().find_map(Layer::attention);
    let parameters = config.parameter_count() as f64;
    let mut line = |name: &str, value: String| writeln!(out, "{name:<12} {value}");
    line("family", format!("{} ({})", config.family.model_type(), config.family.class()))?;
    line(
        "parameters",
        match parameters {
            n if n >= 1e9 => format!("{:.2} billion", n / 1e9),
            n if n >= 1e6 => format!("{:.2} million", n / 1e6),
            n => format!("{n}"),
        },
    )?;
    line(
        "layers",
        format!(
            "{} of width {}, MLP {}",
            config.num_hidden_layers, config.hidden_size, config.intermediate_size
        ),
    )?;
    line(
        "heads",
        format!(
            "{} queries, {} keys and values, width {}{}{}{}",
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            if attention.is_some_and(|it| it.qk_norm.is_some()) { ", q and k normed" } else { "" },
            if attention.is_some_and(|it| it.sinks.is_some()) { ", with sinks" } else { "" },
            if attention.is_some_and(|it| it.gated) { ", gated" } else { "" },
        ),
    )?;
    let attending = || layers.iter().filter_map(Layer::attention);
    let others: Vec<_> = attending().filter(|it| it.head_dim != config.head_dim).collect();
    if let Some(Attention { kv_heads, head_dim, .. }) = others.first() {
        let many = others.len();
        line("", format!("{kv_heads} keys and values, width {head_dim} in {many} layers"))?;
    }
    let shared = attending().filter(|it| it.shared.is_some()).count();
    if shared > 0 {
        line("shared", format!("{shared} layers see keys and values of others"))?;
    }
    if let Some(inputs) = &config.architecture.layer_inputs {
        line("inputs", format!("{} numbers of each token for each layer", inputs.width()))?;
    }
    let convolutions = layers.iter().filter_map(|layer| match &layer.mixer {
        Mixer::ShortConvolution(convolution) => Some(convolution.rows()),
        Mixer::Attention(_) | Mixer::GatedDelta(_) => None,
    });
    let convolutions: Vec<_> = convolutions.collect();
    if let Some(rows) = convolutions.first() {
        let many = format!("over {rows} tokens in {} layers", convolutions.len());
        line("convolved", many)?;
    }
    let deltas: Vec<_> = layers.iter().filter_map(Layer::gated_delta).collect();
    if let Some(GatedDelta { key_heads, value_heads, key_dim, value_dim, .. }) = deltas.first() {
        let numbers: usize = layers.iter().filter_map(|it| it.mixer.state()).flatten().sum();
        line(
            "states",
            format!(
                "{value_heads} of {key_dim} x {value_dim} in {} layers, {key_heads} queries and keys; {} a \
                 sequence",
                deltas.len(),
                size((numbers * size_of::<f32>()) as u64)
            ),
        )?;
    }
    let experts = layers.iter().find_map(|layer| match &layer.mlp {
        FeedForward::Experts(experts) => Some(&**experts),
        FeedForward::Mlp(_) => None,
    });
    if let Some(Experts { experts, top_k, shared, .. }) = experts {
        let with = layers.iter().filter(|it| matches!(it.mlp, FeedForward::Experts(_))).count();
        line(
            "experts",
            format!(
                "{} of width {} in {with} layers, {top_k} of them for each token{}",
                experts.len(),
                experts[0].down.inputs(),
                if shared.is_some() { ", and one for all" } else { "" },
            ),
        )?;
    }
    line("biases", {
        let Layer { mlp, .. } = first;
        // Where some layers attend and some do not, only those may have one.
        let Layer { mixer, .. } =
            layers.iter().find(|it| it.attention().is_some()).unwrap_or(first);
        let (inputs, output) = mixer.projections();
        let mlp = match mlp {
            FeedForward::Mlp(mlp) => mlp,
            FeedForward::Experts(experts) => &experts.experts[0],
        };
        let all = [("q/k/v", &inputs[0]), ("o", output), ("mlp", &mlp.down)];
        let present = all.into_iter().filter(|(_, linear)| linear.bias.is_some());
        let output = config.architecture.output_bias.is_some().then_some("output");
        let present: Vec<_> = present.map(|(name, _)| name).chain(output).collect();
        if present.is_empty() { "none".into() } else { present.join(", ") }
    })?;
    line(
        "vocabulary",
        format!(
            "{} tokens, {}",
            config.vocab_size,
            match config.output() {
                None if config.architecture.is_encoder() => "no output: an encoder",
                None => "no output: it ranks",
                Some(_) if config.tie_word_embeddings => "output tied to the embedding",
                Some(_) => "own output matrix",
            }
        ),
    )?;
    line("context", {
        let windows: Vec<_> = layers.iter().filter_map(|layer| layer.attention()?.window).collect();
        match windows.first() {
            Some(window) => format!(
                "{} tokens; {} of {} layers see {} {window}",
                config.max_position_embeddings,
                windows.len(),
                config.num_hidden_layers,
                if config.architecture.is_encoder() {
                    "on each side less than"
                } else {
                    "the last"
                }
            ),
            None => format!("{} tokens", config.max_position_embeddings),
        }
    })?;
    let rope = config.rope();
    let rotates = |layer: &Layer| layer.attention().is_none_or(|it| it.ropes.is_some());
    if !layers.iter().any(rotates) {
        line("positions", "learned".into())?;
    } else {
        line(
            "rope",
            format!(
                "theta {}, {}{}",
                rope.theta,
                scaling(&rope.scaling),
                match rope.width {
                    width if width < config.head_dim =>
                        format!(", {width} of {} dimensions", config.head_dim),
                    _ => String::new(),
                }
            ),
        )?;
    }
    line("bos, eos", format!("{:?}, {:?}", config.bos_token_id, config.eos_token_ids))?;
    Ok(())
}

/// What files hold.
fn weights(out: &mut Vec<u8>, checkpoint: &Checkpoint) -> Result<()> {
    let types = types(checkpoint);
    writeln!(
        out,
        "{:<12} {} tensors, {}, {} in {} file(s)",
        "weights",
        checkpoint.tensors().len(),
        types.keys().copied().collect::<Vec<_>>().join(" and "),
        size(checkpoint.total_bytes()),
        checkpoint.files().len()
    )?;
    if types.len() > 1 {
        for (dtype, (tensors, bytes)) in types {
            writeln!(out, "{:<12} {dtype}: {tensors} tensors, {}", "", size(bytes))?;
        }
    }
    Ok(())
}

/// How many tensors, and bytes, of each element type there are.
fn types(checkpoint: &Checkpoint) -> BTreeMap<&str, (usize, u64)> {
    let mut types = BTreeMap::new();
    for Listed { dtype, bytes, .. } in checkpoint.tensors() {
        let (tensors, all) = types.entry(dtype).or_insert((0, 0));
        (*tensors, *all) = (*tensors + 1, *all + bytes);
    }
    types
}

fn scaling(scaling: &RopeScaling) -> String {
    match scaling {
        RopeScaling::None => "not scaled".to_owned(),
        RopeScaling::Divided(by) => match by.iter().filter(|by| by.is_finite()).count() {
            all if all == by.len() => "divided by the file's factors".to_owned(),
            some => format!("{some} of {} frequencies", by.len()),
        },
        RopeScaling::Linear { factor } => format!("linear, factor {factor}"),
        RopeScaling::Llama3 { factor, original_max_position_embeddings: original, .. } => {
            format!("llama3, factor {factor} over {original} tokens")
        }
        RopeScaling::Yarn { factor, original_max_position_embeddings: original, .. } => {
            format!("yarn, factor {factor} over {original} tokens")
        }
        RopeScaling::LongRope { original_max_position_embeddings: original, .. } => {
            format!("longrope, other factors beyond {original} tokens (--context asks for more)")
        }
    }
}

fn presence(present: bool) -> String {
    if present { "yes" } else { "none" }.to_owned()
}

fn tensors(out: &mut Vec<u8>, checkpoint: &Checkpoint) -> Result<()> {
    let width = checkpoint.tensors().map(|it| it.name.len()).max().unwrap_or(0);
    for Listed { name, dtype, shape, bytes, .. } in checkpoint.tensors() {
        let shape = format!("{shape:?}");
        writeln!(out, "{name:<width$}  {dtype:<5} {shape:<16} {:>10}", size(bytes))?;
    }
    Ok(())
}

fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

#[cfg(feature = "iree")]
fn module(out: &mut Vec<u8>, path: &Path) -> Result<()> {
    // SAFETY: only the module's own description is read; no function of it is called. The file
    // is the user's, named on the command line.
    let module = unsafe { iree_rt::Module::from_file(path)? };
    writeln!(out, "module @{}", module.name().escape_debug())?;
    for function in module.functions()? {
        let either_way = if function.coarse_fences { "  [async]" } else { "" };
        writeln!(out, "  @{function}{either_way}")?;
    }
    Ok(())
}

#[cfg(not(feature = "iree"))]
fn module(_: &mut Vec<u8>, path: &Path) -> Result<()> {
    bail!("{}: {}", path.display(), crate::engine::WITHOUT_IREE)
}
