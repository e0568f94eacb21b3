//! The functions of a model while they are written: the decoder over the rows of a step, and the head.

use std::collections::BTreeMap;

use checkpoint::architecture::{
    Architecture, FeedForward, Given, Layer, LayerInputs, Linear, Mixer, Mlp, Norm, Parameter,
};
use checkpoint::config::ModelConfig;

use super::program::{Argument, Number, Source};
use super::target::CpuTarget;
use super::workspace::{Place, Workspace};
use crate::emit::builder::{Builder, DYNAMIC, ElementType, Index, TensorType, Value};
use crate::emit::{Format, Layout, WeightFormats, WeightSpec};

/// A function of a step.
pub(super) struct Steps<'a> {
    pub config: &'a ModelConfig,
    pub formats: &'a WeightFormats,
    pub target: &'a CpuTarget,
    pub workspace: &'a Workspace,
    pub b: Builder,
    pub arguments: Vec<Argument>,
    /// The workspace, as it is now.
    pub memory: Value,
    /// Rows of the step, or rows that are wanted.
    pub rows: Index,
    /// Runs of rows of one sequence.
    pub entries: Index,
    /// Runs of rows of one sequence that states are kept of.
    pub runs: Index,
    /// The pages of layers that some call has updated, as they are now.
    pub updated: BTreeMap<usize, [Value; 2]>,
}

/// A weight matrix of the graph.
#[derive(Clone)]
pub(super) struct Matrix {
    pub weights: Value,
    /// Where blocks begin, if they are compressed.
    pub offsets: Option<Value>,
    pub parts: Vec<(String, usize)>,
    /// How it is stored, and what meets it.
    pub format: Format,
    pub rows: usize,
    pub columns: usize,
}

impl Matrix {
    /// What kernels take for where blocks begin: those of plain ones do not look.
    pub fn offsets_or_weights(&self) -> &Value {
        self.offsets.as_ref().unwrap_or(&self.weights)
    }

    /// The symbol of the kernel `what` for such a matrix.
    pub fn symbol(&self, what: &str) -> String {
        let compressed = if self.offsets.is_some() { "compressed_" } else { "" };
        format!("{compressed}{what}_{}", self.format.as_str())
    }
}

impl<'a> Steps<'a> {
    pub fn new(
        config: &'a ModelConfig,
        formats: &'a WeightFormats,
        target: &'a CpuTarget,
        workspace: &'a Workspace,
    ) -> Self {
        let memory = Value { name: String::new(), ty: TensorType::new(&[], ElementType::I8) };
        let mut steps = Self {
            config,
            formats,
            target,
            workspace,
            b: Builder::default(),
            arguments: Vec::new(),
            memory,
            rows: 1.into(),
            entries: 1.into(),
            runs: 1.into(),
            updated: BTreeMap::new(),
        };
        steps.memory = steps.argument(Source::Workspace, workspace.bytes);
        steps.rows = steps.number(Number::Rows);
        steps
    }

    /// The decoder: from the tokens of a step to the residual stream behind the last layer.
    pub fn body(&mut self) {
        let config = self.config;
        let places = self.workspace.clone();
        self.entries = self.number(Number::Entries);
        if config.architecture.layers.iter().any(|layer| layer.mixer.state().is_some()) {
            self.runs = self.number(Number::Runs);
        }
        let Architecture { embedding, embedding_scale, positions, layer_inputs, .. } =
            &config.architecture;
        let Architecture { texts, embedding_norm, distances, .. } = &config.architecture;
        self.embed(embedding, *embedding_scale, (places.tokens, places.x));
        if let Some(positions) = positions {
            self.add_rows(&positions.embedding, places.positions);
        }
        if let Some(texts) = texts {
            self.add_rows(texts, places.texts);
        }
        if let Some(norm) = embedding_norm {
            self.norm_stream(norm);
        }
        if let Some(distances) = distances {
            self.spread(distances);
        }
        if let Some(inputs) = layer_inputs {
            self.layer_inputs(inputs);
        }
        for (index, layer) in config.architecture.layers.iter().enumerate() {
            let Layer { input_norm, mixer, mixer_norm, mlp_norm, mlp, output_norm, .. } = layer;
            let &Layer { residual_scale: scale, parallel, norms_stream, .. } = layer;

            let (inputs, output) = mixer.projections();
            let mut format = self.format_for(inputs);
            let of_mlp = self.mlp_format(mlp);
            if parallel && of_mlp == Format::Bf16Rounded {
                format = of_mlp;
            }
            self.normed(input_norm.as_ref(), norms_stream, format);
            let to = match (mixer.latent(), &places.latent) {
                (Some(_), Some(latent)) => latent.inputs,
                _ => places.qkv,
            };
            self.linears(&inputs.iter().collect::<Vec<_>>(), places.normed, to, None);
            let format = self.format_of([&output.weight]);
            match mixer {
                Mixer::Attention(attention) => {
                    self.attend(index, attention, format);
                }
                Mixer::ShortConvolution(convolution) => self.convolve(index, convolution, format),
                Mixer::GatedDelta(of) => self.gated_delta(index, of, format),
            }
            self.add(output, places.mixed, (mixer_norm.as_ref(), scale));

            // In parallel the rows that the mixer has read are still there.
            if !parallel {
                self.normed(mlp_norm.as_ref(), norms_stream, of_mlp);
            }
            match mlp {
                FeedForward::Mlp(mlp) => {
                    let residual = (output_norm.as_ref(), scale);
                    self.mlp_of_all(mlp, places.sum, Some(residual));
                }
                FeedForward::Experts(experts) => {
                    debug_assert!(output_norm.is_none(), "no family has both");
                    self.experts(experts, scale);
                }
            }
            if let Some(given) = &layer.given {
                self.given(index, given);
            }
            if let Some(scalar) = &layer.scalar {
                self.scale_by(scalar, places.x, config.hidden_size);
            }
        }
    }

