//! Providers of parameters in Rust, which answer and take what programs write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::parameters::{INTS, W, floats, in_memory, ints, program};
use crate::support::{BOTH_CPU_DEVICES, device};
use iree_rt::{Code, Error, ParameterProvider, Result, Session};

/// Makes the parameters of `model`, and counts how often it is asked.
struct Model {
    asked: Arc<AtomicUsize>,
    load: fn(&str) -> Result<Vec<u8>>,
}

impl ParameterProvider for Model {
    fn supports(&self, scope: &str) -> bool {
        scope == "model"
    }

    fn load(&self, scope: &str, name: &str) -> Result<Vec<u8>> {
        assert_eq!(scope, "model");
        self.asked.fetch_add(1, Ordering::SeqCst);
        (self.load)(name)
    }
}

fn good(name: &str) -> Result<Vec<u8>> {
    match name {
        "w" => Ok(bytemuck::bytes_of(&W).to_vec()),
        "ints" => Ok(bytemuck::bytes_of(&INTS).to_vec()),
        _ => Err(Error::new(Code::NotFound, "unknown")),
    }
}

fn provided(uri: &str, load: fn(&str) -> Result<Vec<u8>>) -> (Result<Session>, usize) {
    let asked = Arc::new(AtomicUsize::new(0));
    let model = Model { asked: asked.clone(), load };
    let builder = Session::builder(&device(uri)).parameter_provider(model);
    let session = builder.module(program()).build();
    (session, asked.load(Ordering::SeqCst))
}

#[test]
fn a_rust_provider_makes_parameters() {
    for uri in BOTH_CPU_DEVICES {
        let (session, asked) = provided(uri, good);
        let mut session = session.unwrap();
        assert!((2..=3).contains(&asked), "{asked}");
        assert_eq!(floats(&mut session, "program.scale", Some([1., 2., 0.5])), [10., 40., 15.]);
        assert_eq!(floats(&mut session, "program.step", Some([1., 1., 1.])), [11., 21., 31.]);
        assert_eq!(floats(&mut session, "program.weights", None), W);
        assert_eq!(ints(&mut session), INTS);
    }
}

#[test]
fn what_a_provider_does_wrong_fails_the_session() {
    let error_of = |load| provided("local-task", load).0.unwrap_err();
    let error = error_of(|name| Err(Error::new(Code::PermissionDenied, format!("{name} is mine"))));
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    assert!(error.message().contains("is mine"), "{error}");
    assert!(error.message().contains("of scope `model`"), "{error}");
    let error = error_of(|name| panic!("no {name}"));
    assert_eq!(error.code(), Code::Internal, "{error}");
    assert!(error.message().contains("panicked: no "), "{error}");
    let error = error_of(|_| Ok(vec![1; 7]));
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    let error = error_of(|_| Ok(vec![]));
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    // More than the program takes is fine.
    let (session, _) =
        provided("local-task", |_| Ok(bytemuck::cast_slice::<f32, u8>(&[1.; 100]).to_vec()));
    assert_eq!(floats(&mut session.unwrap(), "program.weights", None), [1.; 3]);
}

#[test]
fn the_first_that_knows_a_scope_answers() {
    struct Panics;
    impl ParameterProvider for Panics {
        fn supports(&self, _scope: &str) -> bool {
            panic!("whatever the scope")
        }

        fn load(&self, _scope: &str, _name: &str) -> Result<Vec<u8>> {
            unreachable!()
        }
    }
    let asked = Arc::new(AtomicUsize::new(0));
    let model = Model { asked: asked.clone(), load: good };
    let builder = Session::builder(&device("local-sync"))
        .parameter_provider(Panics)
        .parameters("model", &in_memory())
        .parameter_provider(model);
    let mut session = builder.module(program()).build().unwrap();
    assert_eq!(floats(&mut session, "program.weights", None), W);
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}
