//! The devices of the CPU: `local-task` with a chosen number of workers, `local-sync`.
//!
//! The driver registry makes them from command-line flags and knows no kernels of ours; a
//! library has no flags, so the parts are put together here.

use std::ptr::{self, NonNull};
use std::thread;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::{Code, Error, Result};
use crate::base::instance::Instance;
use crate::base::proactor_pool::ProactorPool;
use crate::base::status::check;
use crate::hal::devices::device_options::DeviceOptions;
use crate::hal::devices::executable_loader;
use crate::hal::devices::heap;
use crate::hal::devices::kernel::Kernels;
use crate::hal::devices::kernel_executable;

/// Most workers of one task executor (`IREE_TASK_TOPOLOGY_MAX_GROUP_COUNT`).
const MAX_WORKERS: usize = 64;

/// Stack of a worker, bytes: generated code alone may use 32 KiB of it.
const WORKER_STACK: usize = 128 * 1024;

/// Releases something of IREE's when dropped.
struct Owned<T> {
    raw: *mut T,
    release: unsafe extern "C" fn(*mut T),
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: `raw` is null or a reference of ours that is not used again, and IREE's
        // release functions take both.
        unsafe { (self.release)(self.raw) };
    }
}

/// `local-task` and its number of workers.
pub(crate) fn task(options: &DeviceOptions) -> Result<(NonNull<sys::iree_hal_device_t>, usize)> {
    check_race(cfg!(task_queue_race), options.allow_racy_runtime)?;
    let topology = topology(options)?;
    let workers = topology.group_count;
    let mut executor = Owned { raw: ptr::null_mut(), release: sys::iree_task_executor_release };
    // SAFETY: options are a plain struct, filled by this call.
    let executor_options = unsafe {
        let mut options = sys::iree_task_executor_options_t::default();
        sys::iree_task_executor_options_initialize(&mut options);
        options.worker_stack_size = WORKER_STACK;
        options
    };
    // SAFETY: the executor copies what it needs of the topology.
    check(unsafe {
        sys::iree_task_executor_create(
            executor_options,
            &*topology,
            host_allocator(),
            &mut executor.raw,
        )
    })?;
    let loaders = Loaders::new(&options.kernels)?;
    let allocator = heap()?;
    let pool = ProactorPool::new()?;
    let create_params =
        sys::iree_hal_device_create_params_t { next: ptr::null(), proactor_pool: pool.raw() };
    let mut params = sys::iree_hal_task_device_params_t::default();
    // SAFETY: fills the struct.
    unsafe { sys::iree_hal_task_device_params_initialize(&mut params) };
    let mut device = ptr::null_mut();
    // SAFETY: all arguments are live; the device retains what it keeps.
    check(unsafe {
        sys::iree_hal_task_device_create(
            sys::iree_make_string_view("local-task"),
            &params,
            1,
            &executor.raw,
            loaders.count,
            loaders.raw.as_ptr().cast_mut(),
            allocator.raw,
            &create_params,
            heap::allocator(),
            &mut device,
        )
    })?;
    Ok((NonNull::new(device).expect("IREE returned OK with a null device"), workers))
}

/// An error for `local-task` on a runtime that has the race of its queue, unless it is allowed.
fn check_race(racy: bool, allowed: bool) -> Result<()> {
    if allowed || !racy {
        return Ok(());
    }
    Err(Error::new(
        Code::FailedPrecondition,
        "`local-task` reads freed memory in this IREE runtime (a known race of 3.13's task queue, \
         which threads that submit work meet): build against one that `cargo xtask fetch-iree` or \
         the feature `bundled` made, where it is mended, or open `local-sync`, which has no queue; \
         `DeviceOptions::allow_racy_runtime` opens it nevertheless",
    ))
}

/// `local-sync`, which runs everything on the thread that calls.
pub(crate) fn sync(kernels: &Kernels) -> Result<NonNull<sys::iree_hal_device_t>> {
    let loaders = Loaders::new(kernels)?;
    let allocator = heap()?;
    let pool = ProactorPool::new()?;
    let create_params =
        sys::iree_hal_device_create_params_t { next: ptr::null(), proactor_pool: pool.raw() };
    let mut params = sys::iree_hal_sync_device_params_t::default();
    // SAFETY: fills the struct.
    unsafe { sys::iree_hal_sync_device_params_initialize(&mut params) };
    let mut device = ptr::null_mut();
    // SAFETY: all arguments are live; the device retains what it keeps.
    check(unsafe {
        sys::iree_hal_sync_device_create(
            sys::iree_make_string_view("local-sync"),
            &params,
            &create_params,
            loaders.count,
            loaders.raw.as_ptr().cast_mut(),
            allocator.raw,
            heap::allocator(),
            &mut device,
        )
    })?;
    Ok(NonNull::new(device).expect("IREE returned OK with a null device"))
}

/// The allocator of the devices' buffers.
fn heap() -> Result<Owned<sys::iree_hal_allocator_t>> {
    let mut allocator = Owned { raw: ptr::null_mut(), release: sys::iree_hal_allocator_release };
    // SAFETY: plain creation into a valid out pointer.
    check(unsafe {
        sys::iree_hal_allocator_create_heap(
            sys::iree_make_string_view("local"),
            heap::buffers(),
            heap::buffers(),
            &mut allocator.raw,
        )
    })?;
    Ok(allocator)
}

