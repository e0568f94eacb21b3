//! Parameters of indexes in sessions.

use std::fs;
use std::thread;

use crate::support::parameters::{
    INTS, W, archives, build, floats, gguf_header, in_memory, irpa, program, safetensors,
};
use crate::support::{BOTH_CPU_DEVICES, compile, device, module};
use iree_rt::{
    Code, CompileOptions, Module, ParameterFormat, ParameterIndex, ParameterProvider, Result,
    Session, Tensor,
};

#[test]
fn aligned_parameters_are_used_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let allocated = |extension: &str, bytes: &[u8]| {
        let path = folder.path().join(format!("x.{extension}"));
        fs::write(&path, bytes).unwrap();
        // SAFETY: nobody changes the file.
        let index = unsafe { ParameterIndex::from_file(&path) }.unwrap();
        let session = build("local-sync", &index).unwrap();
        session.device().memory_statistics().device.allocated
    };
    assert_eq!(allocated("irpa", &irpa()), 0);
    // In the middle of such a file they are not aligned; the state is a copy anyhow.
    assert_eq!(allocated("safetensors", &safetensors()), 12 + 20);
}

#[test]
fn splats_of_wide_values() {
    let source = r#"
    module @wide {
      util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<4xi64>
      func.func @get() -> tensor<4xi64> {
        %0 = util.global.load @w : tensor<4xi64>
        return %0 : tensor<4xi64>
      }
    }"#;
    let bytes = compile(source, &CompileOptions::default());
    let index = ParameterIndex::new().unwrap();
    index.add_splat("w", 0x0102_0304_0506_0708i64, 32, b"").unwrap();
    for uri in BOTH_CPU_DEVICES {
        let builder = Session::builder(&device(uri)).parameters("model", &index);
        let mut session = builder.module(module(&bytes)).build().unwrap();
        let get = session.typed::<(), Tensor<i64>>("wide.get").unwrap();
        let wide = get.call(&mut session, ()).unwrap().read().unwrap();
        assert_eq!(wide, [0x0102_0304_0506_0708; 4]);
    }
}

#[test]
fn a_part_of_a_parameter_is_that_part() {
    let load = |offset: u64| {
        format!(
            r#"%scope = util.buffer.constant : !util.buffer = "model"
            %name = util.buffer.constant : !util.buffer = "w"
            %offset = arith.constant {offset} : i64
            %0 = flow.parameter.load %scope::%name[%offset] : tensor<2xi32>"#
        )
    };
    let function = |offset| {
        let load = load(offset);
        format!(
            "func.func @at_{offset}() -> tensor<2xi32> {{ {load}\n return %0 : tensor<2xi32> }}\n"
        )
    };
    let program = |kept, offsets: &[u64]| {
        let source = format!(
            "module @part {{
               util.global private @kept : tensor<2xi32>
               util.initializer {{ {}\n util.global.store %0, @kept : tensor<2xi32>\n util.return }}
               func.func @all() -> tensor<2xi32> {{
                 %0 = util.global.load @kept : tensor<2xi32>
                 return %0 : tensor<2xi32>
               }}
               {}
             }}",
            load(kept),
            offsets.iter().copied().map(function).collect::<String>()
        );
        let options = CompileOptions::default().flag("--iree-opt-const-eval=false");
        module(&compile(&source, &options))
    };
    let (parts, past) = (program(8, &[2, 4]), program(20, &[]));
    let numbers = ParameterIndex::new().unwrap();
    numbers.add("w", &[1i32, 2, 3, 4, 5], b"").unwrap();
    let splat = ParameterIndex::new().unwrap();
    splat.add_splat("w", [1u8, 2, 3, 4], 20, b"").unwrap();
    let wide = ParameterIndex::new().unwrap();
    wide.add_splat("w", [1i32, 2], 24, b"").unwrap();
    struct Rust;
    impl ParameterProvider for Rust {
        fn supports(&self, _: &str) -> bool {
            true
        }

        fn load(&self, _: &str, _: &str) -> Result<Vec<u8>> {
            Ok(bytemuck::bytes_of(&[1i32, 2, 3, 4, 5]).to_vec())
        }
    }
    let same = i32::from_le_bytes([1, 2, 3, 4]);
    let turned = i32::from_le_bytes([3, 4, 1, 2]);
    for uri in BOTH_CPU_DEVICES {
        for (index, kept, at_4, at_2) in [
            (Some(&numbers), [3, 4], [2, 3], None),
            (None, [3, 4], [2, 3], None),
            (Some(&splat), [same; 2], [same; 2], Some([turned; 2])),
            (Some(&wide), [1, 2], [2, 1], None),
        ] {
            let build = |program: &Module| {
                let builder = Session::builder(&device(uri));
                let builder = match index {
                    Some(index) => builder.parameters("model", index),
                    None => builder.parameter_provider(Rust),
                };
                builder.module(program.clone()).build()
            };
            assert_eq!(build(&past).unwrap_err().code(), Code::OutOfRange, "{uri}");
            let mut session = build(&parts).unwrap();
            let mut call = |name: &str| {
                let function = session.typed::<(), Tensor<i32>>(name)?;
                function.call(&mut session, ())?.read()
            };
            assert_eq!(call("part.all").unwrap(), kept, "{uri}");
            assert_eq!(call("part.at_4").unwrap(), at_4, "{uri}");
            if let Some(at_2) = at_2 {
                assert_eq!(call("part.at_2").unwrap(), at_2, "{uri}");
            }
        }
    }
}

