//! Short convolutions: a step's own rows are scattered into the pages by slot, as keys and values are, and read
//! with those before them.

use checkpoint::architecture::{Norm, ShortConvolution};
use kernels::KV_BLOCK;

use super::Source;
use super::function::Function;
use crate::emit::WeightSpec;
use crate::emit::builder::{ElementType, Generic, Memory, TensorType, Value};

impl Function<'_> {
    /// Of `x`, RMS-normed with `norm` if there is one.
    pub fn short_convolution(
        &mut self,
        layer: usize,
        convolution: &ShortConvolution,
        x: &Value,
        norm: Option<&Norm>,
    ) -> Value {
        let ShortConvolution { input, output, .. } = convolution;
        let bcx = self.normed_product(x, norm, &[&input.weight]);
        let bcx = self.biased(bcx, &[input]);
        let bcx = self.kept(bcx);
        // Two halves, as on CPUs; with one of a whole row the compiler would not cut the dispatch that fills it.
        let cache = self.cache(layer, [2, convolution.width() / 2]);
        let cache = self.keep_products(&cache, &bcx);
        self.updated(layer, &cache);
        let mixed = self.convolved(&cache, &bcx, convolution);
        let mixed = self.kept(mixed);
        self.linear(&mixed, output)
    }

    /// Writes to the slot of each row the product of the first and the last third of `bcx`,
    /// `[rows, 3 * width]`.
    fn keep_products(&mut self, cache: &Memory, bcx: &Value) -> Memory {
        let &[rows, all] = bcx.dims() else { unreachable!("rows of projections") };
        let (width, half) = (all / 3, all / 6);
        let slots = self.input(Source::Slots);
        let dispatch = self.b.begin_updating(&[&slots, bcx], cache);
        let [slots, bcx] = &dispatch.reads[..] else { unreachable!("as many as outside") };
        let (name, ty) = (&bcx.name, &bcx.ty);
        let body = format!(
            "%row = linalg.index 0 : index
             %which = linalg.index 1 : index
             %within = linalg.index 2 : index
             %half = arith.constant {half} : index
             %first = arith.muli %which, %half : index
             %column = arith.addi %first, %within : index
             %before = arith.constant {} : index
             %third = arith.addi %before, %column : index
             %b = tensor.extract {name}[%row, %column] : {ty}
             %x = tensor.extract {name}[%row, %third] : {ty}
             %product = arith.mulf %b, %x : f32
             linalg.yield %product : f32",
            2 * width
        );
        let nest =
            Generic { loops: "r,h,d", inputs: &[], result: "r,h,d", body: &body, config: None };
        let into = self.b.empty(&[rows, 2, half], None);
        let new = self.b.generic(&nest, &into);
        let slots = slots.clone();
        self.end_scattering(dispatch, &new, &slots, cache)
    }

    /// The second third of `bcx` times the sum of what the pages hold of the rows that are seen, each times its
    /// tap, `[rows, width]`.
    fn convolved(&mut self, cache: &Memory, bcx: &Value, of: &ShortConvolution) -> Value {
        let (rows, width, seen) = (self.rows, of.width(), of.rows());
        let taps = self.weight(&WeightSpec::floats(&of.taps), 0);
        let [positions, tables, pages] =
            [Source::Positions, Source::Tables, Source::Pages].map(|source| self.input(source));
        let ty = TensorType::new(&[rows, width], ElementType::F32);
        let reads = [&positions, &tables, &pages, &taps, bcx];
        let dispatch = self.b.begin_reading(&reads, cache, ty);
        let memory = self.b.memory_of(&dispatch);
        let [positions, tables, pages, taps, bcx] = &dispatch.reads[..] else {
            unreachable!("as many as outside")
        };
        // Of what is before the first row, the row itself is read, and counts nothing: what nobody has written
        // may be NaN.
        let term = |tap: usize| {
            format!(
                "%back{tap} = arith.constant {} : index
                 %there{tap} = arith.cmpi uge, %position, %back{tap} : index
                 %earlier{tap} = arith.subi %position, %back{tap} : index
                 %at{tap} = arith.select %there{tap}, %earlier{tap}, %position : index
                 %number{tap} = arith.divui %at{tap}, %block : index
                 %slot{tap} = arith.remui %at{tap}, %block : index
                 %in_table{tap} = arith.addi %table, %number{tap} : index
                 %page_stored{tap} = tensor.extract {}[%in_table{tap}] : {}
                 %page{tap} = arith.index_cast %page_stored{tap} : i32 to index
                 %kept{tap} = tensor.extract {}[%page{tap}, %slot{tap}, %which, %within] : {}
                 %tap{tap} = arith.constant {tap} : index
                 %factor{tap} = tensor.extract {}[%column, %tap{tap}] : {}
                 %product{tap} = arith.mulf %factor{tap}, %kept{tap} : f32
                 %term{tap} = arith.select %there{tap}, %product{tap}, %nothing : f32
                 %sum{} = arith.addf %sum{tap}, %term{tap} : f32\n",
                seen - 1 - tap,
                pages.name,
                pages.ty,
                memory.name,
                memory.ty,
                taps.name,
                taps.ty,
                tap + 1,
            )
        };
        let body = format!(
            "%row = linalg.index 0 : index
             %column = linalg.index 1 : index
             %half = arith.constant {} : index
             %which = arith.divui %column, %half : index
             %within = arith.remui %column, %half : index
             %nothing = arith.constant 0.0 : f32
             %sum0 = arith.constant 0.0 : f32
             %block = arith.constant {KV_BLOCK} : index
             %position_stored = tensor.extract {}[%row] : {}
             %position = arith.index_cast %position_stored : i32 to index
             %begin_stored = tensor.extract {}[%row] : {}
             %table = arith.index_cast %begin_stored : i32 to index
             {}
             %before = arith.constant {width} : index
             %second = arith.addi %before, %column : index
             %c = tensor.extract {}[%row, %second] : {}
             %gated = arith.mulf %c, %sum{seen} : f32
             linalg.yield %gated : f32",
            width / 2,
            positions.name,
            positions.ty,
            tables.name,
            tables.ty,
            (0..seen).map(term).collect::<String>(),
            bcx.name,
            bcx.ty,
        );
        let nest = Generic { loops: "r,c", inputs: &[], result: "r,c", body: &body, config: None };
        let into = self.b.empty(&[rows, width], None);
        let mixed = self.b.generic(&nest, &into);
        self.b.end_reading(dispatch, &mixed)
    }
}
