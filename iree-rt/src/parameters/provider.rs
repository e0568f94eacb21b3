//! Providers: what answers a session that asks for parameters.

use std::ffi::c_void;
use std::ptr;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use super::index::ParameterIndex;
use crate::callback;
use crate::error::{Code, Error, Result};
use crate::instance::Instance;
use crate::module::VmModule;
use crate::status::{check, status_of};

/// Rust code that answers with parameters as programs ask for them: decrypted, fetched, generated.
///
/// It is asked by the threads that build sessions.
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
/// # #[cfg(feature = "link")] fn main() -> Result<()> {
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
/// assert_eq!(session.call(&run, [])?.buffer_view(0)?.read::<i8>()?, [2; 4]);
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
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
}

/// A reference to a provider of IREE.
pub(crate) struct Provider(*mut sys::iree_io_parameter_provider_t);

// SAFETY: until it is in a session, only we have it, and what it holds is `Send`.
unsafe impl Send for Provider {}

impl Provider {
    /// One that answers with what is in `index`.
    pub(crate) fn of_index(scope: &str, index: &ParameterIndex) -> Result<Self> {
        let native = Self::native(scope, index)?;
        let (scope, index) = (scope.to_owned(), index.clone());
        Ok(Self::of_source(Source::Index { scope, index, native }))
    }

    pub(crate) fn of_rust(provider: Box<dyn ParameterProvider>) -> Self {
        Self::of_source(Source::Rust(provider))
    }

    fn of_source(source: Source) -> Self {
        let base = sys::iree_io_parameter_provider_t { ref_count: 1, vtable: &VTABLE };
        Self(Box::into_raw(Box::new(Answering { base, source })).cast())
    }

    /// IREE's own.
    fn native(scope: &str, index: &ParameterIndex) -> Result<Self> {
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
        Ok(Self(raw))
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_io_parameter_provider_release(self.0) };
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

/// A provider of ours as IREE sees it, which finds count and table at its start.
#[repr(C)]
struct Answering {
    base: sys::iree_io_parameter_provider_t,
    source: Source,
}

/// Where a provider has its parameters from.
enum Source {
    Index { scope: String, index: ParameterIndex, native: Provider },
    Rust(Box<dyn ParameterProvider>),
}

impl Source {
    fn supports(&self, asked: &str) -> bool {
        match self {
            Self::Index { scope, .. } => scope == asked,
            Self::Rust(provider) => provider.supports(asked),
        }
    }

    /// Adds the parameter `name` to another index, in memory that nothing else uses.
    fn copy(&self, scope: &str, name: &str, to: &ParameterIndex, key: &str) -> Result<()> {
        let copied = match self {
            Self::Index { index, .. } => index.copy(name, to, key),
            Self::Rust(provider) => {
                provider.load(scope, name).and_then(|bytes| to.add_owned(key, bytes))
            }
        };
        copied.map_err(|error| {
            error.context(format!("loading parameter `{name}` of scope `{scope}`"))
        })
    }
}

static VTABLE: sys::iree_io_parameter_provider_vtable_t =
    sys::iree_io_parameter_provider_vtable_t {
        destroy: Some(destroy),
        notify: Some(notify),
        query_support: Some(query_support),
        load: Some(load),
        gather: Some(gather),
        scatter: Some(scatter),
    };

/// # Safety
/// `raw` is a live provider with [`VTABLE`].
unsafe fn source<'a>(raw: *mut sys::iree_io_parameter_provider_t) -> &'a Source {
    // SAFETY: by the contract of this function; only its count changes.
    unsafe { &(*raw.cast::<Answering>()).source }
}

/// # Safety
/// `view` points to live bytes.
unsafe fn name<'a>(view: sys::iree_string_view_t) -> Result<&'a str> {
    if view.size == 0 {
        return Ok("");
    }
    // SAFETY: by the contract of this function.
    let bytes = unsafe { std::slice::from_raw_parts(view.data.cast::<u8>(), view.size) };
    std::str::from_utf8(bytes).map_err(|_| Error::invalid("a parameter's name is not UTF-8"))
}

/// What a program asks for at once, copied to an index under the numbers of the requests: two
/// requests for one parameter get two copies.
struct Copies {
    provider: Provider,
    spans: Vec<(String, sys::iree_io_parameter_span_t)>,
}

impl Copies {
    /// # Safety
    /// `enumerator` lists `count` parameters, and is live.
    unsafe fn make(
        source: &Source,
        scope: &str,
        count: usize,
        enumerator: sys::iree_io_parameter_enumerator_t,
    ) -> Result<Self> {
        let enumerate = enumerator.fn_.expect("IREE passes an enumerator");
        let index = ParameterIndex::new()?;
        let mut spans = Vec::with_capacity(count);
        for at in 0..count {
            let mut key = sys::iree_string_view_empty();
            let mut span = sys::iree_io_parameter_span_t::default();
            // SAFETY: by the contract of this function; names live as long as the enumerator.
            let name = unsafe {
                check(enumerate(enumerator.user_data, at, &mut key, &mut span))?;
                name(key)?
            };
            let key = at.to_string();
            source.copy(scope, name, &index, &key)?;
            spans.push((key, span));
        }
        Ok(Self { provider: Provider::native(scope, &index)?, spans })
    }

