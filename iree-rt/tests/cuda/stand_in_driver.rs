//! A stand-in for NVIDIA's driver library: one "GPU" whose memory is the host's and whose only
//! kernel adds four floats. Everything is done when the function that asks for it returns.
//!
//! It is strict where a careless caller would get away with it: a function that needs a context
//! fails on a thread that has none, and memory is freed once. It says nothing of speed, of streams
//! that run side by side, or of compiled kernels: those need a GPU.
//!
//! The tests compile this file to `libcuda.so`; it is no part of the crate.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

type Address = u64;
type Handle = *mut c_void;

const OK: c_int = 0;
const INVALID_VALUE: c_int = 1;
const INVALID_CONTEXT: c_int = 201;
const NOT_FOUND: c_int = 500;
const NOT_SUPPORTED: c_int = 801;

/// Bytes of memory that the GPU pretends to have.
const TOTAL: usize = 1 << 30;
const CONTEXT: Handle = 0x1000 as Handle;
/// Anything else that only needs a name: streams, events, pools, modules.
const SOMETHING: Handle = 0x2000 as Handle;
const KERNEL: Handle = 0x3000 as Handle;

static MEMORY: Mutex<Option<HashMap<Address, Layout>>> = Mutex::new(None);
/// How often the primary context is retained: it is gone at 0, and so is what is in it.
static RETAINED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CURRENT: Cell<Handle> = const { Cell::new(ptr::null_mut()) };
}

fn in_context(work: impl FnOnce() -> c_int) -> c_int {
    let alive = RETAINED.load(Ordering::SeqCst) > 0;
    if alive && CURRENT.get() == CONTEXT { work() } else { INVALID_CONTEXT }
}

fn with_memory<T>(work: impl FnOnce(&mut HashMap<Address, Layout>) -> T) -> T {
    work(MEMORY.lock().unwrap().get_or_insert_default())
}

fn used() -> usize {
    with_memory(|memory| memory.values().map(Layout::size).sum())
}

unsafe fn allocate(out: *mut Address, bytes: usize) -> c_int {
    in_context(|| {
        if bytes == 0 || bytes > TOTAL - used() {
            return if bytes == 0 { INVALID_VALUE } else { 2 };
        }
        let layout = Layout::from_size_align(bytes, 512).unwrap();
        unsafe { *out = alloc_zeroed(layout) as Address };
        with_memory(|memory| memory.insert(unsafe { *out }, layout));
        OK
    })
}

fn free(address: Address) -> c_int {
    in_context(|| match with_memory(|memory| memory.remove(&address)) {
        Some(layout) => {
            unsafe { dealloc(address as *mut u8, layout) };
            OK
        }
        None => INVALID_VALUE,
    })
}

unsafe fn copy(to: Address, from: Address, bytes: usize) -> c_int {
    in_context(|| {
        unsafe { ptr::copy(from as *const u8, to as *mut u8, bytes) };
        OK
    })
}

unsafe fn put<T>(out: *mut T, value: T) -> c_int {
    unsafe { out.write(value) };
    OK
}

unsafe fn text(out: *mut *const c_char, text: &'static CStr) -> c_int {
    unsafe { put(out, text.as_ptr()) }
}

/// Functions by the names of the library, for `dlsym` and for `cuGetProcAddress`, which is asked
/// without the version at the end.
macro_rules! library {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> c_int $body
        )*

        fn find(wanted: &str) -> Option<Handle> {
            $(
                if stringify!($name).trim_end_matches("_v2") == wanted {
                    return Some($name as unsafe extern "C" fn($($type),*) -> c_int as Handle);
                }
            )*
            None
        }
    };
}

unsafe extern "C" fn unsupported() -> c_int {
    NOT_SUPPORTED
}

