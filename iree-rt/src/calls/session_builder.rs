//! Building sessions: what compiled modules find when they are loaded.

use std::fmt;
use std::ptr::{self, NonNull};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::{Code, Error, Result};
use crate::base::instance::Instance;
use crate::base::status::check;
use crate::calls::session::{Session, Validators};
use crate::hal::devices::device::Device;
use crate::hal::devices::device_group::DeviceGroup;
use crate::hal::memory::buffer_view::BufferView;
use crate::host::native::{Native, NativeModule};
#[cfg(feature = "parameters")]
use crate::host::parameters::{Load, ParameterIndex, ParameterProvider, Provider, Providers};
use crate::host::trace::{self, OnTrace};
use crate::vm::module::{Module, VmModule};
use crate::vm::value::Value;

/// Collects the modules of a [`Session`], and what else it is made with.
#[must_use]
pub struct SessionBuilder {
    /// The first of its group.
    device: Device,
    natives: Vec<Native>,
    #[cfg(feature = "parameters")]
    parameters: Option<Box<dyn Load>>,
    modules: Vec<Module>,
    validators: Validators,
    on_trace: Option<OnTrace>,
    trace_execution: bool,
}

impl Session {
    /// Begins a session on a [`&Device`](Device) and the others of its group, if there are any,
    /// or on a [`&DeviceGroup`](DeviceGroup).
    pub fn builder(devices: impl Into<DeviceGroup>) -> SessionBuilder {
        SessionBuilder {
            device: Device::of(&devices.into(), 0),
            natives: Vec::new(),
            #[cfg(feature = "parameters")]
            parameters: None,
            modules: Vec::new(),
            validators: Validators::new(),
            on_trace: None,
            trace_execution: false,
        }
    }
}

impl SessionBuilder {
    /// Adds a module, after those that it imports from.
    ///
    /// ```
    /// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};
    /// let compile = |source: &str| -> iree_rt::Result<Module> {
    ///     let vmfb = Compiler::find()?.compile(source, &CompileOptions::default())?;
    ///     // SAFETY: compiled just now for the CPU of this machine.
    ///     unsafe { Module::from_bytes(&vmfb) }
    /// };
    /// let counter = compile(
    ///     "module @counter {
    ///        util.global private mutable @count = 0 : i32
    ///        func.func @add(%by: i32) -> i32 {
    ///          %old = util.global.load @count : i32
    ///          %new = arith.addi %old, %by : i32
    ///          util.global.store %new, @count : i32
    ///          return %new : i32
    ///        }
    ///      }",
    /// )?;
    /// let user = compile(
    ///     "module @user {
    ///        func.func private @counter.add(i32) -> i32
    ///        func.func @twice(%by: i32) -> i32 {
    ///          %0 = call @counter.add(%by) : (i32) -> i32
    ///          %1 = call @counter.add(%by) : (i32) -> i32
    ///          return %1 : i32
    ///        }
    ///      }",
    /// )?;
    /// let device = Instance::get()?.device("local-task")?;
    /// let build = || {
    ///     Session::builder(&device).module(counter.clone()).module(user.clone()).build()
    /// };
    /// let (mut first, mut second) = (build()?, build()?);
    /// let twice = first.typed::<(i32,), i32>("user.twice")?;
    /// assert_eq!([twice.call(&mut first, (5,))?, twice.call(&mut first, (1,))?], [10, 12]);
    /// // The other session has counted nothing.
    /// let twice = second.typed::<(i32,), i32>("user.twice")?;
    /// assert_eq!(twice.call(&mut second, (1,))?, 2);
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
    /// ```
    pub fn module(mut self, module: Module) -> Self {
        self.modules.push(module);
        self
    }

