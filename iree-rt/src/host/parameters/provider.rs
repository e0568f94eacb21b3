//! Providers: what answers a session that asks for parameters.

use std::ops::Range;
use std::ptr;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use super::index::{ParameterIndex, check_part};
use crate::base::error::{Code, Error, Result};
use crate::base::instance::Instance;
use crate::base::status::check;
use crate::vm::module::VmModule;

/// Rust code that answers with parameters as programs ask for them: decrypted, fetched, generated.
/// It may take what they write, too ([`write`](Self::write)).
///
/// It is asked by the threads that build sessions, and told what programs write by those that call
/// them.
///
/// ```
/// use iree_rt::{Code, Error, ParameterProvider, Result};
///
/// /// Ones, as many bytes as the name says.
/// struct Ones;
///
/// impl ParameterProvider for Ones {
///     fn supports(&self, scope: &str) -> bool {
///         scope == "ones"
///     }
///
///     fn load(&self, _scope: &str, name: &str) -> Result<Vec<u8>> {
///         let length = name.parse().map_err(|_| Error::new(Code::NotFound, "no length"))?;
///         Ok(vec![1; length])
///     }
/// }
///
/// # #[cfg(all(feature = "link", feature = "compiler", feature = "parameters"))]
/// # fn main() -> Result<()> {
/// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};
/// let vmfb = Compiler::find()?.compile(
///     r#"module @program {
///          util.global private @w = #flow.parameter.named<"ones"::"4"> : tensor<4xi8>
///          func.func @run() -> tensor<4xi8> {
///            %w = util.global.load @w : tensor<4xi8>
///            %0 = stablehlo.add %w, %w : tensor<4xi8>
///            return %0 : tensor<4xi8>
///          }
///        }"#,
///     &CompileOptions::default(),
/// )?;
/// let device = Instance::get()?.device("local-task")?;
/// // SAFETY: compiled just now for the CPU of this machine.
/// let program = unsafe { Module::from_bytes(&vmfb)? };
/// let mut session =
///     Session::builder(&device).parameter_provider(Ones).module(program).build()?;
/// let run = session.function("program.run")?;
/// assert_eq!(session.call(&run, ())?.view(0)?.read::<i8>()?, [2; 4]);
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler", feature = "parameters")))] fn main() {}
/// ```
pub trait ParameterProvider: Send + Sync {
    /// Whether it answers for the parameters of `scope`, which is empty for those without.
    fn supports(&self, scope: &str) -> bool;

    /// All bytes of the parameter `name` of `scope`, as many as the program takes, or more.
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound) when there is no such parameter; they end the building of the
    /// session, as panics do.
    fn load(&self, scope: &str, name: &str) -> Result<Vec<u8>>;

    /// Takes `data`, which a program writes to the bytes from `offset` on of the parameter `name` of
    /// `scope` (`flow.parameter.write`): a checkpoint, say.
    ///
    /// The call that writes waits for what it writes, and for this, also one that was started with
    /// [`call_async`](crate::Session::call_async). Parameters of a [`ParameterIndex`] are not written.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use std::sync::{Arc, Mutex, PoisonError};
    /// use iree_rt::{Code, Error, ParameterProvider, Result};
    ///
    /// #[derive(Clone, Default)]
    /// struct Checkpoint(Arc<Mutex<HashMap<String, Vec<u8>>>>);
    ///
    /// impl ParameterProvider for Checkpoint {
    ///     fn supports(&self, scope: &str) -> bool {
    ///         scope == "checkpoint"
    ///     }
    ///
    ///     fn load(&self, _scope: &str, name: &str) -> Result<Vec<u8>> {
    ///         let saved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
    ///         let saved = saved.get(name).cloned();
    ///         saved.ok_or_else(|| Error::new(Code::NotFound, "nothing was saved"))
    ///     }
    ///
    ///     fn write(&self, _scope: &str, name: &str, offset: u64, data: &[u8]) -> Result<()> {
    ///         let mut saved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
    ///         let bytes = saved.entry(name.to_owned()).or_default();
    ///         let start = usize::try_from(offset)
    ///             .map_err(|_| Error::new(Code::OutOfRange, "past all memory"))?;
    ///         bytes.resize(bytes.len().max(start + data.len()), 0);
    ///         bytes[start..start + data.len()].copy_from_slice(data);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # #[cfg(all(feature = "link", feature = "compiler", feature = "parameters"))]
    /// # fn main() -> Result<()> {
    /// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};
    /// let vmfb = Compiler::find()?.compile(
    ///     r#"module @program {
    ///          func.func @double(%a: tensor<2xf32>) -> tensor<2xf32> {
    ///            %scope = util.buffer.constant : !util.buffer = "checkpoint"
    ///            %name = util.buffer.constant : !util.buffer = "last"
    ///            %offset = arith.constant 0 : i64
    ///            %0 = stablehlo.add %a, %a : tensor<2xf32>
    ///            %1 = flow.parameter.write %0 -> %scope::%name[%offset] : tensor<2xf32>
    ///            return %1 : tensor<2xf32>
    ///          }
    ///        }"#,
    ///     // What the compiler evaluates itself would have no parameters.
    ///     &CompileOptions::default().flag("--iree-opt-const-eval=false"),
    /// )?;
    /// let device = Instance::get()?.device("local-task")?;
    /// // SAFETY: compiled just now for the CPU of this machine.
    /// let program = unsafe { Module::from_bytes(&vmfb)? };
    /// let checkpoint = Checkpoint::default();
    /// let builder = Session::builder(&device).parameter_provider(checkpoint.clone());
    /// let mut session = builder.module(program).build()?;
    /// let double = session.function("program.double")?;
    /// session.call(&double, [device.buffer_view(&[2], &[1f32, 2.])?])?;
    /// let saved = checkpoint.load("checkpoint", "last")?;
    /// assert_eq!(saved, [2f32.to_le_bytes(), 4f32.to_le_bytes()].concat());
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler", feature = "parameters")))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`Unimplemented`](Code::Unimplemented) unless a provider has its own; they are those of the
    /// call that writes, as panics are.
    fn write(&self, scope: &str, name: &str, offset: u64, data: &[u8]) -> Result<()> {
        let _ = (scope, name, offset, data);
        Err(Error::new(
            Code::Unimplemented,
            "the provider of this scope takes nothing that programs write",
        ))
    }
}

