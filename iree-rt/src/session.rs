//! Sessions: modules with their state on a device.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::call::{Call, Outputs};
use crate::canceller::Canceller;
use crate::device::Device;
use crate::device_group::DeviceGroup;
use crate::error::{Code, Error, Result};
use crate::function::Function;
use crate::instance::Instance;
use crate::list::List;
use crate::module::Module;
use crate::status::check;
use crate::value::Value;

/// Numbers sessions, so that a function of one is never called in another.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Modules with their own state (globals), on one device or a [`DeviceGroup`].
///
/// One thread uses it at a time (calls take `&mut`, as they change the modules' state), and it
/// may move between threads; sessions run side by side without a lock of ours.
pub struct Session {
    context: NonNull<sys::iree_vm_context_t>,
    number: u64,
    /// Shared with calls in flight: code on the device may read the modules' data.
    modules: Arc<[Module]>,
    canceller: Canceller,
    /// The first of its group. Dropped after `drop` has released the context, which uses it.
    device: Device,
}

// SAFETY: a VM context is thread-compatible: any thread may use it, one at a time, and `&self`
// methods only read.
unsafe impl Send for Session {}

/// Collects the modules of a [`Session`].
#[derive(Debug)]
pub struct SessionBuilder {
    device: Device,
    modules: Vec<Module>,
}

impl SessionBuilder {
    /// Adds a module, after those that it imports from.
    pub fn module(mut self, module: Module) -> Self {
        self.modules.push(module);
        self
    }

    /// Loads the modules' executables on the device and runs their initializers.
    ///
    /// # Errors
    /// [`AlreadyExists`](Code::AlreadyExists) when two modules have one name;
    /// [`Incompatible`](Code::Incompatible) when an executable does not fit this machine (a CPU
    /// without the features it was compiled for, or another kind of device) or calls a
    /// [`Kernel`](crate::Kernel) that the device was not opened with; what an initializer raises.
    pub fn build(self) -> Result<Session> {
        Session::new(self.device, self.modules)
    }
}

impl Session {
    /// Begins a session on a [`&Device`](Device) and the others of its group, if there are any,
    /// or on a [`&DeviceGroup`](DeviceGroup).
    pub fn builder(devices: impl Into<DeviceGroup>) -> SessionBuilder {
        let device = Device::of(&devices.into(), 0);
        SessionBuilder { device, modules: Vec::new() }
    }

    fn new(device: Device, modules: Vec<Module>) -> Result<Self> {
        for (at, module) in modules.iter().enumerate() {
            if modules[..at].iter().any(|other| other.name() == module.name()) {
                return Err(Error::new(
                    Code::AlreadyExists,
                    format!("two modules of one session are named `{}`", module.name()),
                ));
            }
        }
        let instance = Instance::get()?;
        let hal = HalModule::new(instance, &device)?;
        let mut raw: Vec<_> =
            std::iter::once(hal.0).chain(modules.iter().map(Module::raw)).collect();
        let mut context = ptr::null_mut();
        // SAFETY: instance and modules are live; the context retains the modules.
        check(unsafe {
            sys::iree_vm_context_create_with_modules(
                instance.vm.as_ptr(),
                sys::IREE_VM_CONTEXT_FLAG_NONE,
                raw.len(),
                raw.as_mut_ptr(),
                host_allocator(),
                &mut context,
            )
        })
        .map_err(|e| explain(e, &device))?;
        Ok(Self {
            context: NonNull::new(context).expect("IREE returned OK with a null context"),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            modules: modules.into(),
            canceller: Canceller::default(),
            device,
        })
    }

    /// The device that it runs on, the first of several.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its modules, in the order of loading.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// The function of full name `module.function`.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound); the message lists the functions that there are.
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
            // SAFETY: the context of this session keeps the function's module alive.
            Ok(()) => Ok(unsafe { Function::new(raw, self.number) }),
            Err(error) if error.code() == Code::ResourceExhausted => Err(error),
            Err(_) => Err(Error::new(
                Code::NotFound,
                format!("no function `{name}`; this session has {}", self.known()),
            )),
        }
    }

    /// Makes a [`Call`] of `function`, to be invoked any number of times.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when the function is of another session.
    pub fn prepare(&self, function: &Function) -> Result<Call> {
        self.check_owner(function)?;
        Call::new(function.clone(), self.device.clone())
    }

    /// Calls `function` with `arguments` and waits for its results.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) for arguments of the wrong number, kind, dtype
    /// or shape; what the function raises.
    pub fn call(
        &mut self,
        function: &Function,
        arguments: impl IntoIterator<Item = Value>,
    ) -> Result<Outputs> {
        let mut call = self.prepare(function)?;
        call.set_all(arguments)?;
        call.invoke(self)?;
        Ok(call.into_outputs())
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

    /// Calls `function` of this session; the lists have as many entries as it takes, and room for
    /// its results.
    pub(crate) fn invoke(
        &mut self,
        function: &Function,
        inputs: &List,
        outputs: &List,
    ) -> Result<()> {
        self.canceller.check()?;
        // SAFETY: the context is live and exclusively ours for the call; function and lists
        // belong to it.
        check(unsafe {
            sys::iree_vm_invoke(
                self.context.as_ptr(),
                function.raw(),
                sys::IREE_VM_INVOCATION_FLAG_NONE,
                ptr::null(),
                inputs.raw(),
                outputs.raw(),
                host_allocator(),
            )
        })
        .map_err(|e| e.context(format!("calling `{}`", function.name())))
    }

    fn known(&self) -> String {
        let mut names = Vec::new();
        for module in &*self.modules {
            for function in module.functions().unwrap_or_default() {
                names.push(format!("`{}.{}`", module.name(), function.name));
            }
        }
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
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

/// The module through which compiled programs reach the device.
struct HalModule(*mut sys::iree_vm_module_t);

impl HalModule {
    fn new(instance: &Instance, device: &Device) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // Synchronous: calls block in the wait for the device instead of yielding to us, who would
        // only wait then. In IREE 3.13 a yield whose wait frame makes the VM stack grow writes the
        // place to resume at into the old stack, and the function begins anew with its registers
        // in use ("ref type mismatch"). (3.13.0 sets the flag by itself, whatever it is asked.)
        // SAFETY: instance and group are live; the module retains the group. The zeroed debug
        // sink drops what programs trace: a library prints nothing.
        check(unsafe {
            sys::iree_hal_module_create(
                instance.vm.as_ptr(),
                sys::iree_hal_module_device_policy_default(),
                device.group().raw(),
                sys::IREE_HAL_MODULE_FLAG_SYNCHRONOUS,
                sys::iree_hal_module_debug_sink_t::default(),
                host_allocator(),
                &mut raw,
            )
        })?;
        Ok(Self(raw))
    }
}

impl Drop for HalModule {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_vm_module_release(self.0) };
    }
}

fn explain(error: Error, device: &Device) -> Error {
    let message = error.message();
    let error = if message.contains("no executable loader registered")
        || message.contains("required by the module")
        || message.contains("HAL device")
        || message.contains("missing CPU features")
    {
        error.with_code(Code::Incompatible).context(
            "the module holds code for another CPU or kind of device; compile it for this one",
        )
    } else {
        error
    };
    error.context(format!("loading modules on `{}`", device.uri()))
}