    /// Adds a module of Rust functions, from which all compiled modules may import.
    pub fn native<S: Send + 'static>(mut self, module: NativeModule<S>) -> Self {
        self.natives.push(module.erase());
        self
    }

    /// Answers with the parameters of `index` when programs ask for those of `scope` (empty for
    /// parameters without one). Of several for one scope, the first answers.
    #[cfg(feature = "parameters")]
    pub fn parameters(self, scope: &str, index: &ParameterIndex) -> Self {
        self.provider(Provider::of_index(scope, index))
    }

    /// Has Rust code answer when programs ask for parameters.
    #[cfg(feature = "parameters")]
    pub fn parameter_provider(self, provider: impl ParameterProvider + 'static) -> Self {
        self.provider(Ok(Provider::of_rust(Box::new(provider))))
    }

    #[cfg(feature = "parameters")]
    fn provider(mut self, provider: Result<Provider>) -> Self {
        self.parameters.get_or_insert_with(|| Box::<Providers>::default()).add(provider);
        self
    }

    /// Has `validator` look at the arguments before every call of the function of full name
    /// `module.function`, in place of an earlier one; its error refuses the call, and is that of the
    /// call.
    ///
    /// It is for what compiled code does not check, and would read or write out of bounds for: see the
    /// [contract](Module::from_bytes) of loading a module. Calls of any kind are checked, but
    /// not those of one module of the session by another. Types and shapes are as declared when it
    /// looks. It may read tensors: a call in flight waits for the fence that it is to wait for before
    /// its validator runs, so that what it reads is there, and what it reads is what the call gets
    /// unless somebody writes in between.
    ///
    /// ```
    /// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};
    /// use iree_rt::{Code, Error, Value};
    ///
    /// let vmfb = Compiler::find()?.compile(
    ///     "module @table {
    ///        func.func @row(%table: tensor<?xf32>, %at: i32) -> f32 {
    ///          %index = arith.index_cast %at : i32 to index
    ///          %0 = tensor.extract %table[%index] : tensor<?xf32>
    ///          return %0 : f32
    ///        }
    ///      }",
    ///     &CompileOptions::default(),
    /// )?;
    /// let device = Instance::get()?.device("local-task")?;
    /// // SAFETY: compiled just now for the CPU of this machine; the validator keeps `row` inside.
    /// let module = unsafe { Module::from_bytes(&vmfb)? };
    /// let mut session = Session::builder(&device)
    ///     .module(module)
    ///     .validate("table.row", |arguments| match arguments {
    ///         [Value::BufferView(table), Value::I32(at)]
    ///             if (0..table.shape()[0] as i64).contains(&i64::from(*at)) => Ok(()),
    ///         _ => Err(Error::new(Code::OutOfRange, "no such row")),
    ///     })
    ///     .build()?;
    /// let row = session.function("table.row")?;
    /// let table = device.buffer_view(&[3], &[1f32, 2., 3.])?;
    /// assert!(matches!(session.call(&row, (&table, 2))?.get(0)?, Value::F32(3.0)));
    /// assert_eq!(session.call(&row, (&table, 1 << 20)).unwrap_err().code(), Code::OutOfRange);
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
    /// ```
    pub fn validate(
        mut self,
        function: impl Into<String>,
        validator: impl FnMut(&[Value]) -> Result<()> + Send + 'static,
    ) -> Self {
        self.validators.insert(function.into(), Box::new(validator));
        self
    }

    /// Tells `sink` of the tensors that programs trace.
    ///
    /// A program traces with `flow.tensor.trace "KEY" = [%a : tensor<4xf32>]`, or compiled with
    /// `--iree-flow-trace-dispatch-tensors`, which traces what goes into and comes out of each
    /// dispatch. The sink gets key and tensors on the thread of the call; its error or panic is
    /// that of the call.
    ///
    /// ```
    /// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};
    /// let vmfb = Compiler::find()?.compile(
    ///     "module @program {
    ///        func.func @run(%a: tensor<2xf32>) -> tensor<2xf32> {
    ///          %0 = stablehlo.add %a, %a : tensor<2xf32>
    ///          flow.tensor.trace \"doubled\" = [%0 : tensor<2xf32>]
    ///          return %0 : tensor<2xf32>
    ///        }
    ///      }",
    ///     &CompileOptions::default(),
    /// )?;
    /// let device = Instance::get()?.device("local-task")?;
    /// let (sender, traces) = std::sync::mpsc::channel();
    /// // SAFETY: compiled just now for the CPU of this machine.
    /// let program = unsafe { Module::from_bytes(&vmfb)? };
    /// let mut session = Session::builder(&device)
    ///     .module(program)
    ///     .on_trace(move |key, tensors| {
    ///         let _ = sender.send((key.to_owned(), tensors[0].read::<f32>()?));
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// let run = session.function("program.run")?;
    /// session.call(&run, [device.buffer_view(&[2], &[1f32, 2.])?])?;
    /// assert_eq!(traces.try_recv().unwrap(), ("doubled".into(), vec![2., 4.]));
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
    /// ```
    pub fn on_trace(
        mut self,
        sink: impl FnMut(&str, &[BufferView]) -> Result<()> + Send + 'static,
    ) -> Self {
        self.on_trace = Some(Box::new(sink));
        self
    }

    /// Has IREE write every instruction of the VM, with its values, to the standard error stream.
    ///
    /// Only a runtime that is made for it can (`cargo xtask fetch-iree --vm-trace` makes one): with
    /// others, [`build`](Self::build) fails with [`Unimplemented`](Code::Unimplemented).
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{Code, Instance, Session};
    /// # let device = Instance::get()?.device("local-sync")?;
    /// match Session::builder(&device).trace_execution(true).build() {
    ///     Ok(_session) => {}
    ///     Err(error) => assert_eq!(error.code(), Code::Unimplemented),
    /// }
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    pub fn trace_execution(mut self, yes: bool) -> Self {
        self.trace_execution = yes;
        self
    }

    /// Loads the modules' executables on the device and runs their initializers.
    ///
    /// # Errors
    /// [`AlreadyExists`](Code::AlreadyExists) when two modules have one name;
    /// [`NotFound`](Code::NotFound) for an import that no module before exports, a parameter that
    /// nobody answers for, or a function that is validated, which the message names;
    /// [`Internal`](Code::Internal) for an import of other types than are exported;
    /// [`Incompatible`](Code::Incompatible) when an executable is for another kind of device or CPU
    /// (of a CPU's features nothing checks that it has them), or calls a
    /// [`Kernel`](crate::Kernel) that the device was not opened with; what an initializer raises.
    pub fn build(self) -> Result<Session> {
        #[cfg(feature = "parameters")]
        let parameters = self.parameters;
        let Self { device, natives, modules, validators, on_trace, trace_execution, .. } = self;
        check_names(&natives, &modules)?;
        if trace_execution && !cfg!(vm_trace) {
            return Err(Error::new(
                Code::Unimplemented,
                "this IREE runtime cannot write what its VM executes; `cargo xtask fetch-iree \
                 --vm-trace` makes one that can",
            ));
        }
        #[cfg(feature = "parameters")]
        let given = parameters.is_some();
        #[cfg(not(feature = "parameters"))]
        let given = false;
        if !given {
            check_parameters(&modules)?;
        }
        let functions = natives.iter().flat_map(Native::functions).collect();
        let instance = Instance::get()?;
        // Compiled modules import from these, which import nothing.
        let mut first = vec![hal_module(instance, &device, on_trace)?];
        #[cfg(feature = "parameters")]
        if let Some(parameters) = parameters {
            first.push(parameters.module()?);
        }
        for native in natives {
            first.push(native.into_module(&device)?);
        }
        let mut raw: Vec<_> =
            first.iter().map(VmModule::raw).chain(modules.iter().map(Module::raw)).collect();
        let flags = if trace_execution {
            sys::IREE_VM_CONTEXT_FLAG_TRACE_EXECUTION
        } else {
            sys::IREE_VM_CONTEXT_FLAG_NONE
        };
        let mut context = ptr::null_mut();
        device.group().enter();
        // SAFETY: instance and modules are live; the context retains the modules.
        check(unsafe {
            sys::iree_vm_context_create_with_modules(
                instance.vm.as_ptr(),
                flags,
                raw.len(),
                raw.as_mut_ptr(),
                host_allocator(),
                &mut context,
            )
        })
        .map_err(|e| explain(e, &device))?;
        let context = NonNull::new(context).expect("IREE returned OK with a null context");
        // SAFETY: the context is ours, has these modules, and runs on this device and its group.
        let mut session = unsafe { Session::own(context, modules, functions, device) };
        session.set_validators(validators)?;
        Ok(session)
    }
}

