//! Causal grouped-query attention over the KV cache.

use kernels::{KV_BLOCK, KvFormat};

use super::builder::{Combine, DYNAMIC, Generic, Index, Kernel, Value, literal};
use super::kv_cache::Cache;
use super::tiles::{CpuTiles, config};
use super::{ElementType, Emitter, Target};

/// What a masked score becomes: finite, so that a wholly masked block has a finite maximum and
/// weighs nothing when blocks are combined.
const MASKED: f32 = -1e30;

/// Queries of one work item of the kernel, about: the keys and values of a block meet them all
/// before the next ones push these out of the L1 cache.
const QUERIES: usize = 64;

impl Emitter<'_> {
    /// Attends from the queries of `rotated`, `[rows, heads, head_dim]` and more heads behind them,
    /// to every token of the cache that is not later and, with a `window`, among the latest
    /// `window`; returns `[rows, heads * head_dim]`.
    pub(super) fn attention(
        &mut self,
        rotated: &Value,
        cache: &Cache,
        window: Option<usize>,
    ) -> Value {
        if let Target::Cpu(tiles) = self.target
            && tiles.kernels
        {
            return self.called_attention(rotated, cache, window, tiles);
        }
        let heads = self.config.num_attention_heads;
        let queries = self.b.slice(rotated, 1, 0, heads);
        if let Target::Cuda(tiles) = self.target {
            return self.attend_in_one(&queries, cache, window, tiles);
        }
        let &[rows, _, width] = rotated.dims() else { unreachable!("heads have 3 dims") };
        let kv_heads = self.config.num_key_value_heads;
        let group = heads / kv_heads;
        // The queries that share a key head, one under the other: [kv_heads, rows * group, width].
        let queries = self.b.reshape(&queries, &[rows, kv_heads, group, width]);
        let queries = self.b.transpose(&queries, &[1, 0, 2, 3]);
        let queries = self.b.reshape(&queries, &[kv_heads, rows * group, width]);
        let mixed = match self.target {
            Target::Portable { .. } => self.attend(&queries, cache, window, group),
            _ => self.attend_blocks(&queries, cache, window, group),
        };
        let mixed = self.b.reshape(&mixed, &[kv_heads, rows, group, width]);
        let mixed = self.b.transpose(&mixed, &[1, 0, 2, 3]);
        self.b.reshape(&mixed, &[rows, heads * width])
    }

    /// By our kernel: work items are runs of rows and the queries in them that share a key
    /// head, or some of these where there would be fewer work items than threads.
    fn called_attention(
        &mut self,
        rotated: &Value,
        cache: &Cache,
        window: Option<usize>,
        tiles: &CpuTiles,
    ) -> Value {
        let &[rows, _, width] = rotated.dims() else { unreachable!("heads have 3 dims") };
        let heads = self.config.num_attention_heads;
        let kv_heads = self.config.num_key_value_heads;
        let group = heads / kv_heads;
        let run = (QUERIES / group).clamp(1, rows);
        let runs = rows.div_ceil(run);
        let share = group.div_ceil(tiles.threads.div_ceil(kv_heads * runs));
        let start = self.b.index_cast(&self.start.name);
        let used = if rows == 1 { 1.into() } else { self.used() };
        let numbers = [heads, kv_heads, width, rows, run, share, window.unwrap_or(0)];
        let mut scalars = vec![start, used];
        scalars.extend(numbers.map(Index::from));
        self.b.kernel(
            &Kernel {
                symbol: match tiles.kv_cache() {
                    KvFormat::F32 => "attention",
                    KvFormat::F16 => "attention_f16",
                },
                inputs: &[rotated, &cache.keys, &cache.values],
                scalars: &scalars,
                work_items: kv_heads * group.div_ceil(share) * runs,
            },
            &[rows, heads * width],
        )
    }

    /// The textbook form, over the whole capacity.
    fn attend(&mut self, q: &Value, cache: &Cache, window: Option<usize>, group: usize) -> Value {
        let scores = self.b.dot(q, &cache.keys, [&[0], &[0]], [&[2], &[2]]);
        let dims = scores.dims().to_vec();
        let scale = self.b.splat_f32(self.scale(), &dims);
        let scores = self.b.mul(&scores, &scale);
        let key = self.b.iota(&dims, 2);
        let row = self.b.iota(&dims, 1);
        let by = self.b.splat(group, &dims, ElementType::I32);
        let row = self.b.div(&row, &by);
        let start = self.b.broadcast(&self.start.clone(), &dims, &[]);
        let query = self.b.add(&start, &row);
        let mut seen = self.b.compare("LE", &key, &query);
        if let Some(window) = window {
            let back = self.b.splat(window, &dims, ElementType::I32);
            let oldest = self.b.sub(&query, &back);
            let recent = self.b.compare("GT", &key, &oldest);
            seen = self.b.and(&seen, &recent);
        }
        let masked = self.b.splat_f32(MASKED, &dims);
        let scores = self.b.select(&seen, &scores, &masked);
        let max = self.b.reduce(&scores, &[2], Combine::Max);
        let max = self.b.broadcast(&max, &dims, &[0, 1]);
        let scores = self.b.sub(&scores, &max);
        let weights = self.b.unary("exponential", &scores);
        let sum = self.b.reduce(&weights, &[2], Combine::Add);
        let mixed = self.b.dot(&weights, &cache.values, [&[0], &[0]], [&[2], &[1]]);
        let sum = self.b.broadcast(&sum, mixed.dims(), &[0, 1]);
        self.b.div(&mixed, &sum)
    }

    /// Each block by itself with its own maximum, then the blocks combined (Dao et al.,
    /// Flash-Decoding): blocks and heads run in parallel, and every loop but the outermost has a
    /// static extent, which is what lets IREE vectorise over a cache of dynamic length.
    fn attend_blocks(
        &mut self,
        q: &Value,
        cache: &Cache,
        window: Option<usize>,
        group: usize,
    ) -> Value {
        let &[heads, rows, width] = q.dims() else { unreachable!("queries have 3 dims") };
        let keys = Some(&cache.keys);
        let multiply_add = super::multiply_add(cache.keys.ty.element);
        let per_score = [DYNAMIC, heads, rows, KV_BLOCK];
        let per_row = [DYNAMIC, heads, rows];
        let per_output = [DYNAMIC, heads, rows, width];
        let some_heads = if rows < 16 { heads } else { 1 };
        let some_rows = rows.min(KV_BLOCK);
        let (tile_rows, tile_keys) = if rows <= 4 { (rows, KV_BLOCK) } else { (8.min(rows), 32) };

        let into = self.b.fill("0.0", &per_score, keys);
        let scores = self.b.generic(
            &Generic {
                loops: "n,h,r,s,d",
                inputs: &[(q, "h,r,d"), (&cache.keys, "n,h,d,s")],
                result: "n,h,r,s",
                body: multiply_add,
                config: Some(config(
                    &[1, some_heads, some_rows, KV_BLOCK, 0],
                    &[1, 1, tile_rows, tile_keys, 0],
                    &[0, 0, 0, 0, 1],
                )),
            },
            &into,
        );
        let into = self.b.empty(&per_score, keys);
        let mask = self.mask_body(window, group);
        let scores = self.b.generic(
            &Generic {
                loops: "n,h,r,s",
                inputs: &[(&scores, "n,h,r,s")],
                result: "n,h,r,s",
                body: &mask,
                config: None,
            },
            &into,
        );
        let into = self.b.fill(&literal(MASKED), &per_row, keys);
        let max = self.reduce_last(&scores, "n,h,r,s", "n,h,r", MAXIMUM, &into);
        let into = self.b.empty(&per_score, keys);
        let weights = self.exp_difference(&scores, &max, ["n,h,r,s", "n,h,r"], &into);
        let into = self.b.fill("0.0", &per_row, keys);
        let sum = self.reduce_last(&weights, "n,h,r,s", "n,h,r", SUM, &into);
        let into = self.b.fill("0.0", &per_output, keys);
        let mixed = self.b.generic(
            &Generic {
                loops: "n,h,r,d,s",
                inputs: &[(&weights, "n,h,r,s"), (&cache.values, "n,h,s,d")],
                result: "n,h,r,d",
                body: multiply_add,
                config: Some(config(
                    &[1, some_heads, some_rows, width, 0],
                    &[1, 1, rows.min(4), width, 0],
                    &[0, 0, 0, 0, 1],
                )),
            },
            &into,
        );

        let into = self.b.fill(&literal(MASKED), &[heads, rows], None);
        let all_max = self.combine(&[(&max, "n,h,r")], "h,r", MAXIMUM, &into);
        let into = self.b.empty(&per_row, keys);
        let share = self.exp_difference(&max, &all_max, ["n,h,r", "h,r"], &into);
        let zero = self.b.fill("0.0", &[heads, rows], None);
        let sum = self.combine(&[(&share, "n,h,r"), (&sum, "n,h,r")], "h,r", MULTIPLY_ADD, &zero);
        // By default IREE's vectors run along the blocks, whose elements lie far apart: a fifth of a
        // prompt's time. Heads and rows are joined before it would, and lose the tiles.
        let all_rows = heads * rows;
        let share = self.b.join_middle(&share);
        let mixed = self.b.join_middle(&mixed);
        let zero = self.b.fill("0.0", &[all_rows, width], None);
        let mixed = self.b.generic(
            &Generic {
                loops: "r,d,n",
                inputs: &[(&share, "n,r"), (&mixed, "n,r,d")],
                result: "r,d",
                body: MULTIPLY_ADD,
                config: Some(config(
                    &[all_rows.min(KV_BLOCK), width, 0],
                    &[all_rows.min(4), width, 0],
                    &[0, 0, 1],
                )),
            },
            &zero,
        );
        let mixed = self.b.reshape(&mixed, &[heads, rows, width]);
        let sum = self.b.broadcast(&sum, &[heads, rows, width], &[0, 1]);
        self.b.div(&mixed, &sum)
    }

    /// What a product of a query and a key is multiplied by.
    pub(super) fn scale(&self) -> f32 {
        1.0 / (self.config.head_dim as f32).sqrt()
    }

    /// Scales the score of (block n, row r, key s), and keeps it where the key is visible.
    fn mask_body(&self, window: Option<usize>, group: usize) -> String {
        format!(
            "%n = linalg.index 0 : index
             %r = linalg.index 2 : index
             %s = linalg.index 3 : index
             {seen}
             %masked = arith.constant {masked} : f32
             %scale = arith.constant {scale} : f32
             %score = arith.mulf %in0, %scale : f32
             %kept = arith.select %seen, %score, %masked : f32
             linalg.yield %kept : f32",
            seen = seen_body(&self.start.name, window, group),
            masked = literal(MASKED),
            scale = literal(self.scale()),
        )
    }

    fn reduce_last(&mut self, a: &Value, loops: &str, to: &str, body: &str, into: &Value) -> Value {
        let inputs = &[(a, loops)];
        self.b.generic(&Generic { loops, inputs, result: to, body, config: None }, into)
    }

    /// Combines over blocks, the innermost loop.
    fn combine(&mut self, inputs: &[(&Value, &str)], to: &str, body: &str, into: &Value) -> Value {
        let loops = &format!("{to},n");
        self.b.generic(&Generic { loops, inputs, result: to, body, config: None }, into)
    }

    fn exp_difference(&mut self, a: &Value, b: &Value, maps: [&str; 2], into: &Value) -> Value {
        self.b.generic(
            &Generic {
                loops: maps[0],
                inputs: &[(a, maps[0]), (b, maps[1])],
                result: maps[0],
                body: "%difference = arith.subf %in0, %in1 : f32
                       %exp = math.exp %difference : f32
                       linalg.yield %exp : f32",
                config: None,
            },
            into,
        )
    }
}