#[test]
fn a_program_that_changes_its_state_changes_no_parameter() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.irpa");
    in_memory().write_archive(&path).unwrap();
    let before = fs::read(&path).unwrap();
    // SAFETY: nobody changes the file.
    let index = unsafe { ParameterIndex::from_file(&path) }.unwrap();
    for uri in BOTH_CPU_DEVICES {
        let mut session = build(uri, &index).unwrap();
        assert_eq!(floats(&mut session, "program.step", Some([1., 1., 1.])), [11., 21., 31.]);
        assert_eq!(floats(&mut session, "program.step", Some([1., 1., 1.])), [12., 22., 32.]);
        assert_eq!(floats(&mut session, "program.weights", None), W);

        // A part of it, where the program may see no need for a copy.
        let mut session = build(uri, &index).unwrap();
        let replace = session.function("program.replace").unwrap();
        let one = session.device().buffer_view(&[1], &[-1f32]).unwrap();
        let out = session.call(&replace, [one]).unwrap().view(0).unwrap();
        assert_eq!(out.read::<f32>().unwrap(), [1., -20., -30.]);
        assert_eq!(floats(&mut session, "program.weights", None), W, "{uri}");
        assert_eq!(index.read("w").unwrap(), bytemuck::bytes_of(&W), "{uri}");
    }
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_parameter_that_is_returned_ends_where_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    for (_, extension, bytes) in archives() {
        let path = folder.path().join(format!("x.{extension}"));
        fs::write(&path, &bytes).unwrap();
        for uri in BOTH_CPU_DEVICES {
            // SAFETY: nobody changes the file.
            let index = unsafe { ParameterIndex::from_file(&path) }.unwrap();
            let mut session = build(uri, &index).unwrap();
            let weights = session.typed::<(), Tensor<f32>>("program.weights").unwrap();
            let mut view = weights.call(&mut session, ()).unwrap().into_view();
            // It outlives all that it came from.
            drop((session, index));
            let buffer = view.buffer();
            assert!(buffer.byte_len() < 4096 && view.byte_len() == 12, "{buffer:?}");
            let mut all = vec![0; buffer.byte_len()];
            buffer.read_into(0, &mut all).unwrap();
            let mut one = [0];
            assert!(buffer.read_into(buffer.byte_len(), &mut one).is_err());
            drop(buffer);
            // Writing to it changes memory, or is refused; the file stays as it is.
            let _ = view.write(0, &[-1f32]);
        }
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn what_is_missing_is_named() {
    let none = ParameterIndex::new().unwrap();
    let error = build("local-sync", &none).unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    let named = ["'w'", "`w`", "'ints'"].iter().any(|name| error.message().contains(name));
    assert!(named, "{error}");

    let builder = Session::builder(&device("local-sync")).parameters("other", &in_memory());
    let error = builder.module(program()).build().unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    assert!(error.message().contains("model"), "{error}");

    let error = Session::builder(&device("local-sync")).module(program()).build().unwrap_err();
    assert!(error.message().contains("the session was given none"), "{error}");
    assert_eq!(error.code(), Code::NotFound, "{error}");
    assert!(program().takes_parameters().unwrap());
    assert!(!module(crate::support::kinds()).takes_parameters().unwrap());

    let short = ParameterIndex::new().unwrap();
    short.add("w", &W[..2], b"").unwrap();
    short.add("ints", &INTS, b"").unwrap();
    let error = build("local-sync", &short).unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
}

#[test]
fn names_are_used_once_and_splats_fit() {
    let index = in_memory();
    assert_eq!(index.add("w", &[1u8], b"").unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(index.add_splat("w", 1u8, 1, b"").unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(index.extend(&in_memory()).unwrap_err().code(), Code::AlreadyExists);
    for (value, length) in [(&[0u8; 17][..], 17), (&[0u8; 0], 4), (&[0u8; 3], 6), (&[0u8; 4], 6)] {
        let error = match value.len() {
            17 => index.add_splat("s", [0u8; 17], length, b""),
            0 => index.add_splat("s", [0u8; 0], length, b""),
            3 => index.add_splat("s", [0u8; 3], length, b""),
            _ => index.add_splat("s", [0u8; 4], length, b""),
        };
        assert_eq!(error.unwrap_err().code(), Code::InvalidArgument);
    }
    assert_eq!(index.len(), 2);
    // As the fuzz target `parameters` found: whose bytes would be read?
    let mut twice = gguf_header(&[("w", 3, 0, 0), ("w", 1, 0, 32)]);
    twice.resize(twice.len() + 64, 0);
    let error = ParameterIndex::from_bytes(ParameterFormat::Gguf, &twice).unwrap_err();
    assert!(error.message().contains("two parameters are named `w`"), "{error}");

    // Shards: each its own file, together one scope.
    let shards = ParameterIndex::new().unwrap();
    for (name, data) in [("w", bytemuck::bytes_of(&W)), ("ints", bytemuck::bytes_of(&INTS))] {
        let shard = ParameterIndex::new().unwrap();
        shard.add(name, data, b"").unwrap();
        shards.extend(&shard).unwrap();
    }
    let mut session = build("local-sync", &shards).unwrap();
    assert_eq!(floats(&mut session, "program.weights", None), W);
}

#[test]
fn an_index_serves_sessions_on_several_threads() {
    let index = in_memory();
    thread::scope(|scope| {
        for uri in BOTH_CPU_DEVICES {
            let index = &index;
            scope.spawn(move || {
                for round in 0..5 {
                    let mut session = build(uri, index).unwrap();
                    assert_eq!(floats(&mut session, "program.weights", None), W);
                    index.add(&format!("{uri}{round}"), &[0u8; 100], b"").unwrap();
                }
            });
        }
    });
    assert_eq!(index.len(), 12);
}

#[test]
fn parameters_without_a_scope() {
    let source = r#"
    module @bare {
      util.global private @bias = #flow.parameter.named<"bias"> : tensor<2xf32>
      func.func @bias() -> tensor<2xf32> {
        %0 = util.global.load @bias : tensor<2xf32>
        return %0 : tensor<2xf32>
      }
    }"#;
    let bytes = compile(source.replace("@bias()", "@get()"), &CompileOptions::default());
    let index = ParameterIndex::new().unwrap();
    index.add("bias", &[1f32, 2.], b"").unwrap();
    let builder = Session::builder(&device("local-sync")).parameters("", &index);
    let mut session = builder.module(module(&bytes)).build().unwrap();
    assert_eq!(floats(&mut session, "bare.get", None), [1., 2.]);
}
