//! What a model computes, as data: parts that hold their parameters.
//!
//! A [family](crate::families) composes them from its `config.json`; lowerings walk them. Whatever
//! has to know all weights (checks, made-up weights, formats, counts) walks
//! [`Architecture::parameters`], so that a parameter is named once, where its part is made.
//!
//! Parts have what some family of today needs. What a next one brings goes into the part that it
//! changes.

mod latent;
mod module;
mod tables;
mod walk;

pub(crate) use module::Module;

pub use latent::Latent;
pub use tables::{Distances, LayerInputs, Positions, bucket};

pub use crate::rope::{Rope, RopeScaling, RopeTables, Temperature};

/// A decoder, or an [encoder](Self::is_encoder): the order of its fields is that in which a token meets them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Architecture {
    /// A row for each token, `[vocab_size, hidden_size]`.
    pub embedding: Parameter,
    /// What its rows are multiplied with; 1 leaves them.
    pub embedding_scale: f32,
    /// What is added to them, where tokens are not told apart by rotating.
    pub positions: Option<Positions>,
    /// What else is added to them: a row for the text that a token is of, where a model reads two, `[texts, hidden_size]`
    /// (Devlin et al., BERT).
    pub texts: Option<Parameter>,
    /// Of what comes of that, before the first layer.
    pub embedding_norm: Option<Norm>,
    /// What is added to the scores of all layers.
    pub distances: Option<Distances>,
    /// What layers are given of each token beside the residual stream, if they are given something.
    pub layer_inputs: Option<LayerInputs>,
    /// The ways in which layers rotate queries and keys; at least one.
    pub ropes: Vec<Rope>,
    /// At least one.
    pub layers: Vec<Layer>,
    /// Of the residual stream behind the last layer.
    pub norm: Norm,
    /// The model's own projection to logits, `[vocab_size, hidden_size]`; where
    /// [`tie_word_embeddings`](crate::config::ModelConfig::tie_word_embeddings) holds the embedding is
    /// in its place, and a checkpoint need not have it. An encoder has none, nor has what ranks by a layer of its own.
    pub output: Option<Parameter>,
    /// What is added to that, `[vocab_size]`; most have none.
    pub output_bias: Option<Parameter>,
    /// What becomes of that projection.
    pub logits: Logits,
}

/// What logits are: `cap * tanh(scale * product / cap)`, or `scale * product` without a cap, of products with what is
/// [added](Architecture::output_bias). Neither changes which one is the largest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logits {
    /// Above 0; 1 leaves them.
    pub scale: f32,
    /// What they stay below.
    pub cap: Option<f32>,
}

/// `x += s * mixer_norm(mixer(input_norm(x))); x += s * output_norm(mlp(mlp_norm(x)))`, where
/// `s` is `residual_scale`, and a norm that is not there changes nothing; then what `given` adds, and all of it times
/// `scalar`. In parallel the MLP reads the very `input_norm(x)` that the mixer does (Wang & Komatsuzaki, GPT-J).
/// With norms of the stream it is `x = input_norm(x); x += mixer(x); x = mlp_norm(x); x += mlp(x)`: of a model whose norms
/// are behind what was added (Vaswani et al.) each is before what follows.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Before the mixer.
    pub input_norm: Option<Norm>,
    /// Mixes rows of a sequence.
    pub mixer: Mixer,
    /// Behind the mixer.
    pub mixer_norm: Option<Norm>,
    /// Before the MLP; `None` in parallel.
    pub mlp_norm: Option<Norm>,
    /// Changes each row by itself.
    pub mlp: FeedForward,
    /// Behind the MLP.
    pub output_norm: Option<Norm>,
    /// What both are multiplied with where they are added; 1 leaves them.
    pub residual_scale: f32,
    /// Whether mixer and MLP are in parallel.
    pub parallel: bool,
    /// Whether the norms before mixer and MLP are of the residual stream itself, and not of what is read of it.
    pub norms_stream: bool,
    /// What becomes of the layer's part of [`Architecture::layer_inputs`].
    pub given: Option<Given>,
    /// What the residual stream is multiplied with behind all that, `[1]`.
    pub scalar: Option<Parameter>,
}

/// What a layer makes of its part of [`LayerInputs`]: `x += norm(projection(activation(gate(x)) * part))`.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// `[width, hidden_size]`.
    pub gate: Linear,
    /// Of the gate.
    pub activation: Activation,
    /// `[hidden_size, width]`.
    pub projection: Linear,
    /// `[hidden_size]`.
    pub norm: Norm,
}

