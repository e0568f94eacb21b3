//! Attention over pages, as one dispatch: of rows of any sequences, or of those of a prompt.
//!
//! The pages of a row's sequence are gathered where they are read: the compiler tiles the gather with the
//! attention, a page at a time, and loads through the table. All rows walk as many pages as the longest
//! sequence of the step has, a number in memory; behind their own they find their last one again, masked.

use checkpoint::architecture;
use kernels::KV_BLOCK;

use super::CudaTiles;
use super::tiles::AttentionShape;
use crate::emit::builder::{
    Attention, DYNAMIC, ElementType, Gather, Generic, Memory, TensorType, Value, Workgroups,
    literal,
};
use crate::lower::paged::{Function, Source};

impl CudaTiles {
    /// Attends from `queries`, `[rows, heads, head_dim]`, to every token of the pages of the row's
    /// sequence that is not later and, with a window, among the latest; returns
    /// `[rows, heads * head_dim]`.
    pub(super) fn attends(
        &self,
        f: &mut Function<'_>,
        queries: &Value,
        cache: &Memory,
        attention: &architecture::Attention,
    ) -> Value {
        if f.of_prompt {
            return self.prompt_attends(f, queries, cache, attention);
        }
        let &architecture::Attention { window, scale, cap, kv_heads, .. } = attention;
        let &[rows, heads, width] = queries.dims() else { unreachable!("heads have 3 dims") };
        let group = heads / kv_heads;
        let (r, h, g) = (("r", rows), ("h", kv_heads), ("g", group));
        let (n, s) = (("n", DYNAMIC), ("s", KV_BLOCK));
        let (result, dims) = some(&[r, h, g, ("e", width)]);
        let (query, _) = some(&[r, h, g, ("d", width)]);
        // Heads outermost, as the tiles have it.
        let (loops, _) = some(&[h, r, g, ("e", width), ("d", width), n, s]);
        let (key, of_pages) = some(&[r, n, s, h, ("d", width)]);
        let (value, _) = some(&[r, n, s, h, ("e", width)]);
        let (token, of_tokens) = some(&[r, n, s]);
        let (page, of_tables) = some(&[r, n]);

        let q = f.b.reshape(queries, &dims);
        let [positions, tables, used, pages] =
            [Source::Positions, Source::Tables, Source::Used, Source::Pages]
                .map(|source| f.input(source));
        let ty = TensorType::new(&dims, ElementType::F32);
        let dispatch = f.b.begin_reading(&[&positions, &tables, &used, &pages, &q], cache, ty);
        let [positions, tables, used, pages, q] = &dispatch.reads[..] else {
            unreachable!("as many as outside")
        };
        let used = f.b.element_at(used, &0.into());
        let used = f.b.index_cast(&used.name);
        let row = |loops: &str| match rows {
            1 => "arith.constant 0 : index".to_owned(),
            _ => format!("linalg.index {} : index", at(loops, "r")),
        };

        let body = format!(
            "%row = {}
             %n = linalg.index {} : index
             %query = tensor.extract {}[%row] : {}
             %position = arith.index_cast %query : i32 to index
             %block = arith.constant {KV_BLOCK} : index
             %last = arith.divui %position, %block : index
             %own = arith.minui %n, %last : index
             %begin = tensor.extract {}[%row] : {}
             %table = arith.index_cast %begin : i32 to index
             %place = arith.addi %table, %own : index
             %page = tensor.extract {}[%place] : {}
             linalg.yield %page : i32",
            row(&page),
            at(&page, "n"),
            positions.name,
            positions.ty,
            tables.name,
            tables.ty,
            pages.name,
            pages.ty,
        );
        let nest = Generic { loops: &page, inputs: &[], result: &page, body: &body, config: None };
        let into = f.b.empty_with(ElementType::I32, &of_tables, &used);
        let numbers = f.b.generic(&nest, &into);

        let seen = |loops: &str| {
            format!(
                "%row = {}
                 %n = linalg.index {} : index
                 %s = linalg.index {} : index
                 %query = tensor.extract {}[%row] : {}
                 {}",
                row(loops),
                at(loops, "n"),
                at(loops, "s"),
                positions.name,
                positions.ty,
                seen_body("%query", window),
            )
        };
        let body = format!("{}\nlinalg.yield %seen : i1", seen(&token));
        let nest =
            Generic { loops: &token, inputs: &[], result: &token, body: &body, config: None };
        let into = f.b.empty_with(ElementType::I1, &of_tokens, &used);
        let mask = f.b.generic(&nest, &into);

        // What nobody has written, or somebody else, may be NaN, which masking does not keep out of
        // the arithmetic.
        let body = format!(
            "{}
             %zero = arith.constant 0.0 : f32
             %own = arith.select %seen, %in0, %zero : f32
             linalg.yield %own : f32",
            seen(&key)
        );
        let [keys, values] = [0, kv_heads].map(|first| {
            let half = half_of_pages(f, &dispatch, cache, first, kv_heads);
            let into = f.b.empty_with(ElementType::F32, &of_pages, &used);
            let gathered = f.b.gather(&Gather { from: &half, indices: &numbers, into: &into });
            let nest = Generic {
                loops: &key,
                inputs: &[(&gathered, &key)],
                result: &key,
                body: &body,
                config: None,
            };
            f.b.generic(&nest, &into)
        });
        let shape = AttentionShape { rows, kv_heads, group, width, block: KV_BLOCK };
        let mixed = f.b.attention(
            &Attention {
                loops: &loops,
                inputs: [(q, &query), (&keys, &key), (&values, &value), (&mask, &token)],
                result: &result,
                element: ElementType::F32,
                scale: &literal(scale),
                cap,
                attributes: &self.attention_tiles(&shape),
            },
            &dims,
        );
        let mixed = f.b.end_reading(dispatch, &mixed);
        f.b.reshape(&mixed, &[rows, heads * width])
    }

