//! Kernels: Rust functions that compiled code calls.
//!
//! A graph calls one with `iree_codegen.ukernel.generic "NAME"`, which becomes an import of the
//! compiled code; the device resolves it when a session is built.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::Arc;

use iree_sys as sys;

use crate::base::callback;
use crate::base::error::{Code, Error, Result};
use crate::base::kernel_failure;
use crate::base::status::into_status;

type Function = dyn Fn(&KernelArguments<'_>) -> Result<()> + Send + Sync;

/// A Rust function for compiled code to call, with the signature that the code is compiled for.
///
/// Such code passes untyped words, and nothing checks them: a kernel's own claim decides what is
/// read of them as a pointer. So making one is `unsafe`, and opening a device with it is not.
///
/// Calls come from worker threads, several at a time, one for each workgroup of the dispatch.
/// A worker of `local-task` has 128 KiB of stack, of which compiled code may use 32, and treats
/// subnormal numbers as zero. A panic of the function ends in an error of the call, as an `Err`
/// does, unless the program is built with `panic = "abort"`.
pub struct Kernel {
    /// The word at which each tensor begins, and behind the last one the first scalar's.
    starts: Box<[usize]>,
    scalars: usize,
    function: Box<Function>,
}

impl Kernel {
    /// A kernel that takes `tensors` tensors without strides (`strided_dims([[], ..])`), then
    /// `scalars` scalars.
    ///
    /// # Safety
    /// On every device that is opened with the kernel ([`Kernels::with`] gives it its name), each
    /// `iree_codegen.ukernel.generic` of that name, in every module that is loaded, passes exactly
    /// this signature: tensors first (`ins`, then `outs`), then scalars of type `index` or `i64`
    /// (smaller ones share words and would be misread). And `function` reads and writes no more
    /// of the tensors than such a call gives it.
    pub unsafe fn new(
        tensors: usize,
        scalars: usize,
        function: impl Fn(&KernelArguments<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        // SAFETY: by the contract of this function.
        unsafe { Self::with_strides(&vec![0; tensors], scalars, function) }
    }

    /// A kernel that takes tensors with as many strides each as `strides` says, the lengths of
    /// the graph's `strided_dims`, then `scalars` scalars.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    pub unsafe fn with_strides(
        strides: &[usize],
        scalars: usize,
        function: impl Fn(&KernelArguments<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let mut starts = vec![0];
        for (tensor, count) in strides.iter().enumerate() {
            starts.push(starts[tensor] + TENSOR_WORDS + count);
        }
        Self { starts: starts.into(), scalars, function: Box::new(function) }
    }

    fn tensors(&self) -> usize {
        self.starts.len() - 1
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} tensors, {} scalars)", self.tensors(), self.scalars)
    }
}

/// A tensor is its base pointer and an offset in elements, then its strides.
const TENSOR_WORDS: usize = 2;

/// What compiled code passes to one call of a [`Kernel`].
///
/// Getting at an argument is safe; what the pointers lead to is the kernel's to know: how many
/// elements the graph cut out for this workgroup, that inputs are only read, and that other
/// workgroups read and write beside them at the same time.
pub struct KernelArguments<'a> {
    /// As many words as the kernel's signature says.
    words: *const u64,
    kernel: &'a Kernel,
}

impl KernelArguments<'_> {
    /// The first element of tensor `tensor` (counted from 0, `ins` before `outs`).
    ///
    /// `T` is as large as an element of it.
    ///
    /// # Panics
    /// When the kernel declares no such tensor.
    #[inline]
    pub fn pointer<T>(&self, tensor: usize) -> *mut T {
        assert!(tensor < self.kernel.tensors(), "the kernel has no tensor {tensor}");
        let start = self.kernel.starts[tensor];
        // SAFETY: both words are inside the arguments, by the kernel's signature.
        let (base, offset) = unsafe {
            let base = self.words.add(start);
            (*base.cast::<*mut T>(), *base.add(1))
        };
        base.wrapping_add(offset as usize)
    }

    /// Stride `index` of tensor `tensor`, in elements.
    ///
    /// # Panics
    /// When the kernel declares no such tensor or stride.
    #[inline]
    pub fn stride(&self, tensor: usize, index: usize) -> usize {
        assert!(tensor < self.kernel.tensors(), "the kernel has no tensor {tensor}");
        let starts = &self.kernel.starts;
        let word = starts[tensor] + TENSOR_WORDS + index;
        assert!(word < starts[tensor + 1], "tensor {tensor} has no stride {index}");
        // SAFETY: the word is inside the arguments, by the kernel's signature.
        unsafe { *self.words.add(word) as usize }
    }

    /// Scalar `index`, counted from 0 behind the tensors: an `i64` of the graph.
    ///
    /// # Panics
    /// When the kernel declares no such scalar.
    #[inline]
    pub fn scalar(&self, index: usize) -> i64 {
        assert!(index < self.kernel.scalars, "the kernel has no scalar {index}");
        let word = self.kernel.starts[self.kernel.tensors()] + index;
        // SAFETY: the word is inside the arguments, by the kernel's signature.
        unsafe { *self.words.add(word) as i64 }
    }

    /// Scalar `index` as a number of elements: an `index` of the graph.
    ///
    /// # Panics
    /// When the kernel declares no such scalar, or it is negative.
    #[inline]
    pub fn index(&self, index: usize) -> usize {
        let scalar = self.scalar(index);
        usize::try_from(scalar).unwrap_or_else(|_| panic!("scalar {index} is {scalar}"))
    }
}

