//! A layer in f32, as transformers computes it. What multiplies is the caller's: it sees what every
//! projection reads, and may have other weights in its place.

use std::ops::Range;

use checkpoint::architecture::{
    Activation, Architecture, Attention, FeedForward, GatedDelta, Layer, Linear, Mixer, Mlp, Norm,
    Parameter, Rope, RopeTables, ShortConvolution,
};
use ndarray::linalg::general_mat_mul;
use rayon::prelude::*;

use crate::rows::{Rows, joined};
use crate::{Error, Result};

/// Who has the weights of a layer.
pub(crate) trait Weights {
    /// A vector: a norm, a bias, sinks.
    fn vector(&mut self, parameter: &Parameter) -> Result<Vec<f32>>;

    /// `x` times each of `linears`, side by side, without biases.
    fn products(&mut self, linears: &[&Linear], x: &Rows) -> Result<Rows>;
}

/// Texts, one after the other, that do not see each other.
#[derive(Debug, Clone)]
pub(crate) struct Contexts {
    /// The rows of each.
    pub rows: Vec<Range<usize>>,
    /// Of positions up to the longest, for each way to rotate.
    tables: Vec<RopeTables>,
}

impl Contexts {
    /// Of these lengths, in tokens.
    pub fn new(lengths: impl Iterator<Item = usize>, ropes: &[Rope]) -> Self {
        let mut end = 0;
        let rows: Vec<_> = lengths
            .map(|length| {
                end += length;
                end - length..end
            })
            .collect();
        let longest = rows.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        Self { rows, tables: ropes.iter().map(|rope| rope.tables(0..longest)).collect() }
    }
}

/// Adds to the residual stream `x` what `layer` makes of it.
pub(crate) fn layer(
    layer: &Layer,
    ropes: &[Rope],
    contexts: &Contexts,
    weights: &mut impl Weights,
    x: &mut Rows,
) -> Result<()> {
    let Layer { input_norm, mixer, mixer_norm, mlp_norm, mlp, output_norm, .. } = layer;
    // No rows are kept for longer than somebody reads them: there is one for each token of all texts.
    let normed = norm(input_norm.as_ref(), weights, x.clone())?;
    let mut of_both = layer.parallel.then(|| normed.clone());
    let mixed = match mixer {
        Mixer::Attention(attention) => attend(attention, ropes, contexts, weights, normed)?,
        Mixer::ShortConvolution(convolution) => convolve(convolution, contexts, weights, normed)?,
        Mixer::GatedDelta(delta) => remember(delta, contexts, weights, normed)?,
    };
    let out = linear(&[mixer.projections().1], weights, &mixed)?;
    drop(mixed);
    let out = norm(mixer_norm.as_ref(), weights, out)?;
    add(x, &out, layer.residual_scale);
    drop(out);

    let FeedForward::Mlp(mlp) = mlp else { return Err(experts()) };
    let normed = match of_both.take() {
        Some(normed) => normed,
        None => norm(mlp_norm.as_ref(), weights, x.clone())?,
    };
    let gate_up = linear(&mlp.gate_up.iter().collect::<Vec<_>>(), weights, &normed)?;
    drop(normed);
    let learned: Result<Vec<_>> = mlp.learned.iter().map(|it| weights.vector(it)).collect();
    let gated = gated(mlp, &learned?.concat(), gate_up);
    let out = linear(&[&mlp.down], weights, &gated)?;
    drop(gated);
    let out = norm(output_norm.as_ref(), weights, out)?;
    add(x, &out, layer.residual_scale);
    Ok(())
}

