//! The most likely tokens, on the device.

use super::VulkanTarget;
use crate::emit::builder::{ElementType, Value};
use crate::lower::paged::{Function, threads};

/// Threads that share the logits of a row.
const SHARES: usize = 64;

impl VulkanTarget {
    pub(super) fn most_likely(&self, f: &mut Function<'_>, logits: &Value) -> Value {
        let &[rows, n] = logits.dims() else { unreachable!("rows of logits") };
        let shares = SHARES.min(n);
        let share = n.div_ceil(shares);
        let (name, ty) = (&logits.name, &logits.ty);
        let body = format!(
            "%share = arith.constant {share} : index
             %one = arith.constant 1 : index
             %all = arith.constant {n} : index
             %last = arith.constant {} : index
             %from = arith.muli %p, %share : index
             %first = arith.minui %from, %last : index
             %behind = arith.addi %first, %share : index
             %end = arith.minui %behind, %all : index
             %begin = tensor.extract {name}[%m, %first] : {ty}
             %at_first = arith.index_cast %first : index to i32
             %nan = arith.constant {} : i32
             %zero = arith.constant 0 : i32
             %most:3 = scf.for %k = %first to %end step %one iter_args(%best = %begin, %at = \
             %at_first, %bad = %zero) -> (f32, i32, i32) {{
             %value = tensor.extract {name}[%m, %k] : {ty}
             %here = arith.index_cast %k : index to i32
             %more = arith.cmpf ogt, %value, %best : f32
             %better = arith.select %more, %value, %best : f32
             %where = arith.select %more, %here, %at : i32
             %is_nan = arith.cmpf uno, %value, %value : f32
             %worse = arith.select %is_nan, %nan, %bad : i32
             scf.yield %better, %where, %worse : f32, i32, i32
             }}
             %picked = arith.maxsi %most#1, %most#2 : i32
             linalg.yield %picked : i32",
            n - 1,
            i32::MAX,
        );
        let into = f.b.empty_of(ElementType::I32, &[rows, shares], None);
        let parts = threads(f, &["m", "p"], &into, &body);
        let parts = f.kept(parts);
        // A number that is none stays: nothing is larger.
        let body = format!(
            "%shares = arith.constant {shares} : index
             %one = arith.constant 1 : index
             %begin = arith.constant 0 : index
             %last = arith.constant {} : i32
             %at_first = tensor.extract {}[%m, %begin] : {}
             %most = scf.for %p = %begin to %shares step %one iter_args(%at = %at_first) -> (i32) {{
             %here = tensor.extract {}[%m, %p] : {}
             %within = arith.minui %here, %last : i32
             %so_far = arith.minui %at, %last : i32
             %k = arith.index_cast %within : i32 to index
             %before = arith.index_cast %so_far : i32 to index
             %value = tensor.extract {name}[%m, %k] : {ty}
             %best = tensor.extract {name}[%m, %before] : {ty}
             %more = arith.cmpf ogt, %value, %best : f32
             %better = arith.select %more, %here, %at : i32
             %none = arith.cmpi sgt, %here, %last : i32
             %was_none = arith.cmpi sgt, %at, %last : i32
             %with = arith.select %none, %here, %better : i32
             %where = arith.select %was_none, %at, %with : i32
             scf.yield %where : i32
             }}
             linalg.yield %most : i32",
            n - 1,
            parts.name,
            parts.ty,
            parts.name,
            parts.ty,
        );
        let into = f.b.empty_of(ElementType::I32, &[rows], None);
        threads(f, &["m"], &into, &body)
    }
}