impl fmt::Debug for SessionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionBuilder")
            .field("device", &self.device)
            .field("natives", &self.natives)
            .field("modules", &self.modules)
            .finish_non_exhaustive()
    }
}

fn check_names(natives: &[Native], modules: &[Module]) -> Result<()> {
    let names = natives.iter().map(|native| native.name().to_owned());
    let mut known = vec!["hal".to_owned(), "io_parameters".to_owned()];
    for name in names.chain(modules.iter().map(Module::name)) {
        if known.contains(&name) {
            return Err(Error::new(
                Code::AlreadyExists,
                format!("two modules of one session are named `{name}`"),
            ));
        }
        known.push(name);
    }
    Ok(())
}

/// The module through which compiled programs reach the device.
fn hal_module(instance: &Instance, device: &Device, on_trace: Option<OnTrace>) -> Result<VmModule> {
    let sink = trace::debug_sink(device, on_trace);
    let mut raw = ptr::null_mut();
    // Synchronous: calls block in the wait for the device instead of yielding to us, who would
    // only wait then. In IREE 3.13 a yield whose wait frame makes the VM stack grow writes the
    // place to resume at into the old stack, and the function begins anew with its registers
    // in use ("ref type mismatch"). (3.13.0 sets the flag by itself, whatever it is asked.)
    // SAFETY: instance and group are live; the module retains the group, and takes over the sink
    // when it was made.
    check(unsafe {
        sys::iree_hal_module_create(
            instance.vm.as_ptr(),
            sys::iree_hal_module_device_policy_default(),
            device.group().raw(),
            sys::IREE_HAL_MODULE_FLAG_SYNCHRONOUS,
            sink,
            host_allocator(),
            &mut raw,
        )
    })
    .inspect_err(|_| trace::discard(sink))?;
    Ok(VmModule::own(raw))
}

/// Whether none of `modules` asks for parameters.
fn check_parameters(modules: &[Module]) -> Result<()> {
    for module in modules {
        if module.takes_parameters()? {
            let what = if cfg!(feature = "parameters") {
                "a module takes parameters, and the session was given none"
            } else {
                "a module takes parameters, and iree-rt's feature `parameters` is off in this build"
            };
            return Err(Error::new(Code::NotFound, format!("loading `{}`: {what}", module.name())));
        }
    }
    Ok(())
}

fn explain(error: Error, device: &Device) -> Error {
    let error = match error.code() {
        Code::Incompatible => error.context(
            "the module is for another CPU or kind of device, or for one with other kernels; compile \
             it for this one",
        ),
        _ => error,
    };
    error.context(format!("loading modules on `{}`", device.uri()))
}