/// Whether the layers of a model are computed here, else why not.
pub(crate) fn supports(architecture: &Architecture) -> Result<()> {
    let layers = &architecture.layers;
    let exact = |layer: &Layer| match &layer.mlp {
        FeedForward::Mlp(mlp) => mlp.activation == Activation::Gelu,
        FeedForward::Experts(_) => false,
    };
    if architecture.is_encoder() || layers.iter().any(exact) {
        let what = "encoders, and layers of GELU by erf, are not rounded by a text yet; use --precision int4";
        return Err(Error::Unsupported { what: what.into() });
    }
    if layers.iter().any(|layer| matches!(layer.mlp, FeedForward::Experts(_))) {
        return Err(experts());
    }
    if layers.iter().any(|layer| layer.mixer.latent().is_some()) {
        let what = "layers of latent attention are not rounded by a text yet; use --precision int4";
        return Err(Error::Unsupported { what: what.into() });
    }
    let of_gemma4 = |layer: &Layer| {
        let shared = |it: &Attention| it.shared.is_some() || it.value_norm.is_some();
        layer.given.is_some() || layer.scalar.is_some() || layer.attention().is_some_and(shared)
    };
    if layers.iter().any(of_gemma4) {
        let what = "layers as Gemma 4 has them are not rounded by a text yet; use --precision int4";
        return Err(Error::Unsupported { what: what.into() });
    }
    Ok(())
}

/// What is said of models whose layers are not dense.
fn experts() -> Error {
    let what = "mixtures of experts are not rounded by a text yet: most experts of a layer would read \
                too few of its tokens; use --precision int4";
    Error::Unsupported { what: what.into() }
}

fn add(x: &mut Rows, more: &Rows, scale: f32) {
    for (x, more) in x.values.iter_mut().zip(&more.values) {
        *x += scale * more;
    }
}

/// `x` through a norm, if there is one.
fn norm(norm: Option<&Norm>, weights: &mut impl Weights, mut x: Rows) -> Result<Rows> {
    if let Some(norm) = norm {
        let weight = scales(norm, weights)?;
        let bias = norm.bias.as_ref().map(|bias| weights.vector(bias)).transpose()?;
        let width = x.width;
        x.values.par_chunks_mut(width).for_each(|row| {
            normalise(row, &weight, norm);
            let biases = bias.iter().flatten();
            row.iter_mut().zip(biases).for_each(|(x, bias)| *x += bias);
        });
    }
    Ok(x)
}

/// What a norm multiplies with.
fn scales(norm: &Norm, weights: &mut impl Weights) -> Result<Vec<f32>> {
    let mut weight = weights.vector(&norm.weight)?;
    weight.iter_mut().for_each(|weight| *weight += norm.offset);
    Ok(weight)
}

fn normalise(row: &mut [f32], weight: &[f32], norm: &Norm) {
    if norm.centred {
        let sum: f64 = row.iter().map(|x| f64::from(*x)).sum();
        let mean = (sum / row.len() as f64) as f32;
        row.iter_mut().for_each(|x| *x -= mean);
    }
    let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
    let factor = 1.0 / (squares / row.len() as f64 + norm.epsilon).sqrt();
    for (x, weight) in row.iter_mut().zip(weight) {
        *x = *x * factor as f32 * weight;
    }
}

/// `x` times some matrices, and their biases.
fn linear(linears: &[&Linear], weights: &mut impl Weights, x: &Rows) -> Result<Rows> {
    let mut out = weights.products(linears, x)?;
    let mut first = 0;
    for linear in linears {
        if let Some(bias) = &linear.bias {
            let bias = weights.vector(bias)?;
            for row in out.values.chunks_exact_mut(out.width) {
                row[first..].iter_mut().zip(&bias).for_each(|(x, bias)| *x += bias);
            }
        }
        first += linear.outputs();
    }
    Ok(out)
}