/// What mixes rows of a sequence; exhaustive, so that every lowering answers for each.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    /// By what they are.
    Attention(Box<Attention>),
    /// By how far they are apart.
    ShortConvolution(Box<ShortConvolution>),
    /// By a state that each of them changes.
    GatedDelta(Box<GatedDelta>),
}

/// Attention: of each row to those before it and itself, or to those behind it too.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// To queries, keys and values, whose outputs lie side by side, `(heads + 2 * kv_heads) * head_dim`
    /// in all: three projections, or one. Where keys are values too, their projection is there twice. To queries
    /// alone where [keys are shared](Self::shared); to what all three are made of where that is [less](Self::latent).
    pub qkv: Vec<Linear>,
    /// What makes them of what `qkv` gives, where that is not they.
    pub latent: Option<Box<Latent>>,
    /// Whether behind each head's query there is a gate as wide, with whose sigmoid the head's output is
    /// multiplied: `[heads, 2, head_dim]` in the place of queries, `2 * (heads + kv_heads) * head_dim` in all.
    pub gated: bool,
    /// The layer before this one whose keys and values it sees, where it makes none of its own: one of as many
    /// heads, as wide, with the same window.
    pub shared: Option<usize>,
    /// Of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// The epsilon of an RMS norm of each head's values, which has no weight.
    pub value_norm: Option<f64>,
    /// Which of [`Architecture::ropes`] rotate queries, and keys; they differ in what they multiply with at most.
    /// `None` leaves both.
    pub ropes: Option<[usize; 2]>,
    /// `[hidden_size, heads * head_dim]`, of fewer columns where values are [narrower](Latent::value_dim).
    pub output: Linear,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// What products of queries and keys are multiplied with.
    pub scale: f32,
    /// What these stay below: they become `cap * tanh(score / cap)`.
    pub cap: Option<f32>,
    /// How many of the latest tokens a row sees, itself included; `None` is all of them.
    pub window: Option<usize>,
    /// Whether it sees tokens behind itself too, within the same window; else it is causal.
    pub both_ways: bool,
    /// A score of each head, `[heads]`, that takes part in the softmax as one of a key without a value
    /// (Xiao et al., attention sinks).
    pub sinks: Option<Parameter>,
}

/// A gated convolution over the latest rows (`modeling_lfm2.py`): `input` gives of each row `b`, `c` and `x`
/// side by side; `output` reads `c` times the sum of `b * x` of the latest rows, each times its tap, column by
/// column. Rows before the first are zero.
///
/// What later rows read of one is its `b * x`. It lies in the KV cache, half of it where keys would and half
/// where values would: it is shared, copied and cut as these are.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConvolution {
    /// `[3 * hidden_size, hidden_size]`.
    pub input: Linear,
    /// `[hidden_size, 1, rows]`, of which the last is of the row itself. An even number of columns.
    pub taps: Parameter,
    /// `[hidden_size, hidden_size]`.
    pub output: Linear,
}

/// Linear attention by the gated delta rule (Yang et al.; `modeling_qwen3_5.py`). Of each value head there is a
/// state, `[key_dim, value_dim]`, zero before the first row, which a row makes less, corrects by what it finds
/// missing of its value at its key, and reads at its query:
/// `S *= exp(-exp(decay) * softplus(a + step)); S += k * sigmoid(b) * (v - S^T k); y = S^T q`. The queries,
/// keys and values are those of a convolution over the latest rows, column by column, through SiLU, rows before
/// the first being zero; of these each head's query and key are divided by their length,
/// `sqrt(sum(x^2) + 1e-6)`, and queries by the root of `key_dim`. What `output` reads is each head's `y`, normed,
/// times SiLU of `z`.
///
/// What later rows read of one is the state, and the latest rows that the convolution read: as much behind many
/// rows as behind one.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedDelta {
    /// To queries, keys, values, `z`, `b` and `a`, whose outputs lie side by side, in each of them head after
    /// head: `2 * key_heads * key_dim + 2 * value_heads * value_dim + 2 * value_heads` in all. Those to `b` and
    /// `a` are small, and decide what becomes of a state: they are never rounded.
    pub inputs: Vec<Linear>,
    /// Of queries, keys and values, `[2 * key_heads * key_dim + value_heads * value_dim, 1, rows]`, of which the
    /// last is of the row itself.
    pub taps: Parameter,
    /// `[value_heads]`: how fast each state becomes less, as a logarithm.
    pub decay: Parameter,
    /// `[value_heads]`: is added to `a`.
    pub step: Parameter,
    /// Of each head of the output by itself, `[value_dim]`.
    pub norm: Norm,
    /// `[hidden_size, value_heads * value_dim]`.
    pub output: Linear,
    /// Heads of queries and keys; divides `value_heads`.
    pub key_heads: usize,
    /// Heads of values, and of states.
    pub value_heads: usize,
    /// Width of a head of queries and keys.
    pub key_dim: usize,
    /// Width of a head of values.
    pub value_dim: usize,
    /// Whether value head `h` meets key head `h % key_heads`, as in GGUF files; else
    /// `h / (value_heads / key_heads)`.
    pub tiled: bool,
}

