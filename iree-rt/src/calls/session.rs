//! Sessions: modules with their state on a device.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::canceller::Canceller;
use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::calls::outputs::Outputs;
use crate::hal::devices::device::Device;
use crate::hal::devices::device_group::DeviceGroup;
use crate::vm::function::{ASYNC, Function, FunctionInfo};
use crate::vm::list::List;
use crate::vm::module::{Module, is_internal};
use crate::vm::signature::ValueType;
use crate::vm::value::Value;

/// Numbers sessions, so that a function of one is never called in another.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Refuses arguments before a call.
pub(crate) type Validator = Box<dyn FnMut(&[Value]) -> Result<()> + Send>;

/// By full names of functions.
pub(crate) type Validators = HashMap<String, Validator>;

/// Modules with their own state (globals), on one device or a [`DeviceGroup`](crate::DeviceGroup).
///
/// One thread uses it at a time (calls take `&mut`, as they change the modules' state), and it
/// may move between threads; sessions run side by side without a lock of ours.
///
/// ```
/// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
/// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};
/// # let vmfb = Compiler::find()?.compile(
/// #     "module @gate { func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
/// #        %sum = stablehlo.add %a, %b : tensor<4xf32>
/// #        return %sum : tensor<4xf32> } }",
/// #     &CompileOptions::default(),
/// # )?;
/// # let device = Instance::get()?.device("local-task")?;
/// // SAFETY: compiled just now for the CPU of this machine.
/// let module = unsafe { Module::from_bytes(&vmfb)? };
/// let sums = std::thread::scope(|scope| {
///     let session = || Session::builder(&device).module(module.clone()).build();
///     let run = |mut session: Session, x: f32| {
///         let add = session.function("gate.add")?;
///         let x = session.device().buffer_view(&[4], &[x; 4])?;
///         session.call(&add, [&x, &x])?.view(0)?.read::<f32>()
///     };
///     let (one, other) = (session()?, session()?);
///     let threads = [(one, 1.), (other, 2.)].map(|(it, x)| scope.spawn(move || run(it, x)));
///     threads.map(|thread| thread.join().unwrap()).into_iter().collect::<iree_rt::Result<Vec<_>>>()
/// })?;
/// assert_eq!(sums, [[2.; 4], [4.; 4]]);
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
/// ```
pub struct Session {
    context: NonNull<sys::iree_vm_context_t>,
    number: u64,
    /// Shared with calls in flight: code on the device may read the modules' data.
    modules: Arc<[Module]>,
    /// Full names of the functions of native modules.
    natives: Vec<String>,
    validators: Validators,
    canceller: Canceller,
    /// The first of its group. Dropped after `drop` has released the context, which uses it.
    device: Device,
}

// SAFETY: a VM context is thread-compatible: any thread may use it, one at a time, and `&self`
// methods only read.
unsafe impl Send for Session {}