/// `activation(gate) * up` of gate and up side by side, or `activation(up)`, of an activation that has learned
/// some numbers.
fn gated(mlp: &Mlp, learned: &[f32], mut gate_up: Rows) -> Rows {
    match mlp.activation {
        Activation::ReluSquared => {
            gate_up.values.iter_mut().for_each(|x| *x *= x.max(0.0));
            return gate_up;
        }
        Activation::Xielu => {
            let &[a, b, beta, epsilon] = learned else { unreachable!("it learns four numbers") };
            let soft = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
            let (positive, negative) = (soft(a), beta + soft(b));
            gate_up.values.par_iter_mut().for_each(|x| {
                let below = negative * (x.min(epsilon).exp_m1() - *x);
                *x = beta * *x + if *x > 0.0 { positive * *x * *x } else { below };
            });
            return gate_up;
        }
        Activation::Silu | Activation::GeluTanh | Activation::Gelu | Activation::Clamped { .. } => {
        }
    }
    let wide = mlp.down.inputs();
    let gate = |x: f32, up: f32| match mlp.activation {
        Activation::Silu => x / (1.0 + (-x).exp()) * up,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh()) * up
        }
        Activation::Gelu => unreachable!("refused before"),
        Activation::Clamped { alpha, limit } => {
            let x = x.min(limit);
            x / (1.0 + (-alpha * x).exp()) * (up.clamp(-limit, limit) + 1.0)
        }
        Activation::ReluSquared | Activation::Xielu => unreachable!("they have no gate"),
    };
    if !mlp.is_gated() {
        gate_up.values.par_iter_mut().for_each(|x| *x = gate(*x, 1.0));
        return gate_up;
    }
    let mut out = Rows::zero(gate_up.len(), wide);
    let rows = gate_up.values.par_chunks(gate_up.width);
    out.values.par_chunks_mut(wide).zip(rows).for_each(|(out, row)| {
        let (gates, ups) = row.split_at(wide);
        for (out, (x, up)) in out.iter_mut().zip(gates.iter().zip(ups)) {
            *out = gate(*x, *up);
        }
    });
    out
}

