//! The most likely token, on the device.

use super::Emitter;
use crate::emit::builder::{Combine, ElementType, Value};

impl Emitter<'_> {
    /// The index of the largest of `logits`, `[n]`; the lowest on ties, `i32::MAX` where one of them
    /// is NaN.
    pub(super) fn argmax(&mut self, logits: &Value) -> Value {
        let n = logits.dims()[0];
        // Rows of the logits, so that the first stage can run on all threads.
        let width = (1..=256).rev().find(|w| n.is_multiple_of(*w)).unwrap_or(1);
        let logits = self.b.reshape(logits, &[n / width, width]);
        let max = self.b.reduce(&logits, &[1], Combine::Max);
        self.first_of_its_row(&logits, &max)
    }

    /// The lowest index of the largest of `logits`, whose rows have the largest values `max`: by
    /// looking at one row alone, the first with the largest value.
    fn first_of_its_row(&mut self, logits: &Value, max: &Value) -> Value {
        let &[rows, width] = logits.dims() else { unreachable!("rows of logits") };
        let largest = self.b.reduce(max, &[0], Combine::Max);
        let row = self.b.iota(&[rows], 0);
        let row = self.where_it_is(max, &row, &largest);
        let row = self.b.reduce(&row, &[0], Combine::Min);
        let row = self.b.reshape(&row, &[1]);
        // Beside a NaN no row has the largest, and the compiler checks no index.
        let last = self.b.splat(rows - 1, &[1], ElementType::I32);
        let row = self.b.min(&row, &last);
        let logits = self.b.gather_rows(logits, &row);
        let column = self.b.iota(&[1, width], 1);
        let by = self.b.splat(width, &[1], ElementType::I32);
        let first = self.b.mul(&row, &by);
        let first = self.b.broadcast(&first, &[1, width], &[0]);
        let index = self.b.add(&first, &column);
        let index = self.where_it_is(&logits, &index, &largest);
        self.b.reduce(&index, &[1], Combine::Min)
    }

    /// `index` where `values` are `value`, else `i32::MAX`.
    fn where_it_is(&mut self, values: &Value, index: &Value, value: &Value) -> Value {
        let dims = values.dims();
        let value = self.b.broadcast(value, dims, &[]);
        let is = self.b.compare("EQ", values, &value);
        let none = self.b.splat(i32::MAX, dims, ElementType::I32);
        self.b.select(&is, index, &none)
    }
}

#[cfg(all(test, feature = "iree"))]
mod tests {
    use std::path::Path;

    use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};

    use super::*;
    use crate::emit::builder::TensorType;
    use crate::emit::{Format, WeightFormats};
    use checkpoint::config::ModelConfig;

    /// The module of an argmax over `length` logits.
    fn module(length: usize) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-mha-f32");
        let config = ModelConfig::from_dir(&folder).unwrap();
        let formats = WeightFormats::all(Format::F32);
        let mut emitter = Emitter::new(&config, &formats, 64, 1);
        let ty = TensorType::new(&[length], ElementType::F32);
        let token = emitter.argmax(&Value { name: "%logits".into(), ty: ty.clone() });
        let body = emitter.b.text();
        let Value { name, ty: of } = token;
        format!(
            "module @m {{ func.func public @argmax(%logits: {ty}) -> {of} {{\n{body}\n\
             return {name} : {of} }} }}"
        )
    }

    #[test]
    fn the_lowest_of_the_largest() {
        // Rows of 250, of 256, of 97, and of one logit, as the number is prime.
        for length in [1000, 1024, 97, 1009] {
            check(length);
        }
    }

    fn check(length: usize) {
        let device = Instance::get().unwrap().device("local-task").unwrap();
        let options = CompileOptions::for_device("local-task").flag("--iree-input-type=stablehlo");
        let text = module(length);
        let code = Compiler::find().unwrap().compile(&text, &options).unwrap();
        // SAFETY: the compiler of this build made the bytes for this machine.
        let module = unsafe { Module::from_bytes(&code) }.unwrap();
        let mut session = Session::builder(&device).module(module).build().unwrap();
        let argmax = session.function("m.argmax").unwrap();
        let mut of = |largest: f32, places: &[usize]| {
            let mut logits: Vec<f32> = (0..length).map(|i| -1.0 - (i % 77) as f32).collect();
            for &place in places {
                logits[place] = largest;
            }
            let logits = device.buffer_view(&[length], &logits).unwrap();
            let token = session.call(&argmax, [logits]).unwrap();
            token.view(0).unwrap().read::<i32>().unwrap()[0]
        };
        let what = format!("{length} logits");
        let last = length - 1;
        for place in [0, 1, 30, 249, 250, 500, 777, last].into_iter().filter(|it| *it <= last) {
            assert_eq!(of(3.0, &[place]), place as i32, "{what}");
            // Equals behind it, in its row and in another one.
            let behind = (place + 1).min(last);
            assert_eq!(of(3.0, &[place, behind, last]), place as i32, "{what}");
            assert_eq!(of(f32::INFINITY, &[place]), place as i32, "{what}");
            assert_eq!(of(f32::NAN, &[place]), i32::MAX, "{what}: NaN at {place}");
        }
        assert_eq!(of(-1e30, &[0]), 77, "{what}");
    }
}
