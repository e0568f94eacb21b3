//! Kernels: Rust functions that graphs dispatch.
//!
//! To IREE they are the exports of an executable that was compiled elsewhere
//! (`kernel_executable.rs`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use iree_sys as sys;

use crate::base::error::{Error, Result};
use crate::base::text::entries;

type Function = dyn Fn(&KernelArguments<'_>) -> Result<()> + Send + Sync;

/// A Rust function for a graph to dispatch: with tensors of the graph as its bindings and 32-bit
/// numbers as its constants, in as many workgroups as the graph says.
///
/// Calls come from worker threads, several at a time, one for each workgroup of the dispatch.
/// A worker of `local-task` has 128 KiB of stack. Subnormal numbers are zero. A panic of
/// the function ends in an error of the call, as an `Err` does, unless the program is built with
/// `panic = "abort"`.
pub struct Kernel {
    pub(super) bindings: u8,
    pub(super) constants: u8,
    function: Box<Function>,
}

/// Most bindings, and most constants, of a dispatch (`IREE_HAL_EXECUTABLE_MAX_BINDING_COUNT`,
/// `IREE_HAL_EXECUTABLE_MAX_CONSTANT_COUNT`).
const MOST: usize = 64;

impl Kernel {
    /// A kernel that takes so many bindings and constants. A dispatch with others fails before the
    /// kernel is called.
    ///
    /// # Panics
    /// When there are more than 64 of either, which is IREE's limit.
    pub fn new(
        bindings: usize,
        constants: usize,
        function: impl Fn(&KernelArguments<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        assert!(
            bindings <= MOST && constants <= MOST,
            "a kernel has at most {MOST} bindings and constants, not {bindings} and {constants}"
        );
        let [bindings, constants] = [bindings as u8, constants as u8];
        Self { bindings, constants, function: Box::new(function) }
    }

    pub(super) fn run(&self, arguments: &KernelArguments<'_>) -> Result<()> {
        let it = arguments.dispatch;
        let given = (it.binding_count, it.constant_count);
        if given != (self.bindings, self.constants.into()) {
            // A driver has seen to that where it records commands, but not where it has a single dispatch.
            return Err(Error::invalid(format!(
                "{} bindings and {} constants, expected {} and {}",
                given.0, given.1, self.bindings, self.constants
            )));
        }
        (self.function)(arguments)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} bindings, {} constants)", self.bindings, self.constants)
    }
}

/// What a graph passes to a [`Kernel`], and which workgroup of the dispatch this call is.
///
/// Getting at an argument is safe; what the pointers lead to is the kernel's to know: of what type
/// the elements are, that inputs are only read, and that other workgroups read and write beside
/// them at the same time.
pub struct KernelArguments<'a> {
    dispatch: &'a sys::iree_hal_executable_dispatch_state_v0_t,
    workgroup: &'a sys::iree_hal_executable_workgroup_state_v0_t,
}

impl<'a> KernelArguments<'a> {
    /// # Safety
    /// The lists of the dispatch have as many entries as it says, which nobody writes.
    pub(super) unsafe fn new(
        dispatch: &'a sys::iree_hal_executable_dispatch_state_v0_t,
        workgroup: &'a sys::iree_hal_executable_workgroup_state_v0_t,
    ) -> Self {
        Self { dispatch, workgroup }
    }

    /// The number of the workgroup, along each axis.
    #[inline]
    pub fn workgroup_id(&self) -> [u32; 3] {
        let it = self.workgroup;
        [it.workgroup_id_x, it.workgroup_id_y, it.workgroup_id_z.into()]
    }

    /// How many workgroups the dispatch has, along each axis.
    #[inline]
    pub fn workgroup_count(&self) -> [u32; 3] {
        let it = self.dispatch;
        [it.workgroup_count_x, it.workgroup_count_y, it.workgroup_count_z.into()]
    }

    /// Where binding `binding` begins (counted from 0), of [that many](Self::byte_length) bytes.
    ///
    /// # Panics
    /// When the kernel declares no such binding.
    #[inline]
    pub fn pointer<T>(&self, binding: usize) -> *mut T {
        self.of_bindings(self.dispatch.binding_ptrs)[binding].cast()
    }