    /// Lists the copies, while `self` lives.
    fn enumerator(&self) -> sys::iree_io_parameter_enumerator_t {
        unsafe extern "C" fn enumerate(
            user_data: *mut c_void,
            at: usize,
            key: *mut sys::iree_string_view_t,
            span: *mut sys::iree_io_parameter_span_t,
        ) -> sys::iree_status_t {
            // SAFETY: the spans of live copies, which IREE counts through; out pointers are valid.
            unsafe {
                let spans = &*user_data.cast::<Vec<(String, sys::iree_io_parameter_span_t)>>();
                *key = sys::iree_make_string_view(&spans[at].0);
                *span = spans[at].1;
            }
            status_of(Ok(()))
        }
        sys::iree_io_parameter_enumerator_t {
            fn_: Some(enumerate),
            user_data: (&raw const self.spans).cast_mut().cast(),
        }
    }
}

/// Lets a provider of IREE's own do what a program asks for: that of the index, if its memory may be
/// `shared`, else one of copies.
///
/// # Safety
/// All are of one live call of a provider with [`VTABLE`].
unsafe fn answer(
    raw: *mut sys::iree_io_parameter_provider_t,
    scope: sys::iree_string_view_t,
    count: usize,
    enumerator: sys::iree_io_parameter_enumerator_t,
    shared: bool,
    deliver: impl FnOnce(
        *mut sys::iree_io_parameter_provider_t,
        sys::iree_io_parameter_enumerator_t,
    ) -> sys::iree_status_t,
) -> sys::iree_status_t {
    // SAFETY: by the contract of this function.
    let source = unsafe { source(raw) };
    let answer = callback::catch(|| match source {
        Source::Index { index, native, .. } if shared && !index.has_wide_splats()? => {
            Ok(Answer::Shared(native))
        }
        // SAFETY: by the contract of this function.
        _ => unsafe { Copies::make(source, name(scope)?, count, enumerator).map(Answer::Copies) },
    });
    // Operations that still run afterwards keep the files that they read.
    match answer {
        Ok(Answer::Shared(native)) => deliver(native.0, enumerator),
        Ok(Answer::Copies(copies)) => deliver(copies.provider.0, copies.enumerator()),
        Err(error) => status_of(Err(error)),
    }
}

enum Answer<'a> {
    Shared(&'a Provider),
    Copies(Copies),
}

unsafe extern "C" fn destroy(raw: *mut sys::iree_io_parameter_provider_t) {
    // SAFETY: the box that `of_source` made; IREE destroys it once.
    callback::catch_quietly(|| drop(unsafe { Box::from_raw(raw.cast::<Answering>()) }));
}

unsafe extern "C" fn notify(
    _: *mut sys::iree_io_parameter_provider_t,
    _: sys::iree_io_parameter_provider_signal_t,
) -> sys::iree_status_t {
    status_of(Ok(()))
}

unsafe extern "C" fn query_support(
    raw: *mut sys::iree_io_parameter_provider_t,
    scope: sys::iree_string_view_t,
) -> bool {
    // SAFETY: IREE calls with a live provider of ours, and a live text.
    callback::catch(|| unsafe { Ok(source(raw).supports(name(scope)?)) }).unwrap_or(false)
}

unsafe extern "C" fn load(
    raw: *mut sys::iree_io_parameter_provider_t,
    device: *mut sys::iree_hal_device_t,
    affinity: sys::iree_hal_queue_affinity_t,
    wait: sys::iree_hal_semaphore_list_t,
    signal: sys::iree_hal_semaphore_list_t,
    scope: sys::iree_string_view_t,
    params: sys::iree_hal_buffer_params_t,
    count: usize,
    enumerator: sys::iree_io_parameter_enumerator_t,
    emitter: sys::iree_io_parameter_emitter_t,
) -> sys::iree_status_t {
    // IREE hands out memory of the index itself where it can, also to a program that is about to
    // change it: such a program gets its own.
    let immutable = params.usage & sys::IREE_HAL_BUFFER_USAGE_SHARING_IMMUTABLE != 0;
    // SAFETY: all arguments are those of this call, passed on.
    unsafe {
        answer(raw, scope, count, enumerator, immutable, |inner, enumerator| {
            sys::iree_io_parameter_provider_load(
                inner, device, affinity, wait, signal, scope, params, count, enumerator, emitter,
            )
        })
    }
}

unsafe extern "C" fn gather(
    raw: *mut sys::iree_io_parameter_provider_t,
    device: *mut sys::iree_hal_device_t,
    affinity: sys::iree_hal_queue_affinity_t,
    wait: sys::iree_hal_semaphore_list_t,
    signal: sys::iree_hal_semaphore_list_t,
    scope: sys::iree_string_view_t,
    target: *mut sys::iree_hal_buffer_t,
    count: usize,
    enumerator: sys::iree_io_parameter_enumerator_t,
) -> sys::iree_status_t {
    // SAFETY: all arguments are those of this call, passed on.
    unsafe {
        answer(raw, scope, count, enumerator, true, |inner, enumerator| {
            sys::iree_io_parameter_provider_gather(
                inner, device, affinity, wait, signal, scope, target, count, enumerator,
            )
        })
    }
}

unsafe extern "C" fn scatter(
    _: *mut sys::iree_io_parameter_provider_t,
    _: *mut sys::iree_hal_device_t,
    _: sys::iree_hal_queue_affinity_t,
    _: sys::iree_hal_semaphore_list_t,
    _: sys::iree_hal_semaphore_list_t,
    _: *mut sys::iree_hal_buffer_t,
    _: sys::iree_string_view_t,
    _: usize,
    _: sys::iree_io_parameter_enumerator_t,
) -> sys::iree_status_t {
    let message = "parameters are not written back";
    status_of(Err(Error::new(Code::Unimplemented, message)))
}
