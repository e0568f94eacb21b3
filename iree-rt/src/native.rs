//! Native modules: Rust functions that compiled programs import.

use std::ffi::c_void;
use std::fmt;
use std::mem::{align_of, size_of};
use std::ptr;
use std::sync::{Mutex, TryLockError};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::device::Device;
use crate::error::{Code, Error, Result};
use crate::instance::Instance;
use crate::module::VmModule;
use crate::panic;
use crate::reference::RawReference;
use crate::signature::{ScalarType, Signature, ValueType};
use crate::status::{check, status_of};
use crate::typed_function::{Parameters, Results};
use crate::value::Value;

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
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
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
/// # #[cfg(not(feature = "link"))] fn main() {}
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
    pub fn function<P: Parameters, R: Results>(
        self,
        name: impl Into<String>,
        mut function: impl FnMut(P) -> Result<R> + Send + 'static,
    ) -> Self {
        self.method(name, move |_, arguments| function(arguments))
    }

    /// Adds a function that uses the module's state.
    pub fn method<P: Parameters, R: Results>(
        mut self,
        name: impl Into<String>,
        mut function: impl FnMut(&mut S, P) -> Result<R> + Send + 'static,
    ) -> Self {
        let export = Export::new(name.into(), P::declared(), R::declared());
        self.functions.retain(|(other, _)| other.name != export.name);
        let run: Run<S> = Box::new(move |state, arguments| {
            function(state, P::from_values(arguments)?).map(R::into_values)
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
    /// As `0rI_i`: a letter for every argument and result.
    convention: String,
    /// In MLIR, for reflection.
    declaration: String,
}

impl Export {
    fn new(name: String, arguments: Vec<ValueType>, results: Vec<ValueType>) -> Self {
        let letters = |types: &[ValueType]| match types {
            [] => "v".to_owned(),
            types => types.iter().map(letter).collect(),
        };
        let list = |what: &str, types: &[ValueType]| {
            let named = types.iter().enumerate().map(|(at, ty)| format!("%{what}{at}: {ty}"));
            named.collect::<Vec<_>>().join(", ")
        };
        Self {
            convention: format!("0{}_{}", letters(&arguments), letters(&results)),
            declaration: format!(
                "sync func @{name}({}) -> ({})",
                list("input", &arguments),
                list("output", &results)
            ),
            signature: Signature { arguments, results },
            name,
        }
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

    /// The module for the VM, for one session on `device`.
    pub(crate) fn into_module(self, device: &Device) -> Result<VmModule> {
        let loaded = Box::into_raw(Loaded::new(self, device.clone()));
        let interface = sys::iree_vm_module_t {
            self_: loaded.cast(),
            destroy: Some(destroy),
            begin_call: Some(begin_call),
            ..Default::default()
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the interface is copied; the descriptor points into `loaded`, which stays where
        // it is until the module is destroyed and destroys it.
        let created = check(unsafe {
            sys::iree_vm_native_module_create(
                &interface,
                &(*loaded).descriptor,
                Instance::get()?.vm.as_ptr(),
                host_allocator(),
                &mut raw,
            )
        });
        created.map(|()| VmModule::own(raw)).inspect_err(|_| {
            // SAFETY: nothing was created that would destroy it.
            drop(unsafe { Box::from_raw(loaded) });
        })
    }
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeModule({})", self.name)
    }
}

/// What a module of the VM is made of, with the tables that IREE reads.
struct Loaded {
    descriptor: sys::iree_vm_native_module_descriptor_t,
    _exports: Vec<sys::iree_vm_native_export_descriptor_t>,
    _attributes: Vec<sys::iree_string_pair_t>,
    native: Meta,
    device: Device,
    /// A lock only to notice a function that calls into its own session.
    run: Mutex<RunAny>,
}

struct Meta {
    name: String,
    exports: Vec<Export>,
}

impl Loaded {
    fn new(native: Native, device: Device) -> Box<Self> {
        let Native { name, exports, run } = native;
        // Views of texts on the heap, which moving their owner does not move.
        let view = |text: &str| sys::iree_make_string_view(text);
        let attributes: Vec<_> = exports
            .iter()
            .map(|export| {
                let mut pair = sys::iree_string_pair_t::default();
                pair.__bindgen_anon_1.key = view("iree.abi.declaration");
                pair.__bindgen_anon_2.value = view(&export.declaration);
                pair
            })
            .collect();
        let descriptors: Vec<_> = exports
            .iter()
            .zip(&attributes)
            .map(|(export, attribute)| sys::iree_vm_native_export_descriptor_t {
                local_name: view(&export.name),
                calling_convention: view(&export.convention),
                attr_count: 1,
                attrs: attribute,
            })
            .collect();
        let descriptor = sys::iree_vm_native_module_descriptor_t {
            name: view(&name),
            export_count: descriptors.len(),
            exports: descriptors.as_ptr(),
            ..Default::default()
        };
        Box::new(Self {
            descriptor,
            _exports: descriptors,
            _attributes: attributes,
            native: Meta { name, exports },
            device,
            run: Mutex::new(run),
        })
    }

    /// # Safety
    /// The spans are those of a call of function `at`: arguments live and results zeroed.
    unsafe fn call(
        &self,
        at: usize,
        arguments: sys::iree_byte_span_t,
        results: sys::iree_byte_span_t,
    ) -> Result<()> {
        let signature = &self.native.exports[at].signature;
        let mut from = Slots::new(arguments);
        let mut values = Vec::with_capacity(signature.arguments.len());
        for ty in &signature.arguments {
            // SAFETY: by the contract of this function, and types are those of the convention.
            values.push(unsafe { from.read(ty, &self.device)? });
        }
        let returned = {
            let mut run = match self.run.try_lock() {
                Ok(run) => run,
                // After a panic the state is as the function left it.
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::new(
                        Code::FailedPrecondition,
                        "called while another function of its module runs",
                    ));
                }
            };
            run(at, values)?
        };
        for (index, (value, ty)) in returned.iter().zip(&signature.results).enumerate() {
            // Of values that are typed at run time only; the VM would misread their neighbours.
            let scalar = match ty {
                ValueType::Scalar(scalar) => Some(*scalar),
                _ => None,
            };
            if value.scalar() != scalar {
                return Err(value.mismatch(ty).context(format!("result {index}")));
            }
            let foreign = value.find_device(&|device| device.raw() != self.device.raw());
            if let Some(device) = foreign {
                return Err(Error::invalid(format!(
                    "result {index} is in the memory of another device (`{}`, opened separately)",
                    device.uri()
                )));
            }
        }
        // All of them before the first is handed over: IREE drops no results of a failed call.
        let references: Vec<_> = returned.iter().map(RawReference::of).collect::<Result<_>>()?;
        let mut to = Slots::new(results);
        for (value, reference) in returned.iter().zip(references) {
            // SAFETY: by the contract of this function, and the kinds of values were compared.
            unsafe { to.write(value, reference)? };
        }
        Ok(())
    }
}

/// Arguments or results as the VM lays them out: one behind the other, each aligned.
struct Slots {
    next: *mut u8,
    end: usize,
}

impl Slots {
    fn new(span: sys::iree_byte_span_t) -> Self {
        Self { next: span.data, end: span.data as usize + span.data_length }
    }

    /// The place of the next value, which is a `T`.
    fn place<T>(&mut self) -> Result<*mut T> {
        // The VM does not align 32-bit values, and has no need to.
        let padding = self.next.align_offset(align_of::<T>());
        let place = self.next.wrapping_add(padding);
        self.next = place.wrapping_add(size_of::<T>());
        if self.next as usize > self.end {
            return Err(Error::new(Code::Internal, "the VM passes fewer values than declared"));
        }
        Ok(place.cast())
    }

    /// # Safety
    /// The next value is live, of type `ty`, and of `device`.
    unsafe fn read(&mut self, ty: &ValueType, device: &Device) -> Result<Value> {
        // SAFETY: by the contract of this function; places are inside and aligned. The caller
        // keeps its count of a reference, and waits for us before it uses a list or bytes.
        unsafe {
            Ok(match ty {
                ValueType::Scalar(ScalarType::I32) => Value::I32(*self.place()?),
                ValueType::Scalar(ScalarType::I64) => Value::I64(*self.place()?),
                ValueType::Scalar(ScalarType::F32) => Value::F32(*self.place()?),
                ValueType::Scalar(ScalarType::F64) => Value::F64(*self.place()?),
                _ => RawReference::retain(&*self.place()?).into_value(device)?,
            })
        }
    }

    /// # Safety
    /// The next place is for a value of this kind, and holds no reference yet.
    unsafe fn write(&mut self, value: &Value, reference: Option<RawReference>) -> Result<()> {
        // SAFETY: by the contract of this function; places are inside and aligned.
        unsafe {
            match (value, reference) {
                (Value::I32(value), _) => *self.place()? = *value,
                (Value::I64(value), _) => *self.place()? = *value,
                (Value::F32(value), _) => *self.place()? = *value,
                (Value::F64(value), _) => *self.place()? = *value,
                (_, reference) => {
                    let place = self.place::<sys::iree_vm_ref_t>()?;
                    *place = reference.map_or(sys::iree_vm_ref_null(), RawReference::into_raw);
                }
            }
        }
        Ok(())
    }
}

unsafe extern "C" fn begin_call(
    self_: *mut c_void,
    _stack: *mut sys::iree_vm_stack_t,
    call: sys::iree_vm_function_call_t,
) -> sys::iree_status_t {
    // SAFETY: the box that `into_module` made, live as long as its module.
    let loaded = unsafe { &*self_.cast::<Loaded>() };
    let at = usize::from(call.function.ordinal);
    // SAFETY: the VM passes the spans of the function's calling convention, and IREE has checked
    // the ordinal.
    let called = panic::catch(|| unsafe { loaded.call(at, call.arguments, call.results) });
    status_of(called.map_err(|error| {
        let Meta { name, exports } = &loaded.native;
        error.context(format!("native function `{name}.{}`", exports[at].name))
    }))
}

unsafe extern "C" fn destroy(self_: *mut c_void) {
    // SAFETY: the box that `into_module` made; a module is destroyed once.
    panic::drop_quietly(unsafe { Box::from_raw(self_.cast::<Loaded>()) });
}
