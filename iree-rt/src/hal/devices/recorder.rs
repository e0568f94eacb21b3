//! Recorders: what IREE tells of each dispatch.
//!
//! A device opened with [`DeviceOptions::profile`](crate::DeviceOptions::profile) records every
//! dispatch into a file that IREE's `iree-profile` opens, and adds the costs up for
//! [`Device::take_profile`](crate::Device::take_profile).

// IREE has two sinks of its own (`iree/hal/utils/profile_file.h` and `statistics_sink.h`), which do
// not do the same:
// - A device takes one sink. To have file and costs, one of ours would still stand before both.
// - The statistics are those of the whole recording: they begin anew with a session only, and hold
//   no lock for who reads them while the device goes on. `take_profile` tells what was since the
//   last call, of a device that may be busy.
// - The file is written through a stream of C that cannot be flushed, and completed by the end of
//   the recording, which IREE allows on an idle device only. Ours never ends it (see `finish`).
// - Neither is in the unified library: each folder of IREE would need two more.

mod file;

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iree_sys as sys;

use crate::base::error::{Error, Result};
use crate::base::status::check;
use crate::base::text::entries;
use file::{Metadata, ProfileFile, RecordType};

/// What a device did between two calls of [`Device::take_profile`](crate::Device::take_profile).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// The compiled functions that ran, the costliest first.
    pub dispatches: Vec<DispatchCost>,
    /// Time from the start to the end of every submission of several commands, added up. What is
    /// left of it when all dispatches are subtracted went by between them.
    pub submitted: Duration,
    /// Events that IREE had no room for: it keeps 4096 from one call of `take_profile` to the
    /// next.
    pub dropped: u64,
}

/// What one compiled function cost in all its calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatchCost {
    /// The compiler's name of it: `decode_dispatch_3_matvec_2048x8192_f32`.
    pub name: String,
    /// How often it ran.
    pub calls: u64,
    /// From the start to the end of each call, added up.
    pub elapsed: Duration,
    /// What the workers spent in it, added up: at most `elapsed` times their number.
    pub busy: Duration,
    /// Workgroups that were run.
    pub workgroups: u64,
}

/// Receives what IREE records about one device, for as long as the process runs.
pub(crate) struct Recorder(Arc<Sink>);

/// An `iree_hal_profile_sink_t`, which begins with a resource.
#[repr(C)]
struct Sink {
    /// IREE counts in it, behind the shared references that there are to the sink.
    resource: UnsafeCell<sys::iree_hal_resource_t>,
    state: Mutex<State>,
}

// SAFETY: IREE counts references atomically and nobody writes the vtable; the rest is a mutex.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

static VTABLE: sys::iree_hal_profile_sink_vtable_t = sys::iree_hal_profile_sink_vtable_t {
    destroy: Some(destroy),
    begin_session: Some(begin_session),
    write: Some(write),
    end_session: Some(end_session),
};

impl Recorder {
    /// Makes `device`, which nobody else uses yet, record everything into a new file at `path`.
    pub(crate) fn begin(device: NonNull<sys::iree_hal_device_t>, path: &Path) -> Result<Self> {
        let file = ProfileFile::create(path)?;
        let state =
            State { file, names: HashMap::new(), costs: HashMap::new(), rest: Rest::default() };
        let resource =
            sys::iree_hal_resource_t { ref_count: 1, vtable: (&raw const VTABLE).cast::<c_void>() };
        let sink = Arc::new(Sink { resource: resource.into(), state: Mutex::new(state) });
        let raw = Arc::into_raw(sink.clone()).cast_mut().cast::<sys::iree_hal_profile_sink_t>();
        let options = sys::iree_hal_device_profiling_options_t {
            data_families: u64::from(sys::IREE_HAL_DEVICE_PROFILING_DATA_HOST_EXECUTION_EVENTS),
            sink: raw,
            ..Default::default()
        };
        // SAFETY: the device is live, idle and not shared yet; it retains the sink.
        let status = unsafe { sys::iree_hal_device_profiling_begin(device.as_ptr(), &options) };
        // SAFETY: the reference that the sink was made with is ours.
        unsafe { sys::iree_hal_profile_sink_release(raw) };
        check(status).map_err(|error| error.context("recording a profile"))?;
        Ok(Self(sink))
    }

    pub(crate) fn take(&self) -> Result<Profile> {
        let mut state = self.0.lock();
        // What was recorded stays for the next call where the file is at fault.
        if let Some(error) = state.rest.failure.take() {
            return Err(error);
        }
        state.file.flush()?;
        let costs = std::mem::take(&mut state.costs);
        let Rest { submitted, dropped, failure: _ } = std::mem::take(&mut state.rest);
        let name = |key| state.names.get(key).cloned().unwrap_or_else(|| "?".to_owned());
        let mut dispatches: Vec<_> = costs
            .iter()
            .map(|(key, cost)| DispatchCost { name: name(key), ..cost.clone() })
            .collect();
        dispatches.sort_by(|a, b| b.elapsed.cmp(&a.elapsed).then_with(|| a.name.cmp(&b.name)));
        Ok(Profile { dispatches, submitted, dropped })
    }