    /// The same of rows that follow each other in one sequence, on the tensor cores: queries, keys, values and shares
    /// in bf16. Rows that are padding stand where the last one does.
    fn prompt_attends(
        &self,
        f: &mut Function<'_>,
        queries: &Value,
        cache: &Memory,
        attention: &architecture::Attention,
    ) -> Value {
        let &architecture::Attention { window, scale, cap, kv_heads, .. } = attention;
        let &[rows, heads, width] = queries.dims() else { unreachable!("heads have 3 dims") };
        let group = heads / kv_heads;
        let (r, h, g) = (("r", rows), ("h", kv_heads), ("g", group));
        let (n, s) = (("n", DYNAMIC), ("s", KV_BLOCK));
        let (result, dims) = some(&[r, h, g, ("e", width)]);
        let (query, _) = some(&[r, h, g, ("d", width)]);
        let (loops, _) = some(&[h, g, r, ("e", width), ("d", width), n, s]);
        let (key, of_pages) = some(&[n, s, h, ("d", width)]);
        let (value, _) = some(&[n, s, h, ("e", width)]);
        let (token, of_tokens) = some(&[r, n, s]);

        let q = f.b.convert(queries, ElementType::Bf16);
        let q = f.b.reshape(&q, &dims);
        let [positions, used, pages] =
            [Source::Positions, Source::Used, Source::Pages].map(|source| f.input(source));
        let ty = TensorType::new(&dims, ElementType::Bf16);
        let dispatch = f.b.begin_reading(&[&positions, &used, &pages, &q], cache, ty);
        let [positions, used, pages, q] = &dispatch.reads[..] else {
            unreachable!("as many as outside")
        };
        let used = f.b.element_at(used, &0.into());
        let used = f.b.index_cast(&used.name);
        let last = f.b.element_at(positions, &(rows - 1).into());
        let numbers = f.b.first(pages, &used);

        let body = format!(
            "%row = linalg.index {} : index
             %n = linalg.index {} : index
             %s = linalg.index {} : index
             %query = tensor.extract {}[%row] : {}
             {}
             linalg.yield %seen : i1",
            at(&token, "r"),
            at(&token, "n"),
            at(&token, "s"),
            positions.name,
            positions.ty,
            seen_body("%query", window),
        );
        let nest =
            Generic { loops: &token, inputs: &[], result: &token, body: &body, config: None };
        let into = f.b.empty_with(ElementType::I1, &of_tokens, &used);
        let mask = f.b.generic(&nest, &into);

        // As above: what lies behind the last row may be NaN.
        let body = format!(
            "%n = linalg.index {} : index
             %s = linalg.index {} : index
             {}
             %zero = arith.constant 0.0 : f32
             %own = arith.select %seen, %in0, %zero : f32
             %rounded = arith.truncf %own : f32 to bf16
             linalg.yield %rounded : bf16",
            at(&key, "n"),
            at(&key, "s"),
            seen_body(&last.name, None),
        );
        let [keys, values] = [0, kv_heads].map(|first| {
            let half = half_of_pages(f, &dispatch, cache, first, kv_heads);
            let into = f.b.empty_with(ElementType::F32, &of_pages, &used);
            let gathered = f.b.gather(&Gather { from: &half, indices: &numbers, into: &into });
            let nest = Generic {
                loops: &key,
                inputs: &[(&gathered, &key)],
                result: &key,
                body: &body,
                config: None,
            };
            let into = f.b.empty_with(ElementType::Bf16, &of_pages, &used);
            f.b.generic(&nest, &into)
        });
        let shape = AttentionShape { rows, kv_heads, group, width, block: KV_BLOCK };
        let mixed = f.b.attention(
            &Attention {
                loops: &loops,
                inputs: [(q, &query), (&keys, &key), (&values, &value), (&mask, &token)],
                result: &result,
                element: ElementType::Bf16,
                scale: &literal(scale),
                cap,
                attributes: &self.prompt_attention_tiles(&shape),
            },
            &dims,
        );
        let mixed = f.b.end_reading(dispatch, &mixed);
        let mixed = f.b.convert(&mixed, ElementType::F32);
        f.b.reshape(&mixed, &[rows, heads * width])
    }
}

