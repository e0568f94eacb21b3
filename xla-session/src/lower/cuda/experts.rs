//! The experts of a mixture: products with the weights of those that rows have chosen, gathered where they are
//! multiplied.
//!
//! A row by itself meets each of its experts in one loop nest. Of several rows those of one expert are
//! put together, in blocks of a few, which meet its weights as rows meet a matrix: a block has one expert, and
//! what is left of it is padding. How many blocks there are does not depend on what rows have chosen.

use checkpoint::architecture::{Experts, Norm};

use super::CudaTiles;
use super::product::Columns;
use super::tiles::Product;
use crate::emit::builder::{ElementType, Gather, Generic, Value};
use crate::lower::paged::{Function, Matrix, Projection, Routed, sum, sum_named, threads};

/// Where rows are among blocks.
struct Blocks {
    /// The expert of each, `[blocks]`.
    owners: Value,
    /// The row that is in each of their places, `[blocks, rows of one]`; where none is, any.
    origins: Value,
    /// Where each expert of a row is, `[rows * top_k]`.
    places: Value,
}

impl CudaTiles {
    /// What the experts of each row of `x` make of it, normed with `norm` if there is one.
    pub(super) fn of_experts(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        mixture: &Experts,
        routed: &Routed,
    ) -> Value {
        let (x, norm) = self.normed_before(f, x, norm);
        if f.rows == 1 {
            return self.experts_of_one_row(f, &x, norm, mixture, routed);
        }
        self.experts_of_several_rows(f, &x, mixture, routed)
    }

    fn experts_of_one_row(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        mixture: &Experts,
        routed: &Routed,
    ) -> Value {
        let (pairs, all) = (routed.chosen.dims()[1], mixture.experts.len());
        let chosen = f.b.reshape(&routed.chosen, &[pairs]);
        let both = [Projection::Gate, Projection::Up].map(|which| {
            let matrix = f.projection(mixture, which);
            self.those_of(f, &matrix, all, &chosen)
        });
        let [gate, up] = if both[0].format == both[1].format {
            let both = self.one_row(f, x, norm, &both);
            let [gate, up] = &both[..] else { unreachable!("as many as matrices") };
            [gate.clone(), up.clone()]
        } else {
            both.map(|matrix| {
                let y = self.one_row(f, x, norm, &[matrix]).remove(0);
                f.kept(y)
            })
        };
        let h = f.b.gated(&gate, &up, mixture.experts[0].activation);
        // A product of weights with a share would hide from the compiler what is multiplied.
        let shares = f.b.reshape(&routed.shares, &[pairs]);
        let shares = f.b.broadcast(&shares, h.dims(), &[0]);
        let h = f.b.mul(&h, &shares);
        let h = f.kept(h);

        let down = f.projection(mixture, Projection::Down);
        let down = self.those_of(f, &down, all, &chosen);
        let (columns, outputs) = (h.dims()[1], down.weights.dims()[1]);
        let shape = Columns::of(&down);
        let h = self.grouped_rows(f, &h, shape);
        let along = shape.activations;
        let activations = format!("p,{along}");
        let (mut inputs, mut body) = (vec![(h, &activations[..])], String::new());
        let weight = self.operands(f, &down, shape, &mut inputs, &mut body, 0);
        body += &format!(
            "%product = arith.mulf {weight}, %in0 : f32
             %sum = arith.addf %acc, %product : f32
             linalg.yield %sum : f32"
        );
        let zero = f.b.fill("0.0", &[outputs], None);
        let inputs: Vec<_> = inputs.iter().map(|(value, map)| (value, *map)).collect();
        let nest = Generic {
            loops: &format!("n,p,{along}"),
            inputs: &inputs,
            result: "n",
            body: &body,
            config: self.sum_of_products_tiles(down.format, pairs, columns),
        };
        let y = f.b.generic(&nest, &zero);
        f.b.reshape(&y, &[1, outputs])
    }

    fn experts_of_several_rows(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        mixture: &Experts,
        routed: &Routed,
    ) -> Value {
        let all = mixture.experts.len();
        let blocks = self.blocks(f, all, routed);
        let [gate, up] = [Projection::Gate, Projection::Up].map(|which| {
            let matrix = f.projection(mixture, which);
            let x = self.grouped_rows(f, x, Columns::of(&matrix));
            let x = gathered(f, &x, &blocks.origins);
            let y = self.product_of_blocks(f, &x, &matrix, all, &blocks);
            // What comes of the second one goes through the activation first.
            if matches!(which, Projection::Gate) { f.kept(y) } else { y }
        });
        let h = f.b.gated(&gate, &up, mixture.experts[0].activation);
        let h = f.kept(h);
        let &[number, size, wide] = h.dims() else { unreachable!("blocks of rows of columns") };

        let down = f.projection(mixture, Projection::Down);
        let h = f.b.reshape(&h, &[number * size, wide]);
        let h = self.grouped_rows(f, &h, Columns::of(&down));
        let dims: Vec<_> = [number, size].iter().chain(&h.dims()[1..]).copied().collect();
        let h = f.b.reshape(&h, &dims);
        let y = self.product_of_blocks(f, &h, &down, all, &blocks);
        let y = f.kept(y);
        self.of_rows(f, &y, routed, &blocks)
    }