    /// Writes what is left and completes the file.
    pub(crate) fn finish(&self, device: NonNull<sys::iree_hal_device_t>) {
        // SAFETY: the device is live; a failure is the same as an unfinished file, which is read
        // up to its end.
        let _ = check(unsafe { sys::iree_hal_device_profiling_flush(device.as_ptr()) });
        let _ = self.0.lock().file.finish();
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recorder").field(&self.0.lock().file.path()).finish()
    }
}

impl Sink {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An executable and one of its functions.
type Key = (u64, u32);

struct State {
    file: ProfileFile,
    names: HashMap<Key, String>,
    costs: HashMap<Key, DispatchCost>,
    rest: Rest,
}

#[derive(Default)]
struct Rest {
    submitted: Duration,
    dropped: u64,
    /// The first error of the file; calls of the device do not fail for it.
    failure: Option<Error>,
}

impl State {
    fn chunk(&mut self, metadata: &Metadata<'_>, payload: &[&[u8]]) {
        if let Err(error) = self.file.record(RecordType::Chunk, metadata, payload) {
            self.rest.failure.get_or_insert(error);
        }
        self.rest.dropped += metadata.raw.dropped_record_count;
        for bytes in payload {
            match metadata.content_type {
                b"application/vnd.iree.hal.profile.executable-functions" => self.functions(bytes),
                b"application/vnd.iree.hal.profile.host-execution-events" => self.events(bytes),
                _ => {}
            }
        }
    }

    fn functions(&mut self, bytes: &[u8]) {
        for (record, rest) in records::<sys::iree_hal_profile_executable_function_record_t>(bytes) {
            let name = rest.get(..record.name_length as usize).unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            self.names.insert((record.executable_id, record.function_ordinal), name);
        }
    }

    fn events(&mut self, bytes: &[u8]) {
        for (event, _) in records::<sys::iree_hal_profile_host_execution_event_t>(bytes) {
            let elapsed = nanoseconds(event.end_host_time_ns - event.start_host_time_ns);
            match event.type_ {
                sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_DISPATCH => {
                    let cost = self
                        .costs
                        .entry((event.executable_id, event.function_ordinal))
                        .or_default();
                    cost.calls += 1;
                    cost.elapsed += elapsed;
                    cost.busy += nanoseconds(event.tile_duration_sum_ns);
                    cost.workgroups += event.tile_count;
                }
                sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_EXECUTE => self.rest.submitted += elapsed,
                _ => {}
            }
        }
    }
}

fn nanoseconds(value: i64) -> Duration {
    Duration::from_nanos(value.try_into().unwrap_or(0))
}

/// A record type of `iree/hal/profile_schema.h`: plain integers, the first one the length of the
/// record with what trails it.
trait Record: Copy {}
impl Record for sys::iree_hal_profile_executable_function_record_t {}
impl Record for sys::iree_hal_profile_host_execution_event_t {}

/// The records that `bytes` consists of, each with the bytes that trail it.
fn records<T: Record>(mut bytes: &[u8]) -> impl Iterator<Item = (T, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        if length < size_of::<T>() || length > bytes.len() {
            return None;
        }
        let (record, rest) = bytes.split_at(length);
        bytes = rest;
        // SAFETY: `record` holds at least a `T`, which is integers: any bytes are one.
        let value = unsafe { record.as_ptr().cast::<T>().read_unaligned() };
        Some((value, &record[size_of::<T>()..]))
    })
}

unsafe extern "C" fn destroy(sink: *mut sys::iree_hal_profile_sink_t) {
    // SAFETY: `begin` gave IREE one count of the `Arc`, and this is the last use of it.
    drop(unsafe { Arc::from_raw(sink.cast_const().cast::<Sink>()) });
}

unsafe extern "C" fn begin_session(
    sink: *mut sys::iree_hal_profile_sink_t,
    metadata: *const sys::iree_hal_profile_chunk_metadata_t,
) -> sys::iree_status_t {
    // SAFETY: the sink is one of ours and lives as long as IREE refers to it; metadata is valid
    // during the call.
    let (sink, metadata) = unsafe { (&*sink.cast::<Sink>(), Metadata::new(metadata)) };
    let mut state = sink.lock();
    if let Err(error) = state.file.record(RecordType::SessionBegin, &metadata, &[]) {
        state.rest.failure.get_or_insert(error);
    }
    ptr::null_mut()
}

unsafe extern "C" fn write(
    sink: *mut sys::iree_hal_profile_sink_t,
    metadata: *const sys::iree_hal_profile_chunk_metadata_t,
    count: usize,
    spans: *const sys::iree_const_byte_span_t,
) -> sys::iree_status_t {
    // SAFETY: as in `begin_session`; `spans` are `count` live spans during the call.
    let (sink, metadata, payload) = unsafe {
        let spans = entries(spans, count).iter();
        let payload: Vec<&[u8]> = spans.map(|span| entries(span.data, span.data_length)).collect();
        (&*sink.cast::<Sink>(), Metadata::new(metadata), payload)
    };
    sink.lock().chunk(&metadata, &payload);
    ptr::null_mut()
}

/// Never called: the session is the device's whole life, and [`Recorder::finish`] writes its end.
unsafe extern "C" fn end_session(
    _: *mut sys::iree_hal_profile_sink_t,
    _: *const sys::iree_hal_profile_chunk_metadata_t,
    _: sys::iree_status_code_t,
) -> sys::iree_status_t {
    ptr::null_mut()
}