    /// The format of what rows meet first of an MLP.
    fn mlp_format(&self, mlp: &FeedForward) -> Format {
        match mlp {
            FeedForward::Mlp(mlp) => self.format_for(&mlp.gate_up),
            FeedForward::Experts(experts) => self.experts_format(experts),
        }
    }

    /// What all layers are given of all rows.
    fn layer_inputs(&mut self, of: &LayerInputs) {
        let LayerInputs { embedding, scale, projection, norm } = of;
        let places = self.workspace.clone();
        let (all, width) = (projection.outputs(), of.width());
        self.embed(embedding, *scale, (places.tokens, places.inputs));
        self.normed(None, false, self.format_of([&projection.weight]));
        let projected = Place { stride: all, ..places.gate_up };
        self.linears(&[projection], places.normed, projected, None);
        // The parts of all layers are rows: both places are as wide as these are.
        let parts = self.b.index_mul(&self.rows.clone(), all / width);
        let [from, to] = [projected, places.inputs].map(|it| Place { stride: width, ..it });
        self.add_normed(norm, &parts, from, to);
    }

    /// What layer `index` makes of its part of these, added to the residual stream.
    fn given(&mut self, index: usize, given: &Given) {
        let Given { gate, activation, projection, norm } = given;
        let places = self.workspace.clone();
        let (rows, width) = (self.rows.clone(), gate.outputs());
        self.normed(None, false, self.format_of([&gate.weight]));
        self.linears(&[gate], places.normed, places.gate_up, None);
        let at = places.inputs.at + index * width * size_of::<f32>();
        let part = Place { at, ..places.inputs };
        let format = self.format_of([&projection.weight]);
        let gate = (places.gate_up, Some(part));
        self.gate((*activation, &[]), &rows, gate, places.gated, width, format);
        self.add(projection, places.gated, (Some(norm), 1.0));
    }

    /// What an MLP makes of all rows, which are normed: added to the residual stream as `residual` says,
    /// or at `to`.
    pub(super) fn mlp_of_all(
        &mut self,
        mlp: &Mlp,
        to: Place,
        residual: Option<(Option<&Norm>, f32)>,
    ) {
        let Mlp { gate_up, down, activation, learned } = mlp;
        let places = self.workspace.clone();
        let (rows, gated) = (self.rows.clone(), places.gated);
        self.linears(&gate_up.iter().collect::<Vec<_>>(), places.normed, places.gate_up, None);
        let format = self.format_of([&down.weight]);
        let (gate, columns) = (places.gate_up, down.inputs());
        let up = Place { at: gate.at + columns * size_of::<f32>(), ..gate };
        let gate = (gate, mlp.is_gated().then_some(up));
        self.gate((*activation, learned), &rows, gate, gated, columns, format);
        match residual {
            Some(residual) => self.add(down, gated, residual),
            None => self.linears(&[down], gated, to, None),
        }
    }