    /// Blocks of rows, as [`grouped_rows`](Self::grouped_rows) has them, times the weights of their experts.
    fn product_of_blocks(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        matrix: &Matrix,
        all: usize,
        blocks: &Blocks,
    ) -> Value {
        let tiles = self.product_tiles(&Product {
            format: matrix.format,
            pairs: Some(x.dims()[0]),
            rows: x.dims()[1],
            outputs: matrix.weights.dims()[0] / all,
            columns: matrix.columns,
            sums: 1,
        });
        let matrices = self.those_of(f, matrix, all, &blocks.owners);
        self.rows_product(f, x.clone(), &matrices, tiles)
    }

    /// The sum of what blocks have of each row, times its shares.
    fn of_rows(&self, f: &mut Function<'_>, y: &Value, routed: &Routed, blocks: &Blocks) -> Value {
        let &[number, size, outputs] = y.dims() else { unreachable!("blocks of rows of columns") };
        let &[rows, top_k] = routed.shares.dims() else { unreachable!("rows of shares") };
        let y = f.b.reshape(y, &[number * size, outputs]);
        let (places, shares) = (&blocks.places, &routed.shares);
        let term = |i: &str| {
            format!(
                "%pair{i} = arith.addi %first, %k{i} : index
                 %place_stored{i} = tensor.extract {}[%pair{i}] : {}
                 %place{i} = arith.index_cast %place_stored{i} : i32 to index
                 %made{i} = tensor.extract {}[%place{i}, %n] : {}
                 %share{i} = tensor.extract {}[%m, %k{i}] : {}
                 %term{i} = arith.mulf %made{i}, %share{i} : f32",
                places.name, places.ty, y.name, y.ty, shares.name, shares.ty
            )
        };
        let body = format!(
            "%top_k = arith.constant {top_k} : index
             %first = arith.muli %m, %top_k : index
             {}
             linalg.yield %total : f32",
            sum(top_k, &term)
        );
        let into = f.b.empty(&[rows, outputs], None);
        threads(f, &["m", "n"], &into, &body)
    }