/// A reference to a provider of IREE.
pub(crate) struct Provider(*mut sys::iree_io_parameter_provider_t);

// SAFETY: until it is in a session, only we have it, and what it holds is `Send`.
unsafe impl Send for Provider {}

impl Provider {
    /// Takes over a reference.
    pub(super) fn own(raw: *mut sys::iree_io_parameter_provider_t) -> Self {
        Self(raw)
    }

    /// IREE's own.
    pub(super) fn native(scope: &str, index: &ParameterIndex) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the index is live and retained; the scope is copied.
        check(unsafe {
            sys::iree_io_parameter_index_provider_create(
                sys::iree_make_string_view(scope),
                index.raw(),
                sys::IREE_IO_PARAMETER_INDEX_PROVIDER_DEFAULT_MAX_CONCURRENT_OPERATIONS as usize,
                host_allocator(),
                &mut raw,
            )
        })?;
        Ok(Self::own(raw))
    }

    pub(super) fn raw(&self) -> *mut sys::iree_io_parameter_provider_t {
        self.0
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_io_parameter_provider_release(self.0) };
    }
}

/// Where a provider has its parameters from.
pub(super) enum Source {
    Index { scope: String, index: ParameterIndex, native: Provider },
    Rust(Box<dyn ParameterProvider>),
}

impl Source {
    pub(super) fn supports(&self, asked: &str) -> bool {
        match self {
            Self::Index { scope, .. } => scope == asked,
            Self::Rust(provider) => provider.supports(asked),
        }
    }

    /// Adds the bytes `part` of the parameter `name` to another index, in memory that nothing else uses.
    pub(super) fn copy(
        &self,
        scope: &str,
        name: &str,
        part: Range<u64>,
        to: &ParameterIndex,
        key: &str,
    ) -> Result<()> {
        let copied = match self {
            Self::Index { index, .. } => index.copy(name, part, to, key),
            Self::Rust(provider) => provider.load(scope, name).and_then(|mut bytes| {
                check_part(&part, bytes.len() as u64)?;
                bytes.truncate(part.end as usize);
                bytes.drain(..part.start as usize);
                to.add_owned(key, bytes)
            }),
        };
        copied.map_err(|error| {
            error.context(format!("loading parameter `{name}` of scope `{scope}`"))
        })
    }

    /// Takes what a program writes.
    pub(super) fn write(&self, scope: &str, name: &str, offset: u64, data: &[u8]) -> Result<()> {
        let written = match self {
            Self::Index { .. } => Err(Error::new(
                Code::Unimplemented,
                "parameters of an index are not written; a ParameterProvider may take them",
            )),
            Self::Rust(provider) => provider.write(scope, name, offset, data),
        };
        written.map_err(|error| {
            error.context(format!("writing parameter `{name}` of scope `{scope}`"))
        })
    }
}

/// The providers of a session, seen through a trait so that programs that give none do not need the
/// libraries of IREE that this module calls: not every prebuilt runtime has them.
pub(crate) trait Load: Send {
    fn add(&mut self, provider: Result<Provider>);

    /// The module `io_parameters`, through which programs reach the providers.
    fn module(self: Box<Self>) -> Result<VmModule>;
}

#[derive(Default)]
pub(crate) struct Providers(Vec<Result<Provider>>);

impl Load for Providers {
    fn add(&mut self, provider: Result<Provider>) {
        self.0.push(provider);
    }

    fn module(self: Box<Self>) -> Result<VmModule> {
        let providers = self.0.into_iter().collect::<Result<Vec<_>>>()?;
        let raw: Vec<_> = providers.iter().map(|provider| provider.0).collect();
        let instance = Instance::get()?;
        let mut module = ptr::null_mut();
        // SAFETY: instance and providers are live; the module retains the providers.
        check(unsafe {
            sys::iree_io_parameters_module_create(
                instance.vm.as_ptr(),
                raw.len(),
                raw.as_ptr(),
                host_allocator(),
                &mut module,
            )
        })?;
        Ok(VmModule::own(module))
    }
}
