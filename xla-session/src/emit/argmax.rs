//! The most likely token, on the device.

use super::builder::{Combine, NEG_INF, Value};
use super::{ElementType, Emitter, Target};

impl Emitter<'_> {
    /// The index of the largest of `logits`, `[n]`, among the first `valid`; the lowest on ties,
    /// `i32::MAX` when there is none (NaN).
    pub(super) fn argmax(&mut self, logits: &Value, valid: usize) -> Value {
        let n = logits.dims()[0];
        // Two stages, so that the first can run on all threads: rows of the logits, and a multiple
        // of `parts` of what they leave.
        let (width, parts) = match self.target {
            Target::Cuda(tiles) => tiles.argmax(n),
            _ => ((1..=256).rev().find(|w| n.is_multiple_of(*w)).unwrap_or(1), 1),
        };
        let logits = self.padded(logits, width, NEG_INF);
        let dims = [logits.dims()[0] / width, width];
        let logits = self.b.reshape(&logits, &dims);
        let row = self.b.iota(&dims, 0);
        let by = self.b.splat(width, &dims, ElementType::I32);
        let row = self.b.mul(&row, &by);
        let column = self.b.iota(&dims, 1);
        let index = self.b.add(&row, &column);
        let logits = if valid == n {
            logits
        } else {
            let end = self.b.splat(valid, &dims, ElementType::I32);
            let real = self.b.compare("LT", &index, &end);
            let never = self.b.splat(NEG_INF, &dims, ElementType::F32);
            self.b.select(&real, &logits, &never)
        };
        let max = self.b.reduce(&logits, &[1], Combine::Max);
        match self.target {
            Target::Cuda(_) => self.first_among_all(&logits, &index, &max, parts),
            _ => self.first_of_its_row(&logits, &index, &max),
        }
    }

    /// The lowest index of the largest of `logits`, whose rows have the largest values `max`.
    fn first_among_all(
        &mut self,
        logits: &Value,
        index: &Value,
        max: &Value,
        parts: usize,
    ) -> Value {
        let max = self.padded(max, parts, NEG_INF);
        let max = self.b.reduce(&max, &[0], Combine::Max);
        let max = self.kept(max);
        let index = self.where_it_is(logits, index, &max);
        let index = self.b.reduce(&index, &[1], Combine::Min);
        let index = self.padded(&index, parts, &i32::MAX.to_string());
        let index = self.b.reduce(&index, &[0], Combine::Min);
        self.b.reshape(&index, &[1])
    }

    /// The same by looking at one row alone, the first with the largest value: a CPU reads the
    /// others a second time at a few elements a nanosecond.
    fn first_of_its_row(&mut self, logits: &Value, index: &Value, max: &Value) -> Value {
        let rows = max.dims()[0];
        let largest = self.b.reduce(max, &[0], Combine::Max);
        let row = self.b.iota(&[rows], 0);
        let row = self.where_it_is(max, &row, &largest);
        let row = self.b.reduce(&row, &[0], Combine::Min);
        let row = self.b.reshape(&row, &[1]);
        // Where no value is a number no row has the largest, and the compiler checks no index.
        let last = self.b.splat(rows - 1, &[1], ElementType::I32);
        let row = self.b.min(&row, &last);
        let [logits, index] = [logits, index].map(|it| self.b.gather_rows(it, &row));
        let index = self.where_it_is(&logits, &index, &largest);
        let index = self.b.reduce(&index, &[1], Combine::Min);
        self.b.reshape(&index, &[1])
    }

    /// `index` where `values` are `value`, else `i32::MAX`.
    fn where_it_is(&mut self, values: &Value, index: &Value, value: &Value) -> Value {
        let dims = values.dims();
        let value = self.b.broadcast(value, dims, &[]);
        let is = self.b.compare("EQ", values, &value);
        let none = self.b.splat(i32::MAX, dims, ElementType::I32);
        self.b.select(&is, index, &none)
    }

    /// A vector with `value` behind it, up to a multiple of `of` elements.
    fn padded(&mut self, a: &Value, of: usize, value: &str) -> Value {
        let n = a.dims()[0];
        if n.is_multiple_of(of) {
            return a.clone();
        }
        let padding = self.b.splat(value, &[n.next_multiple_of(of) - n], a.ty.element);
        self.joined(&[a.clone(), padding], 0)
    }
}

#[cfg(all(test, feature = "iree"))]
mod tests {
    use std::path::Path;

    use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};

    use super::*;
    use crate::config::ModelConfig;
    use crate::emit::builder::TensorType;
    use crate::emit::{CpuTiles, CudaTiles, Format, WeightFormats};
    use crate::kernels::Isa;

    const LENGTH: usize = 1000;
    const VALID: usize = 990;

    /// The module of an argmax over [`LENGTH`] logits, of which [`VALID`] are some.
    fn module(target: &Target) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-mha-f32");
        let config = ModelConfig::from_dir(&folder).unwrap();
        let formats = WeightFormats::all(Format::F32);
        let mut emitter = Emitter::new(&config, &formats, target, 1, None);
        let ty = TensorType::new(&[LENGTH], ElementType::F32);
        let token = emitter.argmax(&Value { name: "%logits".into(), ty: ty.clone() }, VALID);
        let body = emitter.b.text();
        let Value { name, ty: of } = token;
        format!(
            "module @m {{ func.func public @argmax(%logits: {ty}) -> {of} {{\n{body}\n\
             return {name} : {of} }} }}"
        )
    }

    #[test]
    fn the_lowest_of_the_largest() {
        let targets = [
            Target::Portable { capacity: 64 },
            Target::Cpu(CpuTiles::new(Isa::detect(), 2)),
            Target::Cuda(CudaTiles::portable()),
        ];
        let device = Instance::get().unwrap().device("local-task").unwrap();
        for target in targets {
            let options =
                CompileOptions::for_device("local-task").flag("--iree-input-type=stablehlo");
            let code = Compiler::find().unwrap().compile(&module(&target), &options).unwrap();
            // SAFETY: the compiler of this build made the bytes for this machine.
            let module = unsafe { Module::from_bytes(&code) }.unwrap();
            let mut session = Session::builder(&device).module(module).build().unwrap();
            let argmax = session.function("m.argmax").unwrap();
            let mut of = |largest: f32, places: &[usize]| {
                let mut logits: Vec<f32> = (0..LENGTH).map(|i| -1.0 - (i % 77) as f32).collect();
                // What is padding may be anything.
                logits[VALID..].fill(f32::MAX);
                for &place in places {
                    logits[place] = largest;
                }
                let logits = device.buffer_view(&[LENGTH], &logits).unwrap();
                let token = session.call(&argmax, [logits.into()]).unwrap();
                token.buffer_view(0).unwrap().read::<i32>().unwrap()[0]
            };
            for place in [0, 1, 249, 250, 500, 777, VALID - 1] {
                assert_eq!(of(3.0, &[place]), place as i32, "{target:?}");
                // Equals behind it, in its row and in another one.
                assert_eq!(of(3.0, &[place, place + 1, VALID - 1]), place as i32, "{target:?}");
                assert_eq!(of(f32::INFINITY, &[place]), place as i32, "{target:?}");
                assert_eq!(of(f32::NAN, &[place]), i32::MAX, "{target:?}: NaN at {place}");
            }
            assert_eq!(of(-1e30, &[0]), 77, "{target:?}");
        }
    }
}
