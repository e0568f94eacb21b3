//! The most likely token, on the device.

use super::builder::{Combine, NEG_INF, Value};
use super::{ElementType, Emitter, Target};

impl Emitter<'_> {
    /// The index of the largest of `logits`, `[n]`, among the first `valid`; the lowest on ties,
    /// `i32::MAX` where one of them is NaN.
    pub(super) fn argmax(&mut self, logits: &Value, valid: usize) -> Value {
        let n = logits.dims()[0];
        // Rows of the logits, so that the first stage can run on all threads.
        let width = match self.target {
            Target::Cuda(tiles) => tiles.argmax(n).0,
            _ => (1..=256).rev().find(|w| n.is_multiple_of(*w)).unwrap_or(1),
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
            // What the rows leave is a multiple of so many.
            Target::Cuda(tiles) => self.first_among_all(&logits, &index, &max, tiles.argmax(n).1),
            _ => self.first_of_its_row(&logits, &max),
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

    /// The same by looking at one row alone, the first with the largest value: over all of them a
    /// CPU takes 1% of an int4 token.
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
    use crate::emit::builder::TensorType;
    use crate::emit::{CudaTiles, Format, WeightFormats};
    use checkpoint::config::ModelConfig;

    /// The module of an argmax over `length` logits, of which `valid` are some.
    fn module(target: &Target, length: usize, valid: usize) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-mha-f32");
        let config = ModelConfig::from_dir(&folder).unwrap();
        let formats = WeightFormats::all(Format::F32);
        let mut emitter = Emitter::new(&config, &formats, target, 1, None);
        let ty = TensorType::new(&[length], ElementType::F32);
        let token = emitter.argmax(&Value { name: "%logits".into(), ty: ty.clone() }, valid);
        let body = emitter.b.text();
        let Value { name, ty: of } = token;
        format!(
            "module @m {{ func.func public @argmax(%logits: {ty}) -> {of} {{\n{body}\n\
             return {name} : {of} }} }}"
        )
    }

    #[test]
    fn the_lowest_of_the_largest() {
        let targets = [Target::Portable { capacity: 64 }, Target::Cuda(CudaTiles::portable())];
        // Rows of 250, of 256 but for one row of 97, and of one logit, as the number is prime.
        for (length, valid) in [(1000, 990), (1024, 1024), (97, 97), (1009, 1009)] {
            for target in &targets {
                check(target, length, valid);
            }
        }
    }

    fn check(target: &Target, length: usize, valid: usize) {
        let device = Instance::get().unwrap().device("local-task").unwrap();
        let options = CompileOptions::for_device("local-task").flag("--iree-input-type=stablehlo");
        let text = module(target, length, valid);
        let code = Compiler::find().unwrap().compile(&text, &options).unwrap();
        // SAFETY: the compiler of this build made the bytes for this machine.
        let module = unsafe { Module::from_bytes(&code) }.unwrap();
        let mut session = Session::builder(&device).module(module).build().unwrap();
        let argmax = session.function("m.argmax").unwrap();
        let mut of = |largest: f32, places: &[usize]| {
            let mut logits: Vec<f32> = (0..length).map(|i| -1.0 - (i % 77) as f32).collect();
            // What is padding may be anything.
            logits[valid..].fill(f32::MAX);
            for &place in places {
                logits[place] = largest;
            }
            let logits = device.buffer_view(&[length], &logits).unwrap();
            let token = session.call(&argmax, [logits]).unwrap();
            token.view(0).unwrap().read::<i32>().unwrap()[0]
        };
        let what = format!("{target:?}, {valid} of {length}");
        let last = valid - 1;
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