    /// Puts rows that have chosen one of `all` experts beside each other.
    fn blocks(&self, f: &mut Function<'_>, all: usize, routed: &Routed) -> Blocks {
        let &[rows, top_k] = routed.chosen.dims() else { unreachable!("rows of experts") };
        let pairs = rows * top_k;
        // Twice as many rows as experts have on average: most have all of theirs in one.
        let size = (2 * pairs / all).next_power_of_two().clamp(2, MOST_ROWS);
        // Each expert may have one block that is not full; and a block has one pair at least.
        let number = pairs.min((pairs + all * (size - 1)) / size);
        let chosen = f.b.reshape(&routed.chosen, &[pairs]);
        let of_chosen = &chosen.ty;
        let chosen_name = &chosen.name;
        let int = ElementType::I32;

        let is_mine = |i: &str| {
            format!(
                "%chosen{i} = tensor.extract {chosen_name}[%k{i}] : {of_chosen}
                 %is_mine{i} = arith.cmpi eq, %chosen{i}, %mine : i32
                 %term{i} = arith.uitofp %is_mine{i} : i1 to f32"
            )
        };
        let body = format!(
            "%mine = arith.index_cast %e : index to i32
             {}
             %rows = arith.fptosi %total : f32 to i32
             %rest = arith.constant {} : i32
             %all = arith.addi %rows, %rest : i32
             %size = arith.constant {size} : i32
             %blocks = arith.divui %all, %size : i32
             linalg.yield %blocks : i32",
            sum(pairs, &is_mine),
            size - 1,
        );
        let into = f.b.empty_of(int, &[all], None);
        let of_expert = threads(f, &["e"], &into, &body);
        let of_expert = f.kept(of_expert);

        let blocks_before = |i: &str| {
            format!(
                "%number{i} = arith.index_cast %k{i} : index to i32
                 %is_before{i} = arith.cmpi ult, %number{i}, %mine : i32
                 %blocks_stored{i} = tensor.extract {}[%k{i}] : {}
                 %blocks{i} = arith.uitofp %blocks_stored{i} : i32 to f32
                 %term{i} = arith.select %is_before{i}, %blocks{i}, %nothing : f32",
                of_expert.name, of_expert.ty
            )
        };
        let rows_before = |i: &str| {
            format!(
                "%chosen{i} = tensor.extract {chosen_name}[%k{i}] : {of_chosen}
                 %is_mine{i} = arith.cmpi eq, %chosen{i}, %mine : i32
                 %is_before{i} = arith.cmpi ult, %k{i}, %p : index
                 %counts{i} = arith.andi %is_mine{i}, %is_before{i} : i1
                 %term{i} = arith.uitofp %counts{i} : i1 to f32"
            )
        };
        let body = format!(
            "%nothing = arith.constant 0.0 : f32
             %mine = tensor.extract {chosen_name}[%p] : {of_chosen}
             {}
             {}
             %blocks = arith.fptosi %total_blocks : f32 to i32
             %rows = arith.fptosi %total_rows : f32 to i32
             %size = arith.constant {size} : i32
             %before = arith.muli %blocks, %size : i32
             %place = arith.addi %before, %rows : i32
             linalg.yield %place : i32",
            sum_named("_blocks", all, &blocks_before),
            sum_named("_rows", pairs, &rows_before),
        );
        let into = f.b.empty_of(int, &[pairs], None);
        let places = threads(f, &["p"], &into, &body);
        let places = f.kept(places);

        // What is `of` the pair that is at a place; 0 where none is.
        let found = |of: &str| {
            let of = of.to_owned();
            let places = places.clone();
            move |i: &str| {
                format!(
                    "%there{i} = tensor.extract {}[%k{i}] : {}
                     %is_there{i} = arith.cmpi eq, %there{i}, %place : i32
                     {}
                     %what{i} = arith.uitofp %of{i} : i32 to f32
                     %term{i} = arith.select %is_there{i}, %what{i}, %nothing : f32",
                    places.name,
                    places.ty,
                    of.replace('$', i),
                )
            }
        };
        let row = format!(
            "%top_k$ = arith.constant {top_k} : index
             %row$ = arith.divui %k$, %top_k$ : index
             %of$ = arith.index_cast %row$ : index to i32"
        );
        let body = format!(
            "%nothing = arith.constant 0.0 : f32
             %size = arith.constant {size} : index
             %before = arith.muli %b, %size : index
             %index = arith.addi %before, %m : index
             %place = arith.index_cast %index : index to i32
             {}
             %row = arith.fptosi %total : f32 to i32
             linalg.yield %row : i32",
            sum(pairs, &found(&row))
        );
        let into = f.b.empty_of(int, &[number, size], None);
        let origins = threads(f, &["b", "m"], &into, &body);
        let origins = f.kept(origins);

        // The first place of a block is never padding.
        let expert = format!("%of$ = tensor.extract {chosen_name}[%k$] : {of_chosen}");
        let body = format!(
            "%nothing = arith.constant 0.0 : f32
             %size = arith.constant {size} : index
             %index = arith.muli %b, %size : index
             %place = arith.index_cast %index : index to i32
             {}
             %expert = arith.fptosi %total : f32 to i32
             linalg.yield %expert : i32",
            sum(pairs, &found(&expert))
        );
        let into = f.b.empty_of(int, &[number], None);
        let owners = threads(f, &["b"], &into, &body);
        let owners = f.kept(owners);
        Blocks { owners, origins, places }
    }

    /// Of a matrix that has those of `all` experts one behind the other, those at `indices`: a matrix for each.
    fn those_of(
        &self,
        f: &mut Function<'_>,
        matrix: &Matrix,
        all: usize,
        indices: &Value,
    ) -> Matrix {
        let weights = self.integers(f, matrix);
        let mut slabs = |plane: &Value| {
            let (rows, columns) = plane.dims().split_first().expect("rows");
            let dims: Vec<_> = [all, rows / all].iter().chain(columns).copied().collect();
            let plane = f.b.reshape(plane, &dims);
            gathered(f, &plane, indices)
        };
        Matrix {
            weights: slabs(&weights),
            scales: matrix.scales.as_ref().map(slabs),
            format: matrix.format,
            columns: matrix.columns,
        }
    }
}

/// Most rows of a block: as many as a thread meets with each weight.
const MOST_ROWS: usize = 8;

/// Slices of `from`, by their numbers.
fn gathered(f: &mut Function<'_>, from: &Value, indices: &Value) -> Value {
    let dims: Vec<_> = indices.dims().iter().chain(&from.dims()[1..]).copied().collect();
    let into = f.b.empty_of(from.ty.element, &dims, None);
    f.b.gather(&Gather { from, indices, into: &into })
}
