//! Products with weights that lie row by row, `[rows, columns]` or `[rows, groups, 32]` where they are quantised.

use kernels::GROUP;

use super::VulkanTarget;
use crate::emit::Format;
use crate::emit::builder::{ElementType, Value};
use crate::lower::paged::{Function, Matrix, sum, threads};

/// The planes of a weight matrix as threads read them.
pub(super) struct Planes {
    weights: Value,
    scales: Option<Value>,
    format: Format,
}

impl Planes {
    pub fn of(f: &mut Function<'_>, matrix: &Matrix) -> Self {
        let Matrix { weights, scales, format, .. } = matrix;
        let weights = match format {
            // Bits: few devices have arithmetic on them.
            Format::Bf16 | Format::Bf16Rounded => {
                let bits = ElementType::I16;
                let &[rows, columns] = weights.dims() else { unreachable!("rows of columns") };
                let text = format!(
                    "flow.tensor.bitcast {} : {} -> tensor<{rows}x{columns}xi16>",
                    weights.name, weights.ty
                );
                f.b.op(&[rows, columns], bits, text)
            }
            _ => weights.clone(),
        };
        Self { weights, scales: scales.clone(), format: *format }
    }

    /// Makes `%weight<i>` of row `row` and column `column`, f32.
    pub fn element(&self, row: &str, column: &str, i: &str) -> String {
        let Self { weights: Value { name, ty }, scales, format } = self;
        match format {
            Format::F32 => {
                return format!("%weight{i} = tensor.extract {name}[{row}, {column}] : {ty}");
            }
            Format::F16 => {
                return format!(
                    "%stored{i} = tensor.extract {name}[{row}, {column}] : {ty}
                     %weight{i} = arith.extf %stored{i} : f16 to f32"
                );
            }
            Format::Bf16 | Format::Bf16Rounded => {
                return format!(
                    "%stored{i} = tensor.extract {name}[{row}, {column}] : {ty}
                     %low{i} = arith.extui %stored{i} : i16 to i32
                     %sixteen{i} = arith.constant 16 : i32
                     %bits{i} = arith.shli %low{i}, %sixteen{i} : i32
                     %weight{i} = arith.bitcast %bits{i} : i32 to f32"
                );
            }
            _ => {}
        }
        let scales = scales.as_ref().expect("whatever else lies in rows has scales");
        let integer = match format {
            Format::Int4 => format!(
                "%two{i} = arith.constant 2 : index
                 %byte{i} = arith.divui %within{i}, %two{i} : index
                 %half{i} = arith.remui %within{i}, %two{i} : index
                 %stored{i} = tensor.extract {name}[{row}, %group{i}, %byte{i}] : {ty}
                 %both{i} = arith.extui %stored{i} : i8 to i32
                 %which{i} = arith.index_cast %half{i} : index to i32
                 %four{i} = arith.constant 4 : i32
                 %above{i} = arith.constant 28 : i32
                 %of_half{i} = arith.muli %which{i}, %four{i} : i32
                 %up{i} = arith.subi %above{i}, %of_half{i} : i32
                 %high{i} = arith.shli %both{i}, %up{i} : i32
                 %integer{i} = arith.shrsi %high{i}, %above{i} : i32
                 %wide{i} = arith.sitofp %integer{i} : i32 to f32"
            ),
            _ => format!(
                "%stored{i} = tensor.extract {name}[{row}, %group{i}, %within{i}] : {ty}
                 %wide{i} = arith.sitofp %stored{i} : i8 to f32"
            ),
        };
        format!(
            "%in_group{i} = arith.constant {GROUP} : index
             %group{i} = arith.divui {column}, %in_group{i} : index
             %within{i} = arith.remui {column}, %in_group{i} : index
             {integer}
             %scale_stored{i} = tensor.extract {}[{row}, %group{i}] : {}
             %scale{i} = arith.extf %scale_stored{i} : f16 to f32
             %weight{i} = arith.mulf %wide{i}, %scale{i} : f32",
            scales.name, scales.ty
        )
    }
}

impl VulkanTarget {
    /// `x` `[rows, columns]` times `matrix`, `[rows, matrix rows]`; a thread has one of them.
    pub(super) fn product(&self, f: &mut Function<'_>, x: &Value, matrix: &Matrix) -> Value {
        let (rows, outputs) = (x.dims()[0], matrix.weights.dims()[0]);
        let planes = Planes::of(f, matrix);
        let term = |i: &str| {
            format!(
                "{}
                 %x{i} = tensor.extract {}[%m, %k{i}] : {}
                 %term{i} = arith.mulf %weight{i}, %x{i} : f32",
                planes.element("%output", &format!("%k{i}"), i),
                x.name,
                x.ty,
            )
        };
        self.summed(f, &[("m", rows)], outputs, matrix.columns, &term)
    }

    /// Sums of `extent` terms, which `term` writes for the loops of `outer` and for `%output`, one of `outputs`;
    /// `[outer.., outputs]`.
    pub(super) fn summed(
        &self,
        f: &mut Function<'_>,
        outer: &[(&str, usize)],
        outputs: usize,
        extent: usize,
        term: &dyn Fn(&str) -> String,
    ) -> Value {
        let (mut names, mut dims): (Vec<_>, Vec<_>) = outer.iter().copied().unzip();
        names.push("n");
        let at_once = self.at_once(outputs, dims.iter().product());
        let mut parts = Vec::new();
        for first in (0..outputs).step_by(at_once) {
            let many = at_once.min(outputs - first);
            let body = format!(
                "%first = arith.constant {first} : index
                 %output = arith.addi %first, %n : index
                 {}
                 linalg.yield %total : f32",
                sum(extent, term)
            );
            dims.push(many);
            let into = f.b.empty(&dims, None);
            dims.pop();
            parts.push(threads(f, &names, &into, &body));
        }
        match &parts[..] {
            [_] => parts.remove(0),
            parts => f.joined(parts, outer.len()),
        }
    }

    pub(super) fn gathered(&self, f: &mut Function<'_>, table: &Matrix, indices: &Value) -> Value {
        let planes = Planes::of(f, table);
        let body = format!(
            "%index = tensor.extract {}[%m] : {}
             %row = arith.index_cast %index : i32 to index
             {}
             linalg.yield %weight0 : f32",
            indices.name,
            indices.ty,
            planes.element("%row", "%k", "0"),
        );
        let into = f.b.empty(&[indices.dims()[0], table.columns], None);
        threads(f, &["m", "k"], &into, &body)
    }
}