    /// How many bytes binding `binding` has.
    ///
    /// # Panics
    /// When the kernel declares no such binding.
    #[inline]
    pub fn byte_length(&self, binding: usize) -> usize {
        self.of_bindings(self.dispatch.binding_lengths)[binding]
    }

    /// The constants: each an `i32` of the graph, which takes `arith.bitcast` for an `f32`.
    #[inline]
    pub fn constants(&self) -> &[u32] {
        // SAFETY: there are as many, by the contract of `new`.
        unsafe { entries(self.dispatch.constants, self.dispatch.constant_count.into()) }
    }

    /// One of the lists that have an entry for each binding.
    #[inline]
    fn of_bindings<T>(&self, list: *const T) -> &[T] {
        // SAFETY: there are as many, by the contract of `new`.
        unsafe { entries(list, self.dispatch.binding_count.into()) }
    }
}

impl fmt::Debug for KernelArguments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelArguments")
            .field("workgroup_id", &self.workgroup_id())
            .field("bindings", &self.of_bindings(self.dispatch.binding_ptrs))
            .field("byte_lengths", &self.of_bindings(self.dispatch.binding_lengths))
            .field("constants", &self.constants())
            .finish()
    }
}

/// [`Kernel`]s by the names that graphs know them by; cloning is cheap.
///
/// A device gets them when it is opened
/// ([`DeviceOptions::kernels`](crate::DeviceOptions::kernels)), and keeps them as long as it
/// lives.
///
/// ```
/// use iree_rt::{DeviceOptions, Kernel, KernelArguments, Kernels};
///
/// let negate = Kernel::new(2, 0, |arguments: &KernelArguments<'_>| {
///     let (from, to) = (arguments.pointer::<f32>(0), arguments.pointer::<f32>(1));
///     for i in 0..arguments.byte_length(0) / 4 {
///         // SAFETY: graphs for this device dispatch `negate` with two tensors of f32, of one shape.
///         unsafe { *to.add(i) = -*from.add(i) };
///     }
///     Ok(())
/// });
/// let kernels = Kernels::new().with("negate", negate);
/// let options = DeviceOptions::default().kernels(kernels);
/// # let _ = options;
/// ```
///
/// # How a graph dispatches them
///
/// As exports of an executable that was compiled elsewhere, whose format is `kernels:` and the names
/// of its exports, with commas between them. In a program of StableHLO, or of any other dialect of
/// tensors, that is `hal.dispatch.extern` (`examples/kernel.mlir` is a whole one):
///
/// ```mlir
/// %y = hal.dispatch.extern "negate"[%workgroups](%x) : (tensor<8xf32>) -> tensor<8xf32>
///   count(%device: !hal.device, %x_count: index) -> (index, index, index) {
///     %one = arith.constant 1 : index
///     hal.return %x_count, %one, %one : index, index, index
///   }
///   layout(#hal.pipeline.layout<constants = 0, bindings = [
///     #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>
///   ]>)
///   objects({#hal.executable.target<"vulkan-spirv", "kernels:negate"> ordinal(0) = [
///     #hal.executable.object<{path = "negate", data = dense<0> : vector<4xi8>}>
///   ]})
/// ```
///
/// Constants stand among the tensors there, as `i32`. The compiler's backend of SPIR-V is the one that passes on
/// what it did not make, whatever that is; what it passes on is not looked at. Where a program has
/// other work too, it takes [`CompileOptions::link_executables`](crate::CompileOptions::link_executables)`(false)`.
#[derive(Clone, Default)]
pub struct Kernels(Arc<BTreeMap<String, Arc<Kernel>>>);

impl Kernels {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// These and `kernel`, which replaces an earlier one of the name.
    ///
    /// # Panics
    /// When the name is empty, or has a comma or a NUL in it: no format could say it.
    pub fn with(mut self, name: impl Into<String>, kernel: Kernel) -> Self {
        let name = name.into();
        let told = !name.is_empty() && !name.contains([',', '\0']);
        assert!(
            told,
            "a name of a kernel has characters, of which none is a comma or NUL: {name:?}"
        );
        Arc::make_mut(&mut self.0).insert(name, Arc::new(kernel));
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

    pub(super) fn get(&self, name: &str) -> Option<&Arc<Kernel>> {
        self.0.get(name)
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter()).finish()
    }
}