/// The keys of the pages of a layer, or from `first` on the values, as a dispatch reads them.
fn half_of_pages(
    f: &mut Function<'_>,
    dispatch: &Workgroups,
    cache: &Memory,
    first: usize,
    kv_heads: usize,
) -> Value {
    let &[pages, block, _, width] = &cache.ty.dims[..] else { unreachable!("pages have 4 dims") };
    let (_, dims) = some(&[("p", pages), ("s", block), ("h", kv_heads), ("d", width)]);
    f.b.part_of_memory(dispatch, &[0, 0, first, 0], &[pages, block, kv_heads, width], &dims)
}

/// The loops that have more than one step, and their extents: nothing folds others inside a dispatch.
fn some(loops: &[(&'static str, usize)]) -> (String, Vec<usize>) {
    let kept = loops.iter().filter(|(_, extent)| *extent > 1);
    let (names, extents): (Vec<_>, Vec<_>) = kept.copied().unzip();
    (names.join(","), extents)
}

/// The number of loop `name`.
fn at(loops: &str, name: &str) -> usize {
    loops.split(',').position(|it| it == name).expect("one of the loops")
}

/// Decides whether a query at position `query`, an i32, sees token `%s` of page `%n`: `%seen`.
fn seen_body(query: &str, window: Option<usize>) -> String {
    let seen = match window {
        None => format!("%seen = arith.cmpi sle, %key, {query} : i32"),
        Some(window) => format!(
            "%past = arith.cmpi sle, %key, {query} : i32
             %window = arith.constant {window} : i32
             %oldest = arith.subi {query}, %window : i32
             %recent = arith.cmpi sgt, %key, %oldest : i32
             %seen = arith.andi %past, %recent : i1"
        ),
    };
    format!(
        "%tokens = arith.constant {KV_BLOCK} : index
         %before = arith.muli %n, %tokens : index
         %token = arith.addi %before, %s : index
         %key = arith.index_cast %token : index to i32
         {seen}"
    )
}