/// Norms of queries and keys: of each head by itself, `[head_dim]` for all of them, or `[heads, head_dim]` and
/// `[kv_heads, head_dim]` where each has weights of its own; or of all heads of a row together, `[heads * head_dim]` and
/// `[kv_heads * head_dim]`.
#[derive(Debug, Clone, PartialEq)]
pub struct QkNorm {
    /// Of queries.
    pub query: Norm,
    /// Of keys, where the layer makes some; it differs in the weight, and the width, at most.
    pub key: Option<Norm>,
    /// Whether they are of what is rotated; else what they give is rotated.
    pub rotated: bool,
}

/// What changes each row by itself; exhaustive, so that every lowering answers for each.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedForward {
    /// One MLP.
    Mlp(Mlp),
    /// Some of many.
    Experts(Box<Experts>),
}

/// A mixture of experts (Shazeer et al.): of the shares that are made of what the router gives the `top_k`
/// largest say which experts a row goes through, and with which weights they are added up.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// `[experts, hidden_size]`.
    pub router: Linear,
    /// How shares are made of what it gives.
    pub shares: Shares,
    /// All alike, gate and up two projections each, all of which have biases or none; hidden size and
    /// width are multiples of 16.
    pub experts: Vec<Mlp>,
    /// Experts of a row.
    pub top_k: usize,
    /// Of which groups they are; `None` is all of them.
    pub groups: Option<Groups>,
    /// Whether the shares of a row's experts are divided by their sum.
    pub normalised: bool,
    /// What shares are multiplied with then; 1 leaves them.
    pub scale: f32,
    /// One that every row goes through.
    pub shared: Option<SharedExpert>,
}

/// Groups of neighbours among experts, all as large: those of a row are in a few of them (DeepSeek-V2). What is
/// compared of groups is the largest share of one of its experts, where shares are a softmax, and the sum of the two
/// largest ones, with their biases, where they are sigmoids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// How many there are; divides the number of experts.
    pub count: usize,
    /// How many of them a row's experts are in; fewer.
    pub chosen: usize,
}

/// How shares are made of what a router gives; exhaustive, so that every lowering answers for each.
#[derive(Debug, Clone, PartialEq)]
pub enum Shares {
    /// By a softmax of all experts.
    Softmax,
    /// By a sigmoid of each expert (DeepSeek-V3).
    Sigmoid {
        /// What is added to shares where experts are chosen, and only there, `[experts]`.
        bias: Option<Parameter>,
        /// What is added to the sum that shares are divided by.
        floor: f32,
    },
}

/// An expert of all rows, times the sigmoid of a product if there is a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedExpert {
    /// The expert.
    pub mlp: Mlp,
    /// `[1, hidden_size]`.
    pub gate: Option<Linear>,
}

/// `down(activation(gate(x)) * up(x))` (Shazeer, GLU variants), or `down(activation(up(x)))` where there is [no
/// gate](Self::is_gated).
#[derive(Debug, Clone, PartialEq)]
pub struct Mlp {
    /// To gate and up, whose outputs lie side by side, `2 * intermediate_size` in all: two projections,
    /// or one. Where there is no gate, to up alone.
    pub gate_up: Vec<Linear>,
    /// `[hidden_size, intermediate_size]`.
    pub down: Linear,
    /// Of the gate, or of up.
    pub activation: Activation,
    /// The numbers that it has learned, in its order; most have none.
    pub learned: Vec<Parameter>,
}