fn topology(options: &DeviceOptions) -> Result<Box<sys::iree_task_topology_t>> {
    let mut topology = Box::new(sys::iree_task_topology_t::default());
    let workers = match (&options.threads, &options.cpus) {
        (Some(threads), Some(cpus)) if *threads != cpus.len() => {
            return Err(Error::invalid(format!(
                "{threads} threads asked for but {} CPUs named; name one CPU for each thread, or \
                 leave one of the two out",
                cpus.len()
            )));
        }
        (_, Some(cpus)) => cpus.len(),
        (Some(threads), None) => *threads,
        (None, None) => default_workers(),
    };
    if workers == 0 || workers > MAX_WORKERS {
        return Err(Error::invalid(format!(
            "{workers} worker threads asked for; `local-task` takes 1 to {MAX_WORKERS}"
        )));
    }
    match &options.cpus {
        // SAFETY: `cpus` holds `workers` numbers.
        Some(cpus) => check(unsafe {
            sys::iree_task_topology_initialize_from_logical_cpu_set(
                workers,
                cpus.as_ptr(),
                &mut *topology,
            )
        })
        .map_err(|e| e.context(format!("pinning workers to CPUs {cpus:?}")))?,
        // SAFETY: fills the topology.
        None => unsafe {
            sys::iree_task_topology_initialize_from_group_count(workers, &mut *topology);
        },
    }
    Ok(topology)
}

/// Workers of a `local-task` of which no number is asked: one for each physical core, as far as this process may
/// use that many CPUs, 64 at most.
pub fn default_workers() -> usize {
    let allowed = thread::available_parallelism().map_or(1, usize::from);
    let mut cores = Box::new(sys::iree_task_topology_t::default());
    // SAFETY: fills the topology.
    let known = check(unsafe {
        sys::iree_task_topology_initialize_from_physical_cores(
            u32::MAX, // IREE_TASK_TOPOLOGY_NODE_ID_ANY
            sys::IREE_TASK_TOPOLOGY_PERFORMANCE_LEVEL_ANY,
            sys::IREE_TASK_TOPOLOGY_DISTRIBUTION_COMPACT,
            MAX_WORKERS,
            &mut *cores,
        )
    });
    let physical = if known.is_ok() && cores.group_count > 0 { cores.group_count } else { allowed };
    physical.min(allowed).clamp(1, MAX_WORKERS)
}

/// Loaders of every executable format that the runtime was built with, and of kernels.
struct Loaders {
    raw: [*mut sys::iree_hal_executable_loader_t; 4],
    count: usize,
}

impl Loaders {
    fn new(kernels: &Kernels) -> Result<Self> {
        let mut loaders = Self { raw: [ptr::null_mut(); 4], count: 0 };
        loaders.push(kernel_executable::loader(kernels));
        let allocator = host_allocator();
        // The first that can load a module is taken.
        for name in ["system-library", "embedded-elf"] {
            let name = sys::iree_make_string_view(name);
            let mut next = ptr::null_mut();
            // SAFETY: plain creation into a valid out pointer; there may be no plugins.
            let created = check(unsafe {
                let plugins = ptr::null_mut();
                sys::iree_hal_create_executable_loader_by_name(name, plugins, allocator, &mut next)
            });
            match created {
                // SAFETY: made just now, and not used again.
                Ok(()) => loaders.push(unsafe { executable_loader::one_at_a_time(next) }),
                // The runtime was built without it.
                Err(error) if error.code() == Code::Unavailable => {}
                Err(error) => return Err(error),
            }
        }
        // By name it would come with a VM instance of its own, which registers the VM's types anew:
        // process-wide, while other threads may be in a call.
        let vm = Instance::get()?.vm.as_ptr();
        let mut next = ptr::null_mut();
        // SAFETY: the instance is live, and plain creation into a valid out pointer.
        check(unsafe {
            let modules = ptr::null_mut();
            sys::iree_hal_vmvx_module_loader_create(vm, 0, modules, allocator, &mut next)
        })?;
        // SAFETY: made just now, and not used again.
        loaders.push(unsafe { executable_loader::one_at_a_time(next) });
        Ok(loaders)
    }

    /// Takes over a reference to a live loader.
    fn push(&mut self, loader: *mut sys::iree_hal_executable_loader_t) {
        self.raw[self.count] = loader;
        self.count += 1;
    }
}

impl Drop for Loaders {
    fn drop(&mut self) {
        for loader in &self.raw[..self.count] {
            // SAFETY: references of ours, not used again.
            unsafe { sys::iree_hal_executable_loader_release(*loader) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_with_the_race_is_refused_unless_it_is_allowed() {
        check_race(false, false).unwrap();
        check_race(false, true).unwrap();
        check_race(true, true).unwrap();
        let error = check_race(true, false).unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition);
        for said in ["local-task", "freed memory", "fetch-iree", "bundled", "local-sync"] {
            assert!(error.message().contains(said), "{error}");
        }
    }
}
