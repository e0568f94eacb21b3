//! The pages of keys and values: a step's own are scattered into them by slot.

use kernels::KV_BLOCK;

use super::Source;
use super::function::Function;
use super::rope::Angles;
use crate::emit::builder::{ElementType, Generic, Memory, Scatter, Value, Workgroups};

impl Function<'_> {
    /// Writes to the slot of each row the keys behind the queries of `both`,
    /// `[rows, heads + kv_heads or more, head_dim]`, rotated, and the values behind both in `qkv`,
    /// `[rows, heads + 2 * kv_heads, head_dim]`, which may be `both`, in one dispatch.
    pub fn append(
        &mut self,
        cache: &Memory,
        both: &Value,
        qkv: &Value,
        kv_heads: usize,
        rope: Option<usize>,
    ) -> Memory {
        let &[rows, heads, width] = qkv.dims() else { unreachable!("heads have 3 dims") };
        // A layer that does not rotate reads the angles of one that does, and nothing of them.
        let at = rope.unwrap_or(0);
        let [slots, cos, sin] =
            [Source::Slots, Source::Cos(at), Source::Sin(at)].map(|source| self.input(source));
        let dispatch = self.b.begin_updating(&[&slots, &cos, &sin, both, qkv], cache);
        let [slots, cos, sin, both, qkv] = &dispatch.reads[..] else {
            unreachable!("as many as outside")
        };
        let angles = Angles { rope: &self.config.architecture.ropes[at], cos, sin };
        let body = format!(
            "%row = linalg.index 0 : index
             %h = linalg.index 1 : index
             %column = linalg.index 2 : index
             %kv_heads = arith.constant {kv_heads} : index
             %is_key = arith.cmpi ult, %h, %kv_heads : index
             %queries = arith.constant {} : index
             %behind = arith.addi %queries, %h : index
             %last = arith.constant {} : index
             %head = arith.minui %behind, %last : index
             {}
             %value = tensor.extract {}[%row, %behind, %column] : {}
             %new = arith.select %is_key, %rotated, %value : f32
             linalg.yield %new : f32",
            heads - 2 * kv_heads,
            both.dims()[1] - 1,
            self.rotation(both, rope.map(|_| &angles)),
            qkv.name,
            qkv.ty,
        );
        let nest =
            Generic { loops: "r,h,d", inputs: &[], result: "r,h,d", body: &body, config: None };
        let into = self.b.empty(&[rows, 2 * kv_heads, width], None);
        let new = self.b.generic(&nest, &into);
        let slots = slots.clone();
        self.end_scattering(dispatch, &new, &slots, cache)
    }

    /// Ends a dispatch that writes the rows of `new`, `[rows, heads, width]`, to their `slots` of `cache`.
    pub(super) fn end_scattering(
        &mut self,
        dispatch: Workgroups,
        new: &Value,
        slots: &Value,
        cache: &Memory,
    ) -> Memory {
        let rows = new.dims()[0];
        // The page, and the row of it.
        let body = format!(
            "%row = linalg.index 0 : index
             %which = linalg.index 1 : index
             %slot = tensor.extract {}[%row] : {}
             %block = arith.constant {KV_BLOCK} : i32
             %page = arith.divui %slot, %block : i32
             %token = arith.remui %slot, %block : i32
             %zero = arith.constant 0 : index
             %first = arith.cmpi eq, %which, %zero : index
             %number = arith.select %first, %page, %token : i32
             linalg.yield %number : i32",
            slots.name, slots.ty,
        );
        let nest = Generic { loops: "r,i", inputs: &[], result: "r,i", body: &body, config: None };
        let into = self.b.empty_of(ElementType::I32, &[rows, 2], None);
        let places = self.b.generic(&nest, &into);
        let pages = self.b.memory_of(&dispatch);
        let pages = self.b.scatter(&Scatter { new, places: &places, into: &pages });
        self.b.end_updating(dispatch, &pages, cache)
    }
}