impl Session {
    /// Takes over a context that IREE returned.
    ///
    /// # Safety
    /// It has been made of `modules` (and of native ones with `natives`, functions by their full
    /// names) and runs on `device` and the others of its group.
    pub(crate) unsafe fn own(
        context: NonNull<sys::iree_vm_context_t>,
        modules: Vec<Module>,
        natives: Vec<String>,
        device: Device,
    ) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (validators, canceller) = (Validators::new(), Canceller::new());
        Self { context, number, modules: modules.into(), natives, validators, canceller, device }
    }

    /// A session on `devices` of the module in the `.vmfb` file at `path` alone: for more,
    /// [`builder`](Self::builder).
    ///
    /// ```no_run
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{Instance, Session};
    /// let device = Instance::get()?.device("local-task")?;
    /// // SAFETY: a file of ours, compiled for this machine.
    /// let mut session = unsafe { Session::load(&device, "model.vmfb")? };
    /// # let _ = &mut session;
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// As [`Module::from_file`] and
    /// [`SessionBuilder::build`](crate::SessionBuilder::build).
    ///
    /// # Safety
    /// As [`Module::from_file`].
    pub unsafe fn load(devices: impl Into<DeviceGroup>, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // SAFETY: by the contract of this function.
        let module = unsafe { Module::from_file(path)? };
        Self::builder(devices).module(module).build().map_err(|e| e.context(path.display()))
    }

    /// The device that it runs on, the first of several.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its compiled modules, in the order of loading.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The function of full name `module.function`. (A form `module.function$async` beside it is the
    /// same function.)
    ///
    /// A program may say which of its arguments' dynamic dimensions are equal, which every call
    /// from Rust checks: see [`Module::from_bytes`](Module::from_bytes).
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound), and the message lists the functions that there are; also for those
    /// of IREE's own modules (`hal.…`), and those that IREE calls itself (`__init`), which check nothing
    /// of what they are called with. [`InvalidArgument`](Code::InvalidArgument) for one that says so in
    /// a way that cannot be read.
    pub fn function(&self, name: &str) -> Result<Function> {
        let mut raw = sys::iree_vm_function_t::default();
        // SAFETY: the context is live; the text is only read during the call.
        let found = check(unsafe {
            sys::iree_vm_context_resolve_function(
                self.context.as_ptr(),
                sys::iree_make_string_view(name),
                &mut raw,
            )
        });
        match found {
            Ok(()) if !self.offers(&raw, name) => Err(Error::new(
                Code::NotFound,
                format!(
                    "`{name}` is for compiled programs and IREE itself to call; this session has {}",
                    self.known()
                ),
            )),
            // SAFETY: the context of this session keeps the function's module alive.
            Ok(()) => unsafe { Function::new(raw, self.number, self.device.clone()) },
            Err(error) if error.code() == Code::ResourceExhausted => Err(error),
            Err(_) => Err(Error::new(
                Code::NotFound,
                format!("no function `{name}`; this session has {}", self.known()),
            )),
        }
    }

    /// Whether the function `raw`, of full name `name`, is one for Rust to call.
    fn offers(&self, raw: &sys::iree_vm_function_t, name: &str) -> bool {
        if self.modules.iter().any(|module| module.raw() == raw.module) {
            return !name.split_once('.').is_some_and(|(_, name)| is_internal(name));
        }
        let plain = name.strip_suffix(ASYNC).unwrap_or(name);
        self.natives.iter().any(|native| native == plain)
    }

    pub(crate) fn check_owner(&self, function: &Function) -> Result<()> {
        if function.session() == self.number {
            return Ok(());
        }
        Err(Error::invalid(format!("`{}` is a function of another session", function.name())))
    }

    /// What stops the calls of this session, from any thread.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// The modules, for whatever may outlive the session.
    pub(crate) fn shared_modules(&self) -> Arc<[Module]> {
        self.modules.clone()
    }

    /// Takes over what refuses arguments, by functions' full names.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound) for one of a function that there is not;
    /// [`AlreadyExists`](Code::AlreadyExists) for two of one function.
    pub(crate) fn set_validators(&mut self, validators: Validators) -> Result<()> {
        for (name, validator) in validators {
            let function = self.function(&name).map_err(|e| e.context("validating arguments"))?;
            if self.validators.insert(function.name(), validator).is_some() {
                return Err(Error::new(
                    Code::AlreadyExists,
                    format!("`{}` is validated twice, by both of its names", function.name()),
                ));
            }
        }
        Ok(())
    }

    /// What refuses arguments of `function`, if anything does.
    pub(crate) fn validator(&mut self, function: &Function) -> Option<&mut Validator> {
        if self.validators.is_empty() {
            return None;
        }
        self.validators.get_mut(&function.name())
    }

    /// Calls `form` of the function of `outputs`, which is of this session and takes `inputs`.
    pub(crate) fn invoke(
        &mut self,
        form: sys::iree_vm_function_t,
        inputs: &List,
        outputs: &mut Outputs,
    ) -> Result<()> {
        self.canceller.check("the session")?;
        self.device.group().enter();
        // SAFETY: the context is live and exclusively ours for the call; form and lists belong to
        // it.
        check(unsafe {
            sys::iree_vm_invoke(
                self.context.as_ptr(),
                form,
                sys::IREE_VM_INVOCATION_FLAG_NONE,
                ptr::null(),
                inputs.raw(),
                outputs.list().raw(),
                host_allocator(),
            )
        })
        .and_then(|()| outputs.copy_shared())
        .map_err(|e| {
            // What was not copied is still the program's to change.
            let _ = outputs.clear();
            let function = outputs.function();
            let untold = function.arguments().contains(&ValueType::Reference(None));
            if untold && e.code() == Code::InvalidArgument {
                // The program checked by itself what it does not tell, and does not know its names.
                return e.context(format!(
                    "calling `{}` with {}",
                    function.name(),
                    given(inputs, function)
                ));
            }
            e.context(format!("calling `{}`", function.name()))
        })
    }

    #[cfg(feature = "raw")]
    pub(crate) fn context(&mut self) -> *mut sys::iree_vm_context_t {
        self.context.as_ptr()
    }

    fn known(&self) -> String {
        let mut names: Vec<_> = self.natives.iter().map(|name| format!("`{name}`")).collect();
        for module in &*self.modules {
            match module.functions() {
                Ok(functions) => {
                    let name = |it: FunctionInfo| format!("`{}.{}`", module.name(), it.name);
                    names.extend(functions.into_iter().map(name));
                }
                Err(error) => names.push(format!("those of `{}` ({error})", module.name())),
            }
        }
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }
}

/// The arguments of a call of `function`, for messages.
fn given(inputs: &List, function: &Function) -> String {
    let values = inputs.first(function.arguments().len(), function.device()).unwrap_or_default();
    let arguments = values.iter().enumerate().map(|(index, value)| match value {
        Value::BufferView(view) => format!("{}: {view:?}", function.argument(index)),
        value => format!("{}: {}", function.argument(index), value.kind()),
    });
    arguments.collect::<Vec<_>>().join(", ")
}

impl Drop for Session {
    fn drop(&mut self) {
        self.device.group().enter();
        // SAFETY: a reference of ours, not used again; device and modules are dropped after it.
        unsafe { sys::iree_vm_context_release(self.context.as_ptr()) };
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("device", &self.device.uri())
            .field("modules", &self.modules)
            .finish()
    }
}