/// What the heads of all rows mix of the values before them, `[rows, heads * head_dim]`.
fn attend(
    attention: &Attention,
    ropes: &[Rope],
    contexts: &Contexts,
    weights: &mut impl Weights,
    x: Rows,
) -> Result<Rows> {
    let &Attention { heads, kv_heads, head_dim, .. } = attention;
    let qkv = linear(&attention.qkv.iter().collect::<Vec<_>>(), weights, &x)?;
    drop(x);
    let (width, keys_width) = (heads * head_dim, kv_heads * head_dim);
    let wide = if attention.gated { 2 * width } else { width };
    let mut queries = qkv.columns(0, wide);
    let gates = attention.gated.then(|| {
        let pairs = std::mem::replace(&mut queries, Rows::zero(0, width)).values;
        let [of_queries, of_gates] = [0, head_dim].map(|first| {
            let heads = pairs.chunks_exact(2 * head_dim).map(|pair| &pair[first..][..head_dim]);
            Rows::new(width, heads.flatten().copied().collect())
        });
        queries = of_queries;
        of_gates
    });
    let mut keys = qkv.columns(wide, keys_width);
    let values = qkv.columns(wide + keys_width, keys_width);
    drop(qkv);
    let turn = |[queries, keys]: [&mut Rows; 2]| {
        if let Some(of) = attention.ropes {
            for (rope, rows) in of.into_iter().zip([queries, keys]) {
                rotate(&ropes[rope], &contexts.tables[rope], contexts, head_dim, rows);
            }
        }
    };
    let rotated = attention.qk_norm.as_ref().is_some_and(|it| it.rotated);
    if rotated {
        turn([&mut queries, &mut keys]);
    }
    if let Some(norms) = &attention.qk_norm {
        let of_keys = norms.key.as_ref().map(|key| (key, &mut keys));
        for (norm, rows) in [(&norms.query, &mut queries)].into_iter().chain(of_keys) {
            let weight = scales(norm, weights)?;
            // Of each head by itself, or of all together.
            let heads = weight.len() / norm.width();
            let all = rows.values.par_chunks_mut(norm.width()).enumerate();
            all.for_each(|(at, row)| {
                normalise(row, &weight[at % heads * norm.width()..], norm);
            });
        }
    }
    if !rotated {
        turn([&mut queries, &mut keys]);
    }
    let sinks = match &attention.sinks {
        Some(sinks) => Some(weights.vector(sinks)?),
        None => None,
    };
    let work: Vec<_> = contexts
        .rows
        .iter()
        .flat_map(|rows| (0..heads).map(move |head| (rows.clone(), head)))
        .collect();
    let mixed: Vec<Rows> = work
        .par_iter()
        .map(|(rows, head)| {
            let kv_head = head / (heads / kv_heads);
            let of = |from: &Rows, head: usize| {
                let first = rows.start * from.width;
                let values = from.values[first..first + rows.len() * from.width].to_vec();
                Rows::new(from.width, values).columns(head * head_dim, head_dim)
            };
            let sink = sinks.as_ref().map(|sinks| sinks[*head]);
            mix(attention, &of(&queries, *head), &of(&keys, kv_head), &of(&values, kv_head), sink)
        })
        .collect();
    let texts = mixed.chunks(heads).map(joined);
    let mut mixed = Rows::new(width, texts.flat_map(|text| text.values).collect());
    if let Some(gates) = gates {
        mixed.values.iter_mut().zip(gates.values).for_each(|(x, gate)| *x *= sigmoid(gate));
    }
    Ok(mixed)
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Of all rows the gated sum of those before them, `[rows, hidden_size]`.
fn convolve(
    convolution: &ShortConvolution,
    contexts: &Contexts,
    weights: &mut impl Weights,
    x: Rows,
) -> Result<Rows> {
    let (width, seen) = (convolution.width(), convolution.rows());
    let bcx = linear(&[&convolution.input], weights, &x)?;
    drop(x);
    let taps = weights.vector(&convolution.taps)?;
    let mut out = Rows::zero(bcx.len(), width);
    for context in &contexts.rows {
        for row in context.clone() {
            let earliest = context.start.max((row + 1).saturating_sub(seen));
            let c = &bcx.row(row)[width..2 * width];
            for (column, out) in out.values[row * width..][..width].iter_mut().enumerate() {
                let term = |at: usize| {
                    let of = bcx.row(at);
                    taps[column * seen + seen - 1 - (row - at)]
                        * of[column]
                        * of[2 * width + column]
                };
                *out = c[column] * (earliest..=row).map(term).sum::<f32>();
            }
        }
    }
    Ok(out)
}

/// Of all rows what the states of linear attention say of them, `[rows, value_heads * value_dim]`.
fn remember(
    delta: &GatedDelta,
    contexts: &Contexts,
    weights: &mut impl Weights,
    x: Rows,
) -> Result<Rows> {
    let &GatedDelta { key_heads, value_heads, value_dim, .. } = delta;
    let (channels, seen) = (delta.channels(), delta.rows());
    let width = value_heads * value_dim;
    let all = linear(&delta.inputs.iter().collect::<Vec<_>>(), weights, &x)?;
    drop(x);
    let taps = weights.vector(&delta.taps)?;
    let decay = weights.vector(&delta.decay)?;
    let step = weights.vector(&delta.step)?;
    let scales = scales(&delta.norm, weights)?;
    let mut convolved = Rows::zero(all.len(), channels);
    for context in &contexts.rows {
        for row in context.clone() {
            let earliest = context.start.max((row + 1).saturating_sub(seen));
            let out = &mut convolved.values[row * channels..][..channels];
            for (column, out) in out.iter_mut().enumerate() {
                let term =
                    |at: usize| taps[column * seen + seen - 1 - (row - at)] * all.row(at)[column];
                let sum: f32 = (earliest..=row).map(term).sum();
                *out = sum * sigmoid(sum);
            }
        }
    }
    let work: Vec<_> = contexts
        .rows
        .iter()
        .flat_map(|rows| (0..value_heads).map(move |head| (rows.clone(), head)))
        .collect();
    let heads: Vec<Rows> = work
        .par_iter()
        .map(|(rows, head)| {
            let key_head = match delta.tiled {
                true => head % key_heads,
                false => head / (value_heads / key_heads),
            };
            let of = |row: usize| {
                let z = &all.row(row)[channels + head * value_dim..][..value_dim];
                let [b, a] = [0, value_heads].map(|at| all.row(row)[channels + width + at + head]);
                let factor = (-decay[*head].exp() * softplus(a + step[*head])).exp();
                (convolved.row(row), z, sigmoid(b), factor)
            };
            let mut out = recall(delta, *head, key_head, rows.clone().map(of));
            for (at, y) in rows.clone().zip(out.values.chunks_exact_mut(value_dim)) {
                normalise(y, &scales, &delta.norm);
                let (_, z, ..) = of(at);
                y.iter_mut().zip(z).for_each(|(y, z)| *y *= z * sigmoid(*z));
            }
            out
        })
        .collect();
    let texts = heads.chunks(value_heads).map(joined);
    Ok(Rows::new(width, texts.flat_map(|text| text.values).collect()))
}

/// One head of one text: of each row what its state gives; a row is what was convolved, `z`, how much of the
/// state is corrected, and how much of it stays.
fn recall<'a>(
    delta: &GatedDelta,
    head: usize,
    key_head: usize,
    rows: impl Iterator<Item = (&'a [f32], &'a [f32], f32, f32)>,
) -> Rows {
    let &GatedDelta { key_heads, key_dim, value_dim, .. } = delta;
    // Of each dimension of a key the values.
    let mut state = Rows::zero(key_dim, value_dim);
    let mut out = Vec::new();
    for (convolved, _, part, factor) in rows {
        let unit = |first: usize, scale: f32| {
            let x = &convolved[first..][..key_dim];
            let squares: f32 = x.iter().map(|x| x * x).sum();
            let by = scale / (squares + 1e-6).sqrt();
            x.iter().map(|x| x * by).collect::<Vec<_>>()
        };
        let query = unit(key_head * key_dim, 1.0 / (key_dim as f32).sqrt());
        let key = unit((key_heads + key_head) * key_dim, 1.0);
        let value = &convolved[2 * key_heads * key_dim + head * value_dim..][..value_dim];
        state.values.iter_mut().for_each(|x| *x *= factor);
        let missing = state.read(&key);
        let missing: Vec<_> =
            value.iter().zip(missing).map(|(v, known)| part * (v - known)).collect();
        for (values, key) in state.values.chunks_exact_mut(value_dim).zip(&key) {
            values.iter_mut().zip(&missing).for_each(|(x, missing)| *x += key * missing);
        }
        out.extend(state.read(&query));
    }
    Rows::new(value_dim, out)
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// One head of one text: softmax of the scores of the keys that a row sees, times their values.
fn mix(
    attention: &Attention,
    queries: &Rows,
    keys: &Rows,
    values: &Rows,
    sink: Option<f32>,
) -> Rows {
    let rows = queries.len();
    let mut scores = Rows::zero(rows, rows);
    let keys = keys.view();
    let to = &mut scores.view_mut();
    general_mat_mul(attention.scale, &queries.view(), &keys.t(), 0.0, to);
    for (row, scores) in scores.values.chunks_exact_mut(rows).enumerate() {
        let first = attention.window.map_or(0, |window| (row + 1).saturating_sub(window));
        let (seen, later) = scores.split_at_mut(row + 1);
        later.fill(0.0);
        let (earlier, seen) = seen.split_at_mut(first);
        earlier.fill(0.0);
        if let Some(cap) = attention.cap {
            seen.iter_mut().for_each(|score| *score = cap * (*score / cap).tanh());
        }
        let most = seen.iter().copied().fold(sink.unwrap_or(f32::NEG_INFINITY), f32::max);
        let mut sum = sink.map_or(0.0, |sink| (sink - most).exp());
        for score in &mut *seen {
            *score = (*score - most).exp();
            sum += *score;
        }
        seen.iter_mut().for_each(|score| *score /= sum);
    }
    let mut mixed = Rows::zero(rows, values.width);
    general_mat_mul(1.0, &scores.view(), &values.view(), 0.0, &mut mixed.view_mut());
    mixed
}

/// Rotates every head of every row by its position.
fn rotate(rope: &Rope, tables: &RopeTables, contexts: &Contexts, head_dim: usize, rows: &mut Rows) {
    let pairs = rope.width / 2;
    for context in &contexts.rows {
        for (position, row) in context.clone().enumerate() {
            let cos = &tables.cos[position * pairs..][..pairs];
            let sin = &tables.sin[position * pairs..][..pairs];
            let row = &mut rows.values[row * rows.width..][..rows.width];
            for head in row.chunks_exact_mut(head_dim) {
                for i in 0..pairs {
                    let [a, b] = if rope.interleaved { [2 * i, 2 * i + 1] } else { [i, i + pairs] };
                    let (x, y) = (head[a], head[b]);
                    head[a] = x * cos[i] - y * sin[i];
                    head[b] = y * cos[i] + x * sin[i];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use checkpoint::{Conversion, ConvertOptions, Float};
    use serde_json::Value;

    use super::*;

    struct Own<'a>(&'a Conversion);

    impl Weights for Own<'_> {
        fn vector(&mut self, parameter: &Parameter) -> Result<Vec<f32>> {
            Ok(self.0.values(parameter)?)
        }

        fn products(&mut self, linears: &[&Linear], x: &Rows) -> Result<Rows> {
            let of = |it: &&Linear| {
                let weights = Rows::new(it.inputs(), self.0.values(&it.weight).unwrap());
                x.times(&weights)
            };
            Ok(joined(&linears.iter().map(of).collect::<Vec<_>>()))
        }
    }

    /// Every token that transformers chose, of two texts of a model that do not see each other.
    fn check(folder: &Path) {
        let model = Conversion::open(folder, ConvertOptions::new(Float::BF16)).unwrap();
        let config = model.config().clone().with_context(None);
        let architecture = &config.architecture;
        let reference = std::fs::read(folder.join("reference.json")).unwrap();
        let reference: Value = serde_json::from_slice(&reference).unwrap();
        let ids = |of: &Value| -> Vec<usize> {
            of.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as usize).collect()
        };
        let cases: Vec<_> = reference["cases"].as_array().unwrap()[..2]
            .iter()
            .map(|case| (ids(&case["prompt"]), ids(&case["tokens"])))
            .collect();
        let texts: Vec<_> =
            cases.iter().map(|(prompt, tokens)| [&prompt[..], tokens].concat()).collect();
        let contexts = Contexts::new(texts.iter().map(Vec::len), &architecture.ropes);
        let width = config.hidden_size;
        let table = model.values(&architecture.embedding).unwrap();
        let rows = texts.iter().flatten().flat_map(|id| &table[id * width..][..width]);
        let mut x = Rows::new(width, rows.map(|it| it * architecture.embedding_scale).collect());
        let mut own = Own(&model);
        for it in &architecture.layers {
            layer(it, &architecture.ropes, &contexts, &mut own, &mut x).unwrap();
        }
        let x = norm(Some(&architecture.norm), &mut own, x).unwrap();
        let output = model.values(config.output().unwrap()).unwrap();
        let mut logits = x.times(&Rows::new(width, output));
        if let Some(bias) = &architecture.output_bias {
            let bias = model.values(bias).unwrap();
            logits.values.iter_mut().zip(bias.iter().cycle()).for_each(|(it, bias)| *it += bias);
        }
        for ((prompt, tokens), rows) in cases.iter().zip(&contexts.rows) {
            for (i, token) in tokens.iter().enumerate() {
                let row = logits.row(rows.start + prompt.len() - 1 + i);
                let most = row.iter().copied().fold(f32::MIN, f32::max);
                assert_eq!(row[*token], most, "{}: token {i}", folder.display());
            }
        }
    }

    #[test]
    fn families_that_are_rounded_give_the_tokens_of_transformers() {
        let fixtures =
            PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../xla-session/tests/fixtures"));
        let mut seen = 0;
        for entry in fixtures.read_dir().unwrap() {
            let folder = entry.unwrap().path();
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            let others = ["mixtral", "moe", "gpt-oss", "qwen3-next", "gemma4", "dots1", "mellum"];
            if folder.is_dir() && !others.iter().any(|it| name.contains(it)) {
                check(&folder);
                seen += 1;
            }
        }
        assert!(seen > 30, "{seen} fixtures");
    }
}
