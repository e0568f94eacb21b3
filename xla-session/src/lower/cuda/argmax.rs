//! The most likely tokens, on the device.

use super::CudaTiles;
use crate::emit::builder::{Combine, ElementType, Generic, NEG_INF, Value};
use crate::lower::paged::Function;

impl CudaTiles {
    /// The index of the largest logit of each row of `logits`, `[rows, n]`: the lowest on ties,
    /// `i32::MAX` where one of them is NaN; `[rows]`.
    pub(super) fn most_likely(&self, f: &mut Function<'_>, logits: &Value) -> Value {
        let &[rows, n] = logits.dims() else { unreachable!("rows of logits") };
        // The first stage takes parts, the second what these leave, a multiple of so many.
        let (width, several) = self.argmax_parts(rows, n);
        let logits = match n.is_multiple_of(width) {
            true => logits.clone(),
            false => self.padded(f, logits, width, NEG_INF),
        };
        let dims = [rows, logits.dims()[1] / width, width];
        let logits = f.b.reshape(&logits, &dims);
        let max = f.b.reduce(&logits, &[2], Combine::Max);
        let max = self.padded(f, &max, several, NEG_INF);
        let max = f.b.reduce(&max, &[1], Combine::Max);
        let max = f.kept(max);
        let part = f.b.iota(&dims, 1);
        let by = f.b.splat(width, &dims, ElementType::I32);
        let part = f.b.mul(&part, &by);
        let column = f.b.iota(&dims, 2);
        let index = f.b.add(&part, &column);
        let max = f.b.broadcast(&max, &dims, &[0]);
        let largest = f.b.compare("EQ", &logits, &max);
        let none = f.b.splat(NONE, &dims, ElementType::I32);
        let index = f.b.select(&largest, &index, &none);
        let index = lowest(f, &index, "m,p,c", "m,p");
        let index = self.padded(f, &index, several, NONE);
        lowest(f, &index, "m,p", "m")
    }

    /// Rows with `value` behind them, up to a multiple of `of` columns, in memory of their own.
    fn padded(&self, f: &mut Function<'_>, a: &Value, of: usize, value: &str) -> Value {
        let &[rows, n] = a.dims() else { unreachable!("rows of numbers") };
        if n.is_multiple_of(of) {
            return f.kept(a.clone());
        }
        let padding = f.b.splat(value, &[rows, n.next_multiple_of(of) - n], a.ty.element);
        f.joined(&[a.clone(), padding], 1)
    }
}

/// `i32::MAX`, no index.
const NONE: &str = "2147483647";

/// The lowest of indices over the loops that `result` lacks.
///
/// As unsigned integers: where the compiler (3.13.0) cuts a reduction among threads it begins a signed
/// minimum at -1, and a signed maximum at 0, as if they were unsigned ones.
fn lowest(f: &mut Function<'_>, indices: &Value, loops: &str, result: &str) -> Value {
    let kept = result.split(',').count();
    let start = f.b.fill_of(ElementType::I32, NONE, &indices.dims()[..kept], None);
    f.b.generic(
        &Generic {
            loops,
            inputs: &[(indices, loops)],
            result,
            body: "%lower = arith.minui %in0, %acc : i32
                   linalg.yield %lower : i32",
            config: None,
        },
        &start,
    )
}

#[cfg(all(test, feature = "iree"))]
mod tests {
    use std::path::Path;

    use checkpoint::config::ModelConfig;
    use iree_rt::{
        Buffer, CompileOptions, Compiler, ElementType as Of, Instance, Module, NativeModule,
        Session,
    };

    use super::*;
    use crate::emit::builder::TensorType;
    use crate::emit::{Format, WeightFormats};
    use crate::lower::paged::{Graph, Parts, Source};

    /// The graph of an argmax over `rows` rows of `length` logits.
    fn graph(rows: usize, length: usize) -> Graph {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-mha-f32");
        let config = ModelConfig::from_dir(&folder).unwrap();
        let (formats, tiles) = (WeightFormats::all(Format::F32), CudaTiles::portable());
        let mut function = Function::new(&config, &formats, &tiles, rows);
        let ty = TensorType::new(&[rows, length], ElementType::F32);
        let logits = function.argument(Source::Wanted, ty);
        let picked = tiles.argmax(&mut function, &logits);
        function.answered(&picked, Source::Picked);
        function.finish("argmax".into())
    }

    #[test]
    fn the_lowest_of_the_largest_of_each_row() {
        // Parts of 256 with padding, without, and one that is not full.
        for length in [1000, 1024, 97] {
            check(1, length);
        }
        // Parts of 250, 256, 97, and 1.
        for length in [1000, 1024, 97, 1009] {
            check(3, length);
        }
    }

    fn check(rows: usize, length: usize) {
        let device = Instance::get().unwrap().device("local-task").unwrap();
        let options = CompileOptions::for_device("local-task").flag("--iree-input-type=stablehlo");
        let graph = graph(rows, length);
        let code = Compiler::find().unwrap().compile(&graph.text, &options).unwrap();
        // SAFETY: the compiler of this build made the bytes for this machine.
        let module = unsafe { Module::from_bytes(&code) }.unwrap();
        let engine = NativeModule::new("engine").function("pages", |()| Ok(0i64));
        let mut session = Session::builder(&device).native(engine).module(module).build().unwrap();
        let mut call = session.prepare(&session.function("model.argmax").unwrap()).unwrap();
        let mut of = |logits: &[f32]| {
            let picked = Buffer::allocate(&device, rows * size_of::<i32>()).unwrap();
            let picked = picked.view(&[rows], Of::I32).unwrap();
            for (at, argument) in graph.arguments.iter().enumerate() {
                let value = match argument.source {
                    Source::Wanted => device.buffer_view(&[rows, length], logits).unwrap(),
                    Source::Picked => picked.clone(),
                    _ => {
                        let bytes = argument.ty.bytes();
                        let memory = Buffer::allocate(&device, bytes).unwrap();
                        memory.view(&[bytes], Of::I8).unwrap()
                    }
                };
                call.set(at, value).unwrap();
            }
            call.invoke(&mut session).unwrap();
            picked.read::<i32>().unwrap()
        };
        let what = format!("{rows} rows of {length}");
        let plain: Vec<f32> = (0..rows * length).map(|i| -1.0 - (i % length % 77) as f32).collect();
        assert_eq!(of(&plain), vec![0; rows], "{what}");
        let last = length - 1;
        for place in [1, 30, 249, 250, 500, 777, last].into_iter().filter(|it| *it <= last) {
            for largest in [3.0, f32::INFINITY] {
                let mut logits = plain.clone();
                // Equals behind it, and each row its own.
                let expected = (0..rows).map(|row| (place + row).min(last) as i32);
                let expected: Vec<_> = expected.collect();
                for (row, &at) in expected.iter().enumerate() {
                    for at in [at as usize, (at as usize + 1).min(last), last] {
                        logits[row * length + at] = largest;
                    }
                }
                assert_eq!(of(&logits), expected, "{what}: {largest} at {place}");
            }
            let mut logits = plain.clone();
            logits[(rows - 1) * length + place] = f32::NAN;
            let mut expected = vec![0; rows];
            expected[rows - 1] = i32::MAX;
            assert_eq!(of(&logits), expected, "{what}: NaN at {place}");
        }
    }
}
