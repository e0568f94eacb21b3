//! Native modules: Rust functions that compiled programs import.

mod loaded;
mod slots;
mod typed;

use std::fmt;

use crate::base::error::Result;
use crate::vm::signature::{ScalarType, Signature, ValueType};
use crate::vm::value::Value;

pub use typed::{FromArguments, IntoResults};

/// A module whose functions are Rust closures, for the compiled modules of one
/// [`Session`](crate::Session) to import and call.
///
/// A program declares what it imports by full name (`func.func private @host.ask(i32) -> i32`).
/// Tensors arrive and leave as [`Tensor`](crate::Tensor)s or
/// [`BufferView`](crate::BufferView)s, whose shape and type the program checks; `!util.list`,
/// `!util.buffer` and `!util.object` as `Vec`s, bytes or text, and
/// [`Reference`](crate::Reference)s.
///
/// Functions run on the thread that calls into the session, one at a time, and may keep state:
/// what they capture, or the module's ([`with_state`](Self::with_state)). It is the session's, as
/// a module goes into one session. An `Err` or a panic of a function is the error of the call
/// that led to it (unless the program is built with `panic = "abort"`).
///
/// A program that was compiled for asynchronous calls may import them too; a call waits for the
/// tensors that it passes to a function, and returns after it
/// ([`Session::call_async`](crate::Session::call_async)).
///
/// ```
/// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
/// # use iree_rt::{CompileOptions, Compiler, Instance, Module, NativeModule, Session, Tensor};
/// let vmfb = Compiler::find()?.compile(
///     "module @program {
///        func.func private @host.next() -> i32
///        func.func private @host.negate(tensor<2xf32>) -> tensor<2xf32>
///        func.func @run(%a: tensor<2xf32>) -> (tensor<2xf32>, i32) {
///          %0 = call @host.negate(%a) : (tensor<2xf32>) -> tensor<2xf32>
///          %1 = call @host.next() : () -> i32
///          return %0, %1 : tensor<2xf32>, i32
///        }
///      }",
///     &CompileOptions::default(),
/// )?;
/// let host = NativeModule::with_state("host", 0)
///     .function("negate", |(x,): (Tensor<f32>,)| {
///         let negated: Vec<f32> = x.read()?.iter().map(|x| -x).collect();
///         x.view().device().buffer_view(x.view().shape(), &negated)
///     })
///     .method("next", |count, ()| {
///         *count += 1;
///         Ok(*count)
///     });
///
/// let device = Instance::get()?.device("local-task")?;
/// // SAFETY: compiled just now for the CPU of this machine.
/// let program = unsafe { Module::from_bytes(&vmfb)? };
/// let mut session = Session::builder(&device).native(host).module(program).build()?;
/// type F32 = Tensor<f32>;
/// let run = session.typed::<(F32,), (F32, i32)>("program.run")?;
/// let x = F32::try_from(device.buffer_view(&[2], &[1f32, -2.])?)?;
/// for count in 1..3 {
///     let (negated, counted) = run.call(&mut session, (x.clone(),))?;
///     assert_eq!((negated.read()?, counted), (vec![-1., 2.], count));
/// }
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
/// ```
pub struct NativeModule<S = ()> {
    name: String,
    state: S,
    functions: Vec<(Export, Run<S>)>,
}

type Run<S> = Box<dyn FnMut(&mut S, Vec<Value>) -> Result<Vec<Value>> + Send>;

impl NativeModule {
    /// A module of this name without state.
    pub fn new(name: impl Into<String>) -> Self {
        Self::with_state(name, ())
    }
}

impl<S: Send + 'static> NativeModule<S> {
    /// A module of this name whose methods share `state`.
    pub fn with_state(name: impl Into<String>, state: S) -> Self {
        Self { name: name.into(), state, functions: Vec::new() }
    }

    /// Adds a function of this name within the module, in place of an earlier one.
    pub fn function<A: FromArguments, R: IntoResults>(
        self,
        name: impl Into<String>,
        mut function: impl FnMut(A) -> Result<R> + Send + 'static,
    ) -> Self {
        self.method(name, move |_, arguments| function(arguments))
    }

    /// Adds a function that uses the module's state.
    pub fn method<A: FromArguments, R: IntoResults>(
        mut self,
        name: impl Into<String>,
        mut function: impl FnMut(&mut S, A) -> Result<R> + Send + 'static,
    ) -> Self {
        let export = Export::new(name.into(), A::declared(), R::declared());
        self.functions.retain(|(other, _)| other.name != export.name);
        let run: Run<S> = Box::new(move |state, arguments| {
            function(state, A::from_values(arguments)?).map(R::into_values)
        });
        self.functions.push((export, run));
        self
    }

    pub(crate) fn erase(self) -> Native {
        let Self { name, mut state, mut functions } = self;
        // In the order in which IREE searches them.
        functions.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let (exports, mut runs): (Vec<_>, Vec<_>) = functions.into_iter().unzip();
        let run = Box::new(move |at: usize, arguments| (runs[at])(&mut state, arguments));
        Native { name, exports, run }
    }
}

impl<S> fmt::Debug for NativeModule<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let functions = self.functions.iter().map(|(export, _)| export);
        write!(f, "NativeModule({}) ", self.name)?;
        f.debug_map().entries(functions.map(|f| (&f.name, &f.signature))).finish()
    }
}

/// What the VM is told of a function.
struct Export {
    name: String,
    signature: Signature,
    /// In MLIR, for reflection.
    declaration: String,
}

impl Export {
    fn new(name: String, arguments: Vec<ValueType>, results: Vec<ValueType>) -> Self {
        let list = |what: &str, types: &[ValueType]| {
            let named = types.iter().enumerate().map(|(at, ty)| format!("%{what}{at}: {ty}"));
            named.collect::<Vec<_>>().join(", ")
        };
        Self {
            declaration: format!(
                "sync func @{name}({}) -> ({})",
                list("input", &arguments),
                list("output", &results)
            ),
            signature: Signature::of(arguments, results),
            name,
        }
    }

    /// As `0rI_i`: a letter for every argument and result, and for two `fences` behind the
    /// arguments.
    fn convention(&self, fences: bool) -> String {
        let letters = |types: &[ValueType]| types.iter().map(letter).collect::<String>();
        let or_void = |letters: String| if letters.is_empty() { "v".into() } else { letters };
        let fences = if fences { "rr" } else { "" };
        format!(
            "0{}_{}",
            or_void(letters(&self.signature.arguments) + fences),
            or_void(letters(&self.signature.results))
        )
    }
}

fn letter(ty: &ValueType) -> char {
    match ty {
        ValueType::Scalar(ScalarType::I32) => 'i',
        ValueType::Scalar(ScalarType::I64) => 'I',
        ValueType::Scalar(ScalarType::F32) => 'f',
        ValueType::Scalar(ScalarType::F64) => 'F',
        _ => 'r',
    }
}

/// Runs the function of this number.
type RunAny = Box<dyn FnMut(usize, Vec<Value>) -> Result<Vec<Value>> + Send>;

/// A native module of whatever state, before it is in a session.
pub(crate) struct Native {
    name: String,
    exports: Vec<Export>,
    run: RunAny,
}

impl Native {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Full names of its functions.
    pub(crate) fn functions(&self) -> impl Iterator<Item = String> {
        self.exports.iter().map(|export| format!("{}.{}", self.name, export.name))
    }
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeModule({})", self.name)
    }
}
