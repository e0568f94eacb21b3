//! Attention over pages: a dispatch for the scores, and one that mixes the values by them, a token at a
//! time, whose sum is scaled down whenever a larger score turns up (FlashAttention).
//!
//! There are scores of as many tokens as the longest sequence of the step has pages for, a number that
//! the caller passes: of those that a row does not see none is computed or read.

use checkpoint::architecture;
use kernels::KV_BLOCK;

use super::VulkanTarget;
use crate::emit::builder::{DYNAMIC, ElementType, Memory, TensorType, Value, literal};
use crate::lower::paged::{Function, Source, sum, threads};

/// What dispatches of an attention read.
struct Read {
    positions: Value,
    tables: Value,
    pages: Value,
    cache: Value,
}

impl VulkanTarget {
    pub(super) fn attends(
        &self,
        f: &mut Function<'_>,
        queries: &Value,
        cache: &Memory,
        attention: &architecture::Attention,
    ) -> Value {
        let &[rows, heads, width] = queries.dims() else { unreachable!("heads have 3 dims") };
        let used = f.argument(Source::Used, TensorType::new(&[], ElementType::I32));
        let used = f.b.index_cast(&used.name);
        let tokens = f.b.index_mul(&used, KV_BLOCK);
        let [positions, tables, pages] =
            [Source::Positions, Source::Tables, Source::Pages].map(|source| f.input(source));
        let cache = f.cache_as_pages(cache);
        let read = Read { positions, tables, pages, cache };
        let most = f.config.max_position_embeddings.next_multiple_of(KV_BLOCK);
        let at_once = self.at_once(rows, heads * most.max(width));
        let mut parts = Vec::new();
        for first in (0..rows).step_by(at_once) {
            let many = at_once.min(rows - first);
            let dims = [many, heads, DYNAMIC];
            let into = f.b.empty_with(ElementType::F32, &dims, &tokens);
            let body = scores(queries, &read, first, attention);
            let scores = threads(f, &["m", "h", "t"], &into, &body);
            let into = f.b.empty(&[many, heads * width], None);
            let body = mix(&scores, &read, first, attention);
            parts.push(threads(f, &["m", "c"], &into, &body));
        }
        match &parts[..] {
            [_] => parts.remove(0),
            parts => f.joined(parts, 0),
        }
    }
}

/// `%row`, and `%position` of its token.
fn row(read: &Read, first: usize) -> String {
    format!(
        "%first_row = arith.constant {first} : index
         %row = arith.addi %first_row, %m : index
         %position_stored = tensor.extract {}[%row] : {}
         %position = arith.index_cast %position_stored : i32 to index
         %begin_stored = tensor.extract {}[%row] : {}
         %table = arith.index_cast %begin_stored : i32 to index
         %block = arith.constant {KV_BLOCK} : index",
        read.positions.name, read.positions.ty, read.tables.name, read.tables.ty
    )
}

/// `%page` and `%slot` of token `of`, which the row's sequence has.
fn place(read: &Read, of: &str) -> String {
    format!(
        "%number = arith.divui {of}, %block : index
         %slot = arith.remui {of}, %block : index
         %in_table = arith.addi %table, %number : index
         %page_stored = tensor.extract {}[%in_table] : {}
         %page = arith.index_cast %page_stored : i32 to index",
        read.pages.name, read.pages.ty
    )
}

/// The score of row `%m`, head `%h` and token `%t`; of a token behind the row's own nothing that anybody
/// reads.
fn scores(
    queries: &Value,
    read: &Read,
    first: usize,
    &architecture::Attention { scale, cap, heads, kv_heads, .. }: &architecture::Attention,
) -> String {
    let width = queries.dims()[2];
    let term = |i: &str| {
        format!(
            "%query{i} = tensor.extract {}[%row, %h, %k{i}] : {}
             %key{i} = tensor.extract {}[%page, %slot, %kv_head, %k{i}] : {}
             %term{i} = arith.mulf %query{i}, %key{i} : f32",
            queries.name, queries.ty, read.cache.name, read.cache.ty
        )
    };
    let capped = match cap {
        None => "%score = arith.mulf %total, %scale : f32".to_owned(),
        // By the exponential: what devices call tanh may overflow.
        Some(cap) => format!(
            "%scaled = arith.mulf %total, %scale : f32
             %limit = arith.constant {} : f32
             %part = arith.divf %scaled, %limit : f32
             %twice = arith.addf %part, %part : f32
             %power = math.exp %twice : f32
             %one = arith.constant 1.0 : f32
             %two = arith.constant 2.0 : f32
             %above = arith.addf %power, %one : f32
             %rest = arith.divf %two, %above : f32
             %share = arith.subf %one, %rest : f32
             %score = arith.mulf %limit, %share : f32",
            literal(cap)
        ),
    };
    format!(
        "{}
         %seen = arith.minui %t, %position : index
         {}
         %group = arith.constant {} : index
         %kv_head = arith.divui %h, %group : index
         {}
         %scale = arith.constant {} : f32
         {capped}
         linalg.yield %score : f32",
        row(read, first),
        place(read, "%seen"),
        heads / kv_heads,
        sum(width, &term),
        literal(scale),
    )
}

/// What row `%m` mixes of column `%c` of all heads.
fn mix(
    scores: &Value,
    read: &Read,
    first: usize,
    &architecture::Attention { window, heads, kv_heads, head_dim, .. }: &architecture::Attention,
) -> String {
    let oldest = match window {
        None => "%oldest = arith.constant 0 : index".to_owned(),
        Some(window) => format!(
            "%window = arith.constant {window} : index
             %fits = arith.minui %window, %end : index
             %oldest = arith.subi %end, %fits : index"
        ),
    };
    format!(
        "{}
         %width = arith.constant {head_dim} : index
         %h = arith.divui %c, %width : index
         %column = arith.remui %c, %width : index
         %group = arith.constant {} : index
         %kv_head = arith.divui %h, %group : index
         %kv_heads = arith.constant {kv_heads} : index
         %value_head = arith.addi %kv_heads, %kv_head : index
         %one = arith.constant 1 : index
         %end = arith.addi %position, %one : index
         {oldest}
         %begin = tensor.extract {}[%m, %h, %oldest] : {}
         %none = arith.constant 0.0 : f32
         %mixed:3 = scf.for %t = %oldest to %end step %one iter_args(%so_far = %none, %weights = \
         %none, %largest = %begin) -> (f32, f32, f32) {{
         {}
         %value = tensor.extract {}[%page, %slot, %value_head, %column] : {}
         %score = tensor.extract {}[%m, %h, %t] : {}
         %larger = arith.maximumf %score, %largest : f32
         %less = arith.subf %largest, %larger : f32
         %shrink = math.exp %less : f32
         %below = arith.subf %score, %larger : f32
         %weight = math.exp %below : f32
         %shrunk = arith.mulf %so_far, %shrink : f32
         %share = arith.mulf %weight, %value : f32
         %next = arith.addf %shrunk, %share : f32
         %weights_kept = arith.mulf %weights, %shrink : f32
         %weights_next = arith.addf %weights_kept, %weight : f32
         scf.yield %next, %weights_next, %larger : f32, f32, f32
         }}
         %result = arith.divf %mixed#0, %mixed#1 : f32
         linalg.yield %result : f32",
        row(read, first),
        heads / kv_heads,
        scores.name,
        scores.ty,
        place(read, "%t"),
        read.cache.name,
        read.cache.ty,
        scores.name,
        scores.ty,
    )
}
