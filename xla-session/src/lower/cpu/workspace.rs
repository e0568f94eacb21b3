//! Where everything of a step lies that is neither a weight nor a key nor a value.

use checkpoint::architecture::{FeedForward, Linear};
use checkpoint::config::ModelConfig;
use kernels::{KV_BLOCK, LANES};

/// Numbers in the workspace: rows of so many elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The first byte.
    pub at: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

/// The places of a model's step. The host writes the first ones before a step, and reads the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Most rows of a step.
    pub rows: usize,
    /// Most rows that the head takes at a time.
    pub head_rows: usize,

    /// The token of each row, i32.
    pub tokens: Place,
    /// The row of each row's position in the table of positions, i32, where the model has one.
    pub positions: Place,
    /// Of which text each row is, i32, where the model has a table of these.
    pub texts: Place,
    /// The slot of each row in the KV cache, i32: its page times 64, and its place there.
    pub slots: Place,
    /// For each way to rotate: cosines of each row's position, `[rows, width / 2]` of f32, and sines.
    pub angles: Vec<[Place; 2]>,
    /// Runs of rows of one sequence, `ENTRY` numbers of i32 each.
    pub entries: Place,
    /// Runs of rows of one sequence where layers keep states, not cut as those of attention are: `RUN` numbers of i32
    /// each.
    pub runs: Place,
    /// The rows that the head is for, i32.
    pub wanted: Place,

    /// The residual stream, `[rows, hidden_size]`.
    pub x: Place,
    /// It normed, f32, and in bfloat16 where weights want that.
    pub normed: [Place; 2],
    /// Queries, keys and values, with gates behind them where there are some, or what a convolution reads.
    pub qkv: Place,
    /// What attention or a convolution mixed, as `normed`.
    pub mixed: [Place; 2],
    /// What is added to the residual stream.
    pub sum: Place,
    /// Gate, and beside it up.
    pub gate_up: Place,
    /// What the gate left, as `normed`.
    pub gated: [Place; 2],
    /// What all layers are given of a row, side by side.
    pub inputs: Place,
    /// What is added to the scores of each head, at each distance of two tokens of whole pages; the distance 0 in the middle.
    pub distances: Place,

    /// What meets weights that are integers, bytes.
    pub rounded: Place,

    /// Of models whose attention is latent.
    pub latent: Option<LatentPlaces>,

    /// Of models with experts.
    pub experts: Option<ExpertPlaces>,

    /// Wanted rows normed, as `normed`.
    pub last: [Place; 2],
    /// Logits of the wanted rows, f32, or those by a sketch before; a row is padded to whole blocks.
    pub logits: Place,
    /// Their most likely tokens, i32, or those by a sketch before.
    pub picked: Place,

    /// Bytes in all.
    pub bytes: usize,
}

/// Where rows lie of which queries, keys and values are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatentPlaces {
    /// What a layer's first projections give.
    pub inputs: Place,
    /// A piece of it normed, as [`Workspace::normed`].
    pub normed: [Place; 2],
    /// Queries of all heads; and later what these mixed, of values as wide as keys.
    pub heads: Place,
    /// Keys, without what turns of them, and values, head by head.
    pub keys_values: Place,
}

/// Where rows that go to experts lie: each once for each expert that it chose, its places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertPlaces {
    /// What the router gives, `[rows, experts]`.
    pub logits: Place,
    /// The experts of each row, i32.
    pub chosen: Place,
    /// Their weights.
    pub shares: Place,
    /// Where the places of each expert begin, i32, and where the last ones end.
    pub begins: Place,
    /// How many experts have rows, i32, and which.
    pub active: Place,
    /// The row of each place, i32.
    pub origins: Place,
    /// The expert of each place, i32.
    pub owners: Place,
    /// The places of each row, i32.
    pub slots: Place,
    /// Rows normed, as [`Workspace::normed`].
    pub x: [Place; 2],
    /// Gate, and beside it up.
    pub gate_up: Place,
    /// What the gate left, as `x`.
    pub gated: [Place; 2],
    /// What experts made.
    pub out: Place,
    /// What meets weights that are integers, bytes.
    pub rounded: Place,
    /// What the shared expert made.
    pub shared: Place,
    /// What says how much of it.
    pub shared_gate: Place,
}

/// Numbers of an entry of [`Workspace::entries`]: the first row, how many, the position of the first
/// one, where the sequence's table of pages begins, and how many tokens the sequence has behind the step.
pub const ENTRY: usize = 5;

/// Numbers of a run of [`Workspace::runs`]: the first row, how many, the state that it goes on from or -1, and
/// the one that it leaves.
pub const RUN: usize = 4;

/// Places begin at multiples of this, bytes.
const ALIGNMENT: usize = 64;