/// What an MLP's gate goes through, or up; exhaustive, so that every lowering answers for each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, PyTorch's GELU by `tanh`.
    GeluTanh,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`, GELU itself (Hendrycks & Gimpel).
    Gelu,
    /// `x * sigmoid(alpha * x)` of a gate that is at most `limit`; and what it is multiplied with is one more
    /// than up, which stays within `limit` on both sides.
    Clamped {
        /// How steep the sigmoid is.
        alpha: f32,
        /// Above 0.
        limit: f32,
    },
    /// `max(x, 0)^2` (So et al., Primer).
    ReluSquared,
    /// xIELU (Huang & Schlag): `p x^2 + beta x` above 0, else
    /// `n (exp(min(x, epsilon)) - 1 - x) + beta x`. Of the numbers that the MLP has [learned](Mlp::learned), a, b,
    /// beta and epsilon, `p` is `ln(1 + exp(a))` and `n` is `beta + ln(1 + exp(b))`.
    Xielu,
}

/// An RMS norm: `x / rms(x) * (offset + weight) + bias`; a layer norm (Ba et al.) where it is centred, which takes the
/// mean off `x` first.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// `[width]`, or `[heads, width]` of one of several heads, each of which has weights of its own.
    pub weight: Parameter,
    /// What is added to the weight: 0, or 1.
    pub offset: f32,
    /// `[width]`; most have none.
    pub bias: Option<Parameter>,
    /// What keeps the root from zero.
    pub epsilon: f64,
    /// Whether the mean is taken off first.
    pub centred: bool,
}

/// A projection `y = W x + b`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// `W`, `[outputs, inputs]`.
    pub weight: Parameter,
    /// `b`, `[outputs]`.
    pub bias: Option<Parameter>,
}

/// A tensor that the model needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parameter {
    /// Its name in the checkpoint: "model.layers.0.self_attn.q_proj.weight".
    pub name: String,
    /// Its shape: `[outputs, inputs]` for a matrix, `[width]` for a bias or norm.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
}

/// What a parameter is for: how it may be stored, and what values it has before training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A row for each token, position or text.
    Embedding,
    /// Multiplies what a norm has scaled, or the residual stream: ones before training.
    Norm,
    /// A matrix between embedding and output.
    Matrix,
    /// A small matrix that decides: which experts a row goes through, what becomes of a state. It is never
    /// rounded.
    Router,
    /// Taps of a convolution, few beside the matrices: they are never rounded.
    Taps,
    /// Is added to what a matrix gave.
    Bias,
    /// Is beside what queries and keys gave, or added to it.
    Sinks,
    /// How fast a state becomes less, as a logarithm.
    Decay,
    /// A number of an activation: it is never rounded.
    Activation,
    /// The matrix that gives logits.
    Output,
}

impl Architecture {
    /// Whether rows see those behind them too. Then a text is run at once, what is known of its tokens is of no use to a
    /// longer one, and nothing follows: there are vectors of texts, and no logits.
    pub fn is_encoder(&self) -> bool {
        self.layers.iter().filter_map(Layer::attention).any(|attention| attention.both_ways)
    }

    /// Whether there are logits, and so tokens; else hidden states alone.
    pub fn makes_tokens(&self) -> bool {
        self.output.is_some()
    }

    /// Makes an [encoder](Self::is_encoder) of a decoder.
    pub(crate) fn into_encoder(mut self) -> Self {
        for attention in self.layers.iter_mut().filter_map(Layer::attention_mut) {
            attention.both_ways = true;
        }
        (self.output, self.output_bias) = (None, None);
        self
    }
}

impl Mlp {
    /// Whether there is a gate.
    pub fn is_gated(&self) -> bool {
        self.gate_up.iter().map(Linear::outputs).sum::<usize>() == 2 * self.down.inputs()
    }
}

impl Layer {
    /// Its attention, if that is what mixes its rows.
    pub fn attention(&self) -> Option<&Attention> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::ShortConvolution(_) | Mixer::GatedDelta(_) => None,
        }
    }

    pub(crate) fn attention_mut(&mut self) -> Option<&mut Attention> {
        match &mut self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::ShortConvolution(_) | Mixer::GatedDelta(_) => None,
        }
    }

    /// Its linear attention, if that is what mixes its rows.
    pub fn gated_delta(&self) -> Option<&GatedDelta> {
        match &self.mixer {
            Mixer::GatedDelta(of) => Some(of),
            Mixer::Attention(_) | Mixer::ShortConvolution(_) => None,
        }
    }
}

impl Mixer {
    /// Numbers that the KV cache has of each row in the place of its keys, and as many in that of its values.
    pub fn key_width(&self) -> usize {
        match self {
            Self::Attention(attention) => attention.own_kv_heads() * attention.head_dim,
            Self::ShortConvolution(convolution) => convolution.width() / 2,
            Self::GatedDelta(_) => 0,
        }
    }

    /// Numbers that a sequence has of it however long it is: of states, and of the latest rows. They are never
    /// rounded.
    pub fn state(&self) -> Option<[usize; 2]> {
        match self {
            Self::Attention(_) | Self::ShortConvolution(_) => None,
            Self::GatedDelta(of) => {
                Some([of.value_heads * of.key_dim * of.value_dim, (of.rows() - 1) * of.channels()])
            }
        }
    }

    /// Its projections: those of what it reads, whose outputs lie side by side, and the one behind it. Between them
    /// there may be [others](Self::latent).
    pub fn projections(&self) -> (&[Linear], &Linear) {
        match self {
            Self::Attention(attention) => (&attention.qkv, &attention.output),
            Self::ShortConvolution(of) => (std::slice::from_ref(&of.input), &of.output),
            Self::GatedDelta(of) => (&of.inputs, &of.output),
        }
    }

    /// All of them, in the order in which a row meets them.
    pub fn matrices(&self) -> impl Iterator<Item = &Linear> {
        let (inputs, output) = self.projections();
        inputs.iter().chain(self.latent().into_iter().flat_map(Latent::matrices)).chain([output])
    }

    /// What makes queries, keys and values of what its projections give, where that is not they.
    pub fn latent(&self) -> Option<&Latent> {
        match self {
            Self::Attention(attention) => attention.latent.as_deref(),
            Self::ShortConvolution(_) | Self::GatedDelta(_) => None,
        }
    }
}

impl ShortConvolution {
    /// Width of a row.
    pub fn width(&self) -> usize {
        self.output.inputs()
    }

    /// Rows that are seen, the row itself included.
    pub fn rows(&self) -> usize {
        self.taps.shape[2]
    }
}

impl GatedDelta {
    /// Columns that are convolved: queries, keys and values.
    pub fn channels(&self) -> usize {
        self.taps.shape[0]
    }

    /// Rows that the convolution sees, the row itself included.
    pub fn rows(&self) -> usize {
        self.taps.shape[2]
    }
}

impl Attention {
    /// Whether norms of queries and keys have weights of each head.
    pub fn has_norms_of_each_head(&self) -> bool {
        self.qk_norm.as_ref().is_some_and(|it| it.query.is_of_each_head())
    }

    /// Whether its projections give what its heads are made of, and read what these give.
    pub(crate) fn fits(&self) -> bool {
        let Self { heads, head_dim, .. } = *self;
        if self.latent.is_some() {
            return true;
        }
        let gates = if self.gated { heads } else { 0 };
        let all = (heads + gates + 2 * self.own_kv_heads()) * head_dim;
        self.qkv.iter().map(Linear::outputs).sum::<usize>() == all
            && self.output.inputs() == heads * head_dim
    }

    /// Key and value heads that it makes of its rows: none where it sees those of another layer.
    pub fn own_kv_heads(&self) -> usize {
        if self.shared.is_some() { 0 } else { self.kv_heads }
    }
}

impl FeedForward {
    /// Widths of the MLPs that every row goes through, and of those that some do.
    pub fn widths(&self) -> [usize; 2] {
        match self {
            Self::Mlp(mlp) => [mlp.down.inputs(), 0],
            Self::Experts(experts) => {
                let Experts { experts, shared, .. } = &**experts;
                let shared = shared.as_ref().map_or(0, |shared| shared.mlp.down.inputs());
                [shared, experts.first().map_or(0, |mlp| mlp.down.inputs())]
            }
        }
    }
}

impl Shares {
    /// What is added to them where experts are chosen.
    pub fn bias(&self) -> Option<&Parameter> {
        match self {
            Self::Softmax => None,
            Self::Sigmoid { bias, .. } => bias.as_ref(),
        }
    }

    /// What is added to the sum that they are divided by.
    pub fn floor(&self) -> f32 {
        match self {
            Self::Softmax => 0.0,
            Self::Sigmoid { floor, .. } => *floor,
        }
    }
}

impl Linear {
    /// Width of the result.
    pub fn outputs(&self) -> usize {
        self.weight.shape[0]
    }

    /// Width of what it reads.
    pub fn inputs(&self) -> usize {
        self.weight.shape[1]
    }
}

impl Norm {
    /// Width of what it scales.
    pub fn width(&self) -> usize {
        self.weight.shape.last().copied().unwrap_or(1)
    }

    /// Whether each head has weights of its own.
    pub fn is_of_each_head(&self) -> bool {
        self.weight.shape.len() > 1
    }
}

impl Parameter {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of rows: of a vector its elements, of a number 1.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }
}