impl fmt::Debug for KernelArguments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors: Vec<*mut u8> = (0..self.kernel.tensors()).map(|i| self.pointer(i)).collect();
        let scalars: Vec<i64> = (0..self.kernel.scalars).map(|i| self.scalar(i)).collect();
        f.debug_struct("KernelArguments")
            .field("tensors", &tensors)
            .field("scalars", &scalars)
            .finish()
    }
}

/// [`Kernel`]s by the names that graphs call them by; cloning is cheap.
///
/// A device gets them when it is opened
/// ([`DeviceOptions::kernels`](crate::DeviceOptions::kernels)), and keeps them as long as it
/// lives.
///
/// ```
/// use iree_rt::{DeviceOptions, Kernel, KernelArguments, Kernels};
///
/// let negate = |arguments: &KernelArguments<'_>| {
///     let (from, to) = (arguments.pointer::<f32>(0), arguments.pointer::<f32>(1));
///     for i in 0..arguments.index(0) {
///         // SAFETY: the graph passes two tensors of f32 and their common length.
///         unsafe { *to.add(i) = -*from.add(i) };
///     }
///     Ok(())
/// };
/// // SAFETY: graphs for this device call `negate` with two tensors and one scalar.
/// let negate = unsafe { Kernel::new(2, 1, negate) };
/// let kernels = Kernels::new().with("negate", negate);
/// let options = DeviceOptions::default().kernels(kernels);
/// # let _ = options;
/// ```
#[derive(Clone, Default)]
pub struct Kernels(Arc<Table>);

type Table = BTreeMap<String, Arc<Entry>>;

/// What compiled code is given as the context of its calls.
struct Entry {
    name: String,
    kernel: Kernel,
}

impl Kernels {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// These and `kernel`, which replaces an earlier one of the name.
    pub fn with(mut self, name: impl Into<String>, kernel: Kernel) -> Self {
        let name = name.into();
        let entry = Arc::new(Entry { name: name.clone(), kernel });
        Arc::make_mut(&mut self.0).insert(name, entry);
        self
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// What resolves imports of compiled code to them; a clone of `self` outlives all that code.
    pub(crate) fn provider(&self) -> sys::iree_hal_executable_import_provider_t {
        sys::iree_hal_executable_import_provider_t {
            self_: Arc::as_ptr(&self.0).cast_mut().cast(),
            resolve: Some(resolve),
        }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, entry)| (name, &entry.kernel))).finish()
    }
}

/// Finds the imports of an executable among the kernels of a [`Table`].
unsafe extern "C" fn resolve(
    self_: *mut c_void,
    count: usize,
    symbols: *const *const c_char,
    functions: *mut *mut c_void,
    contexts: *mut *mut c_void,
    resolution: *mut sys::iree_hal_executable_import_resolution_t,
) -> sys::iree_status_t {
    // SAFETY: `self_` is the table that the device keeps.
    let table = unsafe { &*self_.cast::<Table>() };
    let mut missing = Vec::new();
    let mut outcome = 0;
    for i in 0..count {
        // SAFETY: all three arrays have `count` entries; symbols are C strings.
        let (symbol, function, context) = unsafe {
            (CStr::from_ptr(*symbols.add(i)), &mut *functions.add(i), &mut *contexts.add(i))
        };
        let symbol = symbol.to_string_lossy();
        let (name, optional) = match symbol.strip_prefix('?') {
            Some(name) => (name, true),
            None => (&*symbol, false),
        };
        if let Some(entry) = table.get(name) {
            *function = call as *mut c_void;
            *context = Arc::as_ptr(entry).cast_mut().cast();
        } else if optional {
            outcome = sys::IREE_HAL_EXECUTABLE_IMPORT_RESOLUTION_MISSING_OPTIONAL;
        } else {
            missing.push(format!("`{name}`"));
        }
    }
    // SAFETY: null or a place for the outcome.
    if let Some(resolution) = unsafe { resolution.as_mut() } {
        *resolution = outcome;
    }
    if missing.is_empty() {
        return sys::iree_status_from_code(sys::IREE_STATUS_OK);
    }
    let known: Vec<String> = table.keys().map(|name| format!("`{name}`")).collect();
    let message = format!(
        "the module calls kernels that the device was not opened with: {} (it was with {})",
        missing.join(", "),
        if known.is_empty() { "none".into() } else { known.join(", ") }
    );
    // Not NOT_FOUND, which means to IREE that another loader may know the executable: it would
    // forget this message.
    into_status(&Error::new(Code::Incompatible, message))
}

/// What compiled code calls: an `iree_hal_executable_import_v0_t` for every kernel.
unsafe extern "C" fn call(
    words: *mut c_void,
    context: *mut c_void,
    _reserved: *mut c_void,
) -> c_int {
    // SAFETY: the context that `resolve` gave; the device keeps it.
    let entry = unsafe { &*context.cast::<Entry>() };
    let arguments = KernelArguments { words: words.cast(), kernel: &entry.kernel };
    match callback::catch(|| (entry.kernel.function)(&arguments)) {
        Ok(()) => 0,
        Err(error) => kernel_failure::keep(error.context(format!("kernel `{}`", entry.name))),
    }
}