library! {
    cuGetProcAddress(name: *const c_char, out: *mut Handle, _version: c_int, _flags: u64) {
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
        unsafe { put(out, find(name).unwrap_or(unsupported as unsafe extern "C" fn() -> c_int as _)) }
    }
    cuGetErrorName(error: c_int, out: *mut *const c_char) {
        unsafe {
            match error {
                2 => text(out, c"CUDA_ERROR_OUT_OF_MEMORY"),
                INVALID_CONTEXT => text(out, c"CUDA_ERROR_INVALID_CONTEXT"),
                NOT_SUPPORTED => text(out, c"CUDA_ERROR_NOT_SUPPORTED"),
                _ => text(out, c"CUDA_ERROR_UNKNOWN"),
            }
        }
    }
    cuGetErrorString(error: c_int, out: *mut *const c_char) {
        unsafe { cuGetErrorName(error, out) }
    }

    cuInit(_flags: c_uint) { OK }
    cuDriverGetVersion(out: *mut c_int) { unsafe { put(out, 12040) } }
    cuDeviceGetCount(out: *mut c_int) { unsafe { put(out, 1) } }
    cuDeviceGet(out: *mut c_int, ordinal: c_int) {
        if ordinal == 0 { unsafe { put(out, 0) } } else { 101 }
    }
    cuDeviceGetName(out: *mut c_char, bytes: c_int, _device: c_int) {
        let name = c"Stand-in";
        assert!(bytes as usize > name.count_bytes());
        unsafe { ptr::copy(name.as_ptr(), out, name.count_bytes() + 1) };
        OK
    }
    cuDeviceGetUuid(out: *mut [u8; 16], _device: c_int) {
        unsafe { put(out, std::array::from_fn(|index| index as u8)) }
    }
    cuDeviceTotalMem_v2(out: *mut usize, _device: c_int) { unsafe { put(out, TOTAL) } }
    cuDeviceGetAttribute(out: *mut c_int, attribute: c_int, _device: c_int) {
        let value = match attribute {
            75 => 9,        // compute capability, major
            76 => 0,        // and minor
            89 | 115 => 1,  // concurrent managed access, memory pools
            1..=4 => 1024,  // threads of a block
            5..=7 => 65535, // blocks of a grid
            8 | 97 => 48 << 10, // shared memory of a block
            _ => 0,
        };
        unsafe { put(out, value) }
    }

    cuDevicePrimaryCtxRetain(out: *mut Handle, _device: c_int) {
        RETAINED.fetch_add(1, Ordering::SeqCst);
        unsafe { put(out, CONTEXT) }
    }
    cuDevicePrimaryCtxRelease_v2(_device: c_int) {
        let before = RETAINED.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "the context is released more often than retained");
        if before == 1 {
            assert_eq!(used(), 0, "memory is left in a context that goes");
        }
        OK
    }
    cuCtxSetCurrent(context: Handle) { CURRENT.set(context); OK }
    cuCtxGetCurrent(out: *mut Handle) { unsafe { put(out, CURRENT.get()) } }
    cuCtxSynchronize() { in_context(|| OK) }

    cuStreamCreate(out: *mut Handle, _flags: c_uint) { in_context(|| unsafe { put(out, SOMETHING) }) }
    cuStreamDestroy_v2(_stream: Handle) { in_context(|| OK) }
    cuStreamSynchronize(_stream: Handle) { in_context(|| OK) }
    cuStreamWaitEvent(_stream: Handle, _event: Handle, _flags: c_uint) { in_context(|| OK) }
    cuEventCreate(out: *mut Handle, _flags: c_uint) { in_context(|| unsafe { put(out, SOMETHING) }) }
    cuEventDestroy_v2(_event: Handle) { OK }
    cuEventQuery(_event: Handle) { OK }
    cuEventRecord(_event: Handle, _stream: Handle) { in_context(|| OK) }
    cuEventSynchronize(_event: Handle) { OK }

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        in_context(|| unsafe {
            put(free, TOTAL - used());
            put(total, TOTAL)
        })
    }
    cuMemAlloc_v2(out: *mut Address, bytes: usize) { unsafe { allocate(out, bytes) } }
    cuMemAllocAsync(out: *mut Address, bytes: usize, _stream: Handle) {
        unsafe { allocate(out, bytes) }
    }
    cuMemAllocManaged(out: *mut Address, bytes: usize, _flags: c_uint) {
        unsafe { allocate(out, bytes) }
    }
    cuMemAllocFromPoolAsync(out: *mut Address, bytes: usize, _pool: Handle, _stream: Handle) {
        unsafe { allocate(out, bytes) }
    }
    cuMemHostAlloc(out: *mut Address, bytes: usize, _flags: c_uint) { unsafe { allocate(out, bytes) } }
    cuMemFree_v2(address: Address) { free(address) }
    cuMemFreeAsync(address: Address, _stream: Handle) { free(address) }
    cuMemFreeHost(address: Address) { free(address) }
    cuMemHostRegister_v2(_address: Handle, _bytes: usize, _flags: c_uint) { in_context(|| OK) }
    cuMemHostUnregister(_address: Handle) { in_context(|| OK) }
    cuMemHostGetDevicePointer_v2(out: *mut Address, address: Address, _flags: c_uint) {
        in_context(|| unsafe { put(out, address) })
    }
    cuMemPrefetchAsync(_address: Address, _bytes: usize, _device: c_int, _stream: Handle) { OK }

    cuMemPoolCreate(out: *mut Handle, _properties: *const c_void) { unsafe { put(out, SOMETHING) } }
    cuMemPoolDestroy(_pool: Handle) { OK }
    cuMemPoolSetAttribute(_pool: Handle, attribute: c_int, value: *mut u64) {
        // The release threshold, as this crate sets it.
        assert!(attribute != 4 || unsafe { *value } == 512 << 20);
        OK
    }
    cuMemPoolGetAttribute(_pool: Handle, _attribute: c_int, value: *mut u64) {
        unsafe { put(value, 0) }
    }
    cuMemPoolTrimTo(_pool: Handle, _bytes: usize) { OK }

    cuMemcpyAsync(to: Address, from: Address, bytes: usize, _stream: Handle) {
        unsafe { copy(to, from, bytes) }
    }
    cuMemcpyHtoDAsync_v2(to: Address, from: Address, bytes: usize, _stream: Handle) {
        unsafe { copy(to, from, bytes) }
    }
    cuMemcpyDtoHAsync_v2(to: Address, from: Address, bytes: usize, _stream: Handle) {
        unsafe { copy(to, from, bytes) }
    }
    cuMemcpyDtoDAsync_v2(to: Address, from: Address, bytes: usize, _stream: Handle) {
        unsafe { copy(to, from, bytes) }
    }
    cuMemsetD8Async(to: Address, value: u8, count: usize, _stream: Handle) {
        in_context(|| {
            unsafe { ptr::write_bytes(to as *mut u8, value, count) };
            OK
        })
    }
    cuMemsetD32Async(to: Address, value: u32, count: usize, _stream: Handle) {
        in_context(|| {
            (0..count).for_each(|index| unsafe { (to as *mut u32).add(index).write(value) });
            OK
        })
    }

    cuModuleLoadDataEx(
        out: *mut Handle, _image: *const c_void, _count: c_uint, _options: Handle, _values: Handle
    ) {
        in_context(|| unsafe { put(out, SOMETHING) })
    }
    cuModuleUnload(_module: Handle) { in_context(|| OK) }
    cuModuleGetFunction(out: *mut Handle, _module: Handle, name: *const c_char) {
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
        if name.starts_with("add_dispatch_0") { unsafe { put(out, KERNEL) } } else { NOT_FOUND }
    }
    cuFuncSetAttribute(_function: Handle, _attribute: c_int, _value: c_int) { OK }
    cuLaunchKernel(
        function: Handle, _x: c_uint, _y: c_uint, _z: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint, _stream: Handle, arguments: *mut *mut Address, _extra: Handle
    ) {
        assert_eq!(function, KERNEL);
        in_context(|| {
            let [a, b, sum] = [0, 1, 2].map(|index| unsafe { **arguments.add(index) as *mut f32 });
            (0..4).for_each(|index| unsafe {
                sum.add(index).write(a.add(index).read() + b.add(index).read());
            });
            OK
        })
    }
}