    /// Adds a projection of all rows at `x`, normed if there is a norm, times a number, to the residual
    /// stream.
    fn add(&mut self, linear: &Linear, x: [Place; 2], (norm, scale): (Option<&Norm>, f32)) {
        let (sum, stream) = (self.workspace.sum, self.workspace.x);
        match norm {
            None => self.linears(&[linear], x, sum, Some((stream, scale))),
            Some(norm) => {
                debug_assert_eq!(scale, 1.0, "no family has both");
                self.linears(&[linear], x, sum, None);
                let rows = self.rows.clone();
                self.add_normed(norm, &rows, sum, stream);
            }
        }
    }

    /// The format as which `linears`, side by side, take rows: rounded ones too, if one of them does.
    fn format_for(&self, linears: &[Linear]) -> Format {
        let rounded = weights(linears).any(|it| self.format_of([it]) == Format::Bf16Rounded);
        if rounded { Format::Bf16Rounded } else { self.format_of(weights(linears)) }
    }

    /// The format of a matrix that joins `parts`.
    pub fn format_of<'p>(&self, parts: impl IntoIterator<Item = &'p Parameter>) -> Format {
        self.formats.of(parts.into_iter().map(|part| part.name.as_str()))
    }

    /// A weight matrix joined from `parts`, which have as many columns; packed floats are compressed
    /// where that is possible.
    pub fn matrix<'p>(
        &mut self,
        parts: impl IntoIterator<Item = &'p Parameter> + Clone,
        layout: Layout,
    ) -> Matrix {
        let format = self.format_of(parts.clone());
        let (parts, columns) = joined(parts);
        let layout = match layout {
            Layout::Packed { lanes }
                if self.target.compresses() && format.is_compressible(columns) =>
            {
                Layout::Compressed { lanes }
            }
            other => other,
        };
        let spec = WeightSpec { parts: parts.clone(), columns, format: format.stored(), layout };
        let weights = self.weight(&spec, 0);
        let offsets = spec.blocks().map(|_| self.weight(&spec, 1));
        Matrix { weights, offsets, parts, format, rows: spec.rows(), columns }
    }

    /// Vectors one behind the other, widened to f32 on upload: norms and biases are small.
    pub fn vector<'p>(&mut self, parts: impl IntoIterator<Item = &'p Parameter>) -> Value {
        let (parts, _) = joined(parts);
        let spec = WeightSpec { parts, columns: 0, format: Format::F32, layout: Layout::Rows };
        self.weight(&spec, 0)
    }

    /// A plane of a weight.
    pub fn weight(&mut self, spec: &WeightSpec, plane: usize) -> Value {
        let ty = &spec.planes()[plane];
        let bytes = if ty.dims.contains(&DYNAMIC) { DYNAMIC } else { ty.bytes() };
        self.argument(Source::Weight(spec.clone(), plane), bytes)
    }

    /// The pages of a layer's keys and values, as the calls before have left them.
    pub fn pages(&mut self, layer: usize) -> [Value; 2] {
        let of = [Source::Keys(layer), Source::Values(layer)];
        let found = self.updated.get(&layer).cloned();
        found.unwrap_or_else(|| of.map(|source| self.argument(source, DYNAMIC)))
    }

    /// The tables of pages.
    pub fn tables(&mut self) -> Value {
        self.argument(Source::Tables, DYNAMIC)
    }

    /// The memory that `source` says, added at first use.
    fn argument(&mut self, source: Source, bytes: usize) -> Value {
        let at = self.place(Argument { source, bytes });
        Value { name: format!("%memory{at}"), ty: TensorType::new(&[bytes], ElementType::I8) }
    }

    /// What calls are told.
    pub fn number(&mut self, number: Number) -> Index {
        let at = self.place(Argument { source: Source::Number(number), bytes: 4 });
        self.b.index_cast(&format!("%number{at}"))
    }

    fn place(&mut self, argument: Argument) -> usize {
        let found = self.arguments.iter().position(|it| it.source == argument.source);
        found.unwrap_or_else(|| {
            self.arguments.push(argument);
            self.arguments.len() - 1
        })
    }
}

/// The names of `parts` and how many rows each has, and how many columns all of them have.
fn joined<'p>(parts: impl IntoIterator<Item = &'p Parameter>) -> (Vec<(String, usize)>, usize) {
    let mut columns = 0;
    let part = |part: &Parameter| {
        columns = part.shape.get(1).copied().unwrap_or(0);
        (part.name.clone(), part.rows())
    };
    (parts.into_iter().map(part).collect(), columns)
}

/// The weights of `linears`.
fn weights(linears: &[Linear]) -> impl Iterator<Item = &Parameter> {
    linears.iter().map(|linear| &linear.weight)
}