impl Workspace {
    /// For steps of `config` with at most `rows` rows, of which the head takes at most `head_rows` at
    /// a time.
    pub fn new(config: &ModelConfig, rows: usize, head_rows: usize) -> Self {
        let mut bytes = 0;
        let mut place = |rows: usize, stride: usize, element: usize| {
            let at = bytes;
            bytes = (at + rows * stride * element).next_multiple_of(ALIGNMENT);
            Place { at, stride }
        };
        let blocks = |columns: usize| columns.next_multiple_of(LANES);
        let hidden = config.hidden_size;
        let layers = &config.architecture.layers;
        let projections = || layers.iter().map(|layer| layer.mixer.projections());
        let latent = layers.iter().find_map(|layer| {
            let attention = layer.attention()?;
            Some((attention, attention.latent.as_deref()?))
        });
        let into = projections().map(|(inputs, _)| inputs.iter().map(Linear::outputs).sum());
        let expanded = latent.map_or(0, |(of, _)| (of.heads + 2 * of.kv_heads) * of.head_dim);
        let into = into.max().unwrap_or(0).max(expanded);
        let mixed = projections().map(|(_, output)| output.inputs()).max().unwrap_or(0);
        let widths = layers.iter().map(|layer| layer.mlp.widths());
        let [wide, of_experts] =
            widths.fold([0; 2], |most, now| [most[0].max(now[0]), most[1].max(now[1])]);
        let experts = layers.iter().find_map(|layer| match &layer.mlp {
            FeedForward::Experts(experts) => Some(&**experts),
            FeedForward::Mlp(_) => None,
        });
        let positions = config.architecture.positions.as_ref();
        let distances = config.architecture.distances.as_ref();
        let of_distances = distances.map_or(0, |it| it.scores.shape[1]);
        let reach = 2 * config.max_position_embeddings.min(rows).next_multiple_of(KV_BLOCK);
        let of_logits = config.output().map_or(0, |_| blocks(config.vocab_size));
        let of_positions = positions.map_or(0, |_| rows);
        let of_texts = config.architecture.texts.as_ref().map_or(0, |_| rows);
        let inputs = config.architecture.layer_inputs.as_ref();
        let inputs = inputs.map_or(0, |inputs| inputs.projection.outputs());
        let given = layers.iter().filter_map(|layer| layer.given.as_ref());
        let wide = given.map(|given| given.gate.outputs()).max().unwrap_or(0).max(wide);
        let ropes = config.architecture.ropes.iter();
        let ranks = || latent.iter().flat_map(|(_, of)| of.matrices().map(Linear::inputs));
        let widest = ranks().fold(hidden.max(mixed).max(wide), usize::max);
        Self {
            rows,
            head_rows,
            tokens: place(rows, 1, 4),
            positions: place(of_positions, 1, 4),
            texts: place(of_texts, 1, 4),
            slots: place(rows, 1, 4),
            angles: ropes.map(|rope| [0; 2].map(|_| place(rows, rope.width / 2, 4))).collect(),
            entries: place(rows, ENTRY, 4),
            runs: place(rows, RUN, 4),
            wanted: place(head_rows, 1, 4),
            picked: place(head_rows, 1, 4),
            x: place(rows, blocks(hidden), 4),
            normed: [place(rows, hidden, 4), place(rows, hidden, 2)],
            qkv: place(rows, blocks(into), 4),
            mixed: [place(rows, mixed, 4), place(rows, mixed, 2)],
            sum: place(rows, blocks(hidden), 4),
            gate_up: place(rows, blocks(2 * wide).max(inputs), 4),
            gated: [place(rows, wide, 4), place(rows, wide, 2)],
            inputs: place(rows, inputs, 4),
            distances: place(of_distances, reach, 4),
            rounded: place(rows, kernels::rounded_bytes(widest), 1),
            latent: latent.map(|(attention, of)| {
                let all = attention.heads * attention.head_dim;
                let inputs = attention.qkv.iter().map(Linear::outputs).sum();
                let rank = ranks().fold(0, usize::max);
                LatentPlaces {
                    inputs: place(rows, blocks(inputs), 4),
                    normed: [place(rows, rank, 4), place(rows, rank, 2)],
                    heads: place(rows, blocks(all), 4),
                    keys_values: place(rows, blocks(of.expand.outputs()), 4),
                }
            }),
            experts: experts.map(|of| {
                let (all, places) = (of.experts.len(), rows * of.top_k);
                ExpertPlaces {
                    logits: place(rows, blocks(all), 4),
                    chosen: place(rows, of.top_k, 4),
                    shares: place(rows, of.top_k, 4),
                    begins: place(1, all + 1, 4),
                    active: place(1, all + 1, 4),
                    origins: place(places, 1, 4),
                    owners: place(places, 1, 4),
                    slots: place(rows, of.top_k, 4),
                    x: [place(places, hidden, 4), place(places, hidden, 2)],
                    gate_up: place(places, 2 * of_experts, 4),
                    gated: [place(places, of_experts, 4), place(places, of_experts, 2)],
                    out: place(places, hidden, 4),
                    rounded: place(places, kernels::rounded_bytes(hidden.max(of_experts)), 1),
                    shared: place(rows, blocks(hidden), 4),
                    shared_gate: place(rows, LANES, 4),
                }
            }),
            last: [place(head_rows, hidden, 4), place(head_rows, hidden, 2)],
            logits: place(head_rows, of_logits, 4),
            bytes,
        }
    }
}
