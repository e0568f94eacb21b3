//! Rust code that runs beside whoever awaits it: by a device's queue, or in a thread.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::base::{callback, exit};
use crate::hal::devices::device::Device;
use crate::hal::sync::timeline::Timeline;

type Work<T> = Box<dyn FnOnce() -> Result<T> + Send>;

/// What is run, and then what came of it.
enum State<T> {
    Waiting(Work<T>),
    Done(Result<T>),
    Taken,
}

type Shared<T> = Mutex<State<T>>;

/// Runs `work`, which may wait for a GPU but for no other device: a worker of `local-task` does, the thread that polls
/// on `local-sync`, and for GPUs a thread of its own. (Their queues would run it in the thread that tells of what is
/// done, for which the work waits, on Vulkan, and in the one that polls on CUDA.) Dropping the future changes nothing
/// for the work, which owns what it needs.
pub(crate) async fn run<T: Send + 'static>(
    device: Device,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let shared = Arc::new(Shared::new(State::Waiting(Box::new(work))));
    let done = {
        let done = Arc::new(Timeline::new(&device, 0)?);
        let fence = done.fence(1)?;
        if device.is_local() {
            submit(&device, &done, &shared)?;
        } else {
            spawn(&done, &shared);
        }
        fence.reached()
    };
    let done = done.await;
    // Out of the lock: what was not run is dropped here.
    let state = std::mem::replace(&mut *lock(&shared), State::Taken);
    done?;
    match state {
        State::Done(result) => result,
        _ => Err(Error::new(Code::Internal, "a queue has signalled work that it did not run")),
    }
}

/// Without a thread to be had, the one that polls does it.
fn spawn<T: Send + 'static>(done: &Arc<Timeline>, shared: &Arc<Shared<T>>) {
    let work = |done: Arc<Timeline>, shared: Arc<Shared<T>>| {
        perform(&shared);
        // Whoever takes the result may be the last to have it.
        drop(shared);
        if let Err(error) = done.signal(1) {
            done.fail(&error);
        }
    };
    let (theirs, ours) = ((done.clone(), shared.clone()), (done.clone(), shared.clone()));
    if exit::spawn("iree-rt-copy", move || work(theirs.0, theirs.1)).is_err() {
        work(ours.0, ours.1);
    }
}

fn submit<T: Send>(device: &Device, done: &Timeline, shared: &Arc<Shared<T>>) -> Result<()> {
    let (mut semaphores, mut values) = ([done.raw()], [1]);
    let held = Arc::into_raw(shared.clone());
    let call =
        sys::iree_hal_host_call_t { fn_: Some(called::<T>), user_data: held.cast_mut().cast() };
    // SAFETY: device and semaphore are live, lists and arguments are copied; the call is made once,
    // for which a reference to the work is held.
    let submitted = check(unsafe {
        sys::iree_hal_device_queue_host_call(
            device.raw(),
            u64::MAX, // IREE_HAL_QUEUE_AFFINITY_ANY
            sys::iree_hal_semaphore_list_t::default(),
            sys::iree_hal_semaphore_list_t {
                count: 1,
                semaphores: semaphores.as_mut_ptr(),
                payload_values: values.as_mut_ptr(),
            },
            call,
            [0u64; 4].as_ptr(),
            u64::from(sys::IREE_HAL_HOST_CALL_FLAG_NONE),
        )
    });
    if submitted.is_err() && matches!(*lock(shared), State::Waiting(_)) {
        // SAFETY: what was not submitted is not called; this is the reference that was held for it.
        drop(unsafe { Arc::from_raw(held) });
    }
    submitted
}

unsafe extern "C" fn called<T: Send>(
    user_data: *mut c_void,
    _args: *const u64,
    _context: *mut sys::iree_hal_host_call_context_t,
) -> sys::iree_status_t {
    // SAFETY: the reference that `submit` held for this call, the only one.
    let shared = unsafe { Arc::from_raw(user_data.cast::<Shared<T>>().cast_const()) };
    callback::catch_quietly(move || perform(&shared));
    // A failure would be the device's, not only of this work: it is told with the result.
    ptr::null_mut()
}

/// Runs the work that waits, whose panic becomes an error.
fn perform<T>(shared: &Shared<T>) {
    let State::Waiting(work) = std::mem::replace(&mut *lock(shared), State::Taken) else {
        return;
    };
    let result = callback::catch(work);
    *lock(shared) = State::Done(result);
}

fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, State<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