/// Decides whether row `%r` of a call that starts at position `start`, an `i32`, sees key `%s` of
/// block `%n`: `%seen`.
pub(super) fn seen_body(start: &str, window: Option<usize>, group: usize) -> String {
    let window = match window {
        None => "%seen = arith.cmpi sle, %key, %query : i32".to_string(),
        Some(window) => format!(
            "%past = arith.cmpi sle, %key, %query : i32
             %window = arith.constant {window} : i32
             %oldest = arith.subi %query, %window : i32
             %recent = arith.cmpi sgt, %key, %oldest : i32
             %seen = arith.andi %past, %recent : i1"
        ),
    };
    format!(
        "%group = arith.constant {group} : index
         %row = arith.divui %r, %group : index
         %row32 = arith.index_cast %row : index to i32
         %query = arith.addi {start}, %row32 : i32
         %block = arith.constant {KV_BLOCK} : index
         %first = arith.muli %n, %block : index
         %token = arith.addi %first, %s : index
         %key = arith.index_cast %token : index to i32
         {window}"
    )
}

const MULTIPLY_ADD: &str = super::multiply_add(ElementType::F32);

const MAXIMUM: &str = "%max = arith.maximumf %in0, %acc : f32
                       linalg.yield %max : f32";

const SUM: &str = "%sum = arith.addf %in0, %acc : f32
                   linalg.yield %sum : f32";
