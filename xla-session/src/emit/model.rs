//! The decoder itself, the same for every target.

use kernels::LANES;

use super::builder::{Kernel, Value};
use super::graph::{Layout, Source};
use super::linear::{Linear, Matrix};
use super::rope::Angles;
use super::{ElementType, Emitter, Target};

/// Rows that an MLP takes at a time.
const MLP_ROWS: usize = 128;

impl Emitter<'_> {
    /// Emits the whole model; returns the results in [`Graph::results`](super::Graph::results)
    /// order.
    pub(super) fn model(&mut self) -> Vec<Value> {
        let config = self.config;
        let angles = self.angles();
        let mut caches = Vec::new();
        let x = self.embed();
        let mut x = self.kept(x);
        for layer in 0..config.num_hidden_layers {
            let prefix = format!("model.layers.{layer}");
            let weight =
                self.vector(&format!("{prefix}.input_layernorm.weight"), config.hidden_size);
            let (h, cache) = self.self_attention(layer, &x, &weight, &angles);
            caches.extend([cache.keys, cache.values]);
            x = self.b.add(&x, &h);
            x = self.kept(x);
            let name = format!("{prefix}.post_attention_layernorm.weight");
            let weight = self.vector(&name, config.hidden_size);
            x = self.add_mlp(&prefix, x, &weight);
            x = self.kept(x);
        }
        let logits = self.last_logits(&x);
        let logits = self.answered(logits);
        let token = self.argmax(&logits, config.vocab_size);
        let logits = self.b.slice(&logits, 0, 0, config.vocab_size);
        let mut results = vec![token, logits];
        results.extend(caches);
        results
    }

    /// Of `x`, RMS-normed with the weight `norm`.
    fn self_attention(
        &mut self,
        layer: usize,
        x: &Value,
        norm: &Value,
        angles: &Angles,
    ) -> (Value, super::kv_cache::Cache) {
        let config = self.config;
        let module = |name: &str| format!("model.layers.{layer}.self_attn.{name}");
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let (width, rows) = (config.head_dim, self.rows);
        let qkv = self.normed_linears(
            x,
            norm,
            &[
                Linear::new(module("q_proj"), heads * width, config.qkv_bias),
                Linear::new(module("k_proj"), kv_heads * width, config.qkv_bias),
                Linear::new(module("v_proj"), kv_heads * width, config.qkv_bias),
            ],
        );
        let qkv = self.kept(qkv);
        let normed = config.qk_norm.then(|| {
            let both = self.b.slice(&qkv, 1, 0, (heads + kv_heads) * width);
            let both = self.b.reshape(&both, &[rows, heads + kv_heads, width]);
            let parts = [("q_norm", 0, heads), ("k_norm", heads, heads + kv_heads)].map(
                |(name, low, high)| {
                    let weight = self.vector(&format!("{}.weight", module(name)), width);
                    let part = self.b.slice(&both, 1, low, high);
                    self.rms_norm(&part, &weight)
                },
            );
            self.joined(&parts, 1)
        });
        let (queries, cache) = self.rotate_and_append(layer, &qkv, normed.as_ref(), angles);
        let mixed = self.attention(&queries, &cache, config.sliding_window[layer]);
        let output = Linear::new(module("o_proj"), config.hidden_size, config.o_bias);
        (self.linear(&mixed, output), cache)
    }

    /// `x` with what the MLP makes of it added. Where kernels multiply integers that is done for
    /// [`MLP_ROWS`] rows at a time: what lies between these products is the most memory that a
    /// prompt takes, and integers, which the arithmetic waits for least, are read twice in the time.
    fn add_mlp(&mut self, prefix: &str, mut x: Value, norm: &Value) -> Value {
        let names = ["gate_proj", "up_proj"].map(|name| format!("{prefix}.mlp.{name}.weight"));
        let integers = self.formats.of(names.iter().map(String::as_str)).is_quantised();
        if !self.calls_kernels() || !integers || self.rows <= MLP_ROWS {
            let h = self.mlp(prefix, &x, norm);
            return self.b.add(&x, &h);
        }
        for first in (0..self.rows).step_by(MLP_ROWS) {
            self.first = first;
            let rows = self.b.slice(&x, 0, first, self.rows.min(first + MLP_ROWS));
            let h = self.mlp(prefix, &rows, norm);
            let rows = self.b.add(&rows, &h);
            // The next ones wait for these: at the same time they would need the memory of all.
            x = self.b.insert(&rows, &x, &[first.into(), 0.into()]);
        }
        self.first = 0;
        x
    }

    /// `down(silu(gate(x)) * up(x))` (Shazeer, GLU variants) of `x`, RMS-normed with the weight
    /// `norm`.
    fn mlp(&mut self, prefix: &str, x: &Value, norm: &Value) -> Value {
        let config = self.config;
        let linear =
            |name: &str, rows| Linear::new(format!("{prefix}.mlp.{name}"), rows, config.mlp_bias);
        let wide = config.intermediate_size;
        let pair = [linear("gate_proj", wide), linear("up_proj", wide)];
        let [gate, up] = self.normed_pair(x, norm, pair);
        let one = self.b.splat_f32(1.0, gate.dims());
        let exp = self.b.unary("negate", &gate);
        let exp = self.b.unary("exponential", &exp);
        let silu = self.b.add(&one, &exp);
        let silu = self.b.div(&gate, &silu);
        let h = self.b.mul(&silu, &up);
        let h = self.kept(h);
        self.linear(&h, linear("down_proj", config.hidden_size))
    }

    /// The embeddings of this call's tokens, `[rows, hidden_size]`.
    fn embed(&mut self) -> Value {
        let config = self.config;
        let mut tokens = self.argument(Source::Tokens, &[self.rows], ElementType::I32);
        if self.is_iree() && self.rows == 1 {
            // It may be what the step before left, unread: i32::MAX where there were no numbers.
            let most = self.b.splat(config.vocab_size - 1, &[1], ElementType::I32);
            tokens = self.b.min(&tokens, &most);
        }
        let parts = [("model.embed_tokens.weight".to_string(), config.vocab_size)];
        let names = parts.iter().map(|(name, _)| name.as_str());
        // A tied table is packed for the output projection; its rows are gathered from there.
        let quantised = self.formats.of(names).is_quantised();
        let x = match self.target {
            Target::Cpu(_) if config.tie_word_embeddings || quantised => {
                let layout = Layout::Packed { lanes: LANES };
                let table = self.matrix(&parts, config.hidden_size, layout);
                self.cpu_gather(&table, &tokens)
            }
            Target::Cuda(_) => {
                let table = self.matrix(&parts, config.hidden_size, Layout::Rows);
                self.gather_row_major(&table, &tokens)
            }
            _ => {
                let table = self.matrix(&parts, config.hidden_size, Layout::Rows);
                let rows = self.b.gather_rows(&table.weights, &tokens);
                self.b.convert(&rows, ElementType::F32)
            }
        };
        // Fused with the first norm the gather needs more stack than IREE gives a dispatch.
        if self.has_barriers() && self.rows > 1 { self.b.barrier(&x) } else { x }
    }

    /// Rows of a matrix as CPUs have it at `indices`, widened, `[indices, columns]`.
    fn cpu_gather(&mut self, table: &Matrix, indices: &Value) -> Value {
        let (n, columns) = (indices.dims()[0], table.columns);
        if table.scales.is_some() {
            return self.gather_row_major(table, indices);
        }
        if table.format.is_quantised() || table.offsets.is_some() {
            let mut inputs = vec![&table.weights];
            inputs.extend(&table.offsets);
            inputs.push(indices);
            let kernel = Kernel {
                symbol: &table.symbol("rows"),
                inputs: &inputs,
                scalars: &[table.rows.into(), columns.into()],
                work_items: n,
            };
            return self.b.kernel(&kernel, &[n, columns]);
        }
        let rows = self.b.gather_lanes(&table.weights, indices);
        self.b.convert(&rows, ElementType::F32)
    }

    /// The projection that gives the logits.
    pub(super) fn output_projection(&self) -> Linear {
        let tied = self.config.tie_word_embeddings;
        let module = if tied { "model.embed_tokens" } else { "lm_head" };
        Linear::new(module, self.config.vocab_size, false)
    }

    /// The logits of the wanted row, `[vocab_size]` or more when the table is padded.
    fn last_logits(&mut self, x: &Value) -> Value {
        let config = self.config;
        let last = self.last.clone();
        let dims = [1, config.hidden_size];
        let row = match self.target {
            _ if self.rows == 1 => x.clone(),
            Target::Cpu(_) | Target::Cuda(_) => {
                let last = self.b.index_cast(&last.name);
                self.b.extract(x, &[last, 0.into()], &dims)
            }
            Target::Portable { .. } => {
                let zero = self.b.splat(0, &[], ElementType::I32);
                self.b.dynamic_slice(x, &[last, zero], &dims)
            }
        };
        let weight = self.vector("model.norm.weight", config.hidden_size);
        let output = self.output_projection();
        let logits = match self.target {
            Target::Portable { .. } | Target::Cuda(_) => {
                self.normed_linears(&row, &weight, &[output])
            }
            Target::Cpu(_) => {
                let row = self.rms_norm(&row, &weight);
                let parts = [(output.weight(), output.rows)];
                let layout = Layout::Packed { lanes: LANES };
                let weight = self.matrix(&parts, config.hidden_size, layout);
                match self.sketch_of(&parts, &weight) {
                    Some(sketch) => self.sketched_product(&row, &weight, &sketch),
                    None => self.cpu_product(&row, &weight),
                }
            }
        };
        let n = logits.dims()[1];
        self.b.reshape(&logits, &[n])
    }
}
