//! How a provider of ours answers IREE.

use std::ffi::c_void;
use std::ptr;

use iree_sys as sys;

use super::index::ParameterIndex;
use super::lending::Lending;
use super::provider::{ParameterProvider, Provider, Source};
use super::request::{name, spans};
use crate::base::callback;
use crate::base::error::{Code, Error, Result};
use crate::base::status::{check, into_status, status_of};

/// A provider of ours as IREE sees it, which finds count and table at its start.
#[repr(C)]
struct Answering {
    base: sys::iree_io_parameter_provider_t,
    source: Source,
}

impl Provider {
    /// One that answers with what is in `index`.
    pub(crate) fn of_index(scope: &str, index: &ParameterIndex) -> Result<Self> {
        let native = Self::native(scope, index)?;
        let (scope, index) = (scope.to_owned(), index.clone());
        Ok(Self::answering(Source::Index { scope, index, native }))
    }

    pub(crate) fn of_rust(provider: Box<dyn ParameterProvider>) -> Self {
        Self::answering(Source::Rust(provider))
    }

    fn answering(source: Source) -> Self {
        let base = sys::iree_io_parameter_provider_t { ref_count: 1, vtable: &VTABLE };
        Self::own(Box::into_raw(Box::new(Answering { base, source })).cast())
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
        let index = ParameterIndex::new()?;
        let mut copied = Vec::with_capacity(count);
        // SAFETY: by the contract of this function.
        for (at, asked) in unsafe { spans(count, enumerator) }.enumerate() {
            let (name, mut span) = asked?;
            let key = at.to_string();
            let end = span.parameter_offset.checked_add(span.length as u64);
            let part = span.parameter_offset..end.unwrap_or(u64::MAX);
            source.copy(scope, name, part, &index, &key)?;
            span.parameter_offset = 0;
            copied.push((key, span));
        }
        Ok(Self { provider: Provider::native(scope, &index)?, spans: copied })
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
        Ok(Answer::Shared(native)) => deliver(native.raw(), enumerator),
        Ok(Answer::Copies(copies)) => deliver(copies.provider.raw(), copies.enumerator()),
        Err(error) => status_of(Err(error)),
    }
}

enum Answer<'a> {
    Shared(&'a Provider),
    Copies(Copies),
}

unsafe extern "C" fn destroy(raw: *mut sys::iree_io_parameter_provider_t) {
    // SAFETY: the box that `Provider::answering` made; IREE destroys it once.
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
    // SAFETY: all arguments are those of this call, passed on; `lending` outlives it.
    unsafe {
        // And it hands out the memory from the first byte on, whatever part is asked for.
        let from_start = |span: sys::iree_io_parameter_span_t| span.parameter_offset == 0;
        let shared = immutable
            && spans(count, enumerator).all(|asked| asked.is_ok_and(|(_, it)| from_start(it)));
        let lending = match source(raw) {
            Source::Index { index, .. } if shared => Some(Lending { index, enumerator, emitter }),
            _ => None,
        };
        answer(raw, scope, count, enumerator, shared, |inner, enumerator| {
            let emitter = lending.as_ref().map_or(emitter, Lending::emitter);
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
    raw: *mut sys::iree_io_parameter_provider_t,
    device: *mut sys::iree_hal_device_t,
    _affinity: sys::iree_hal_queue_affinity_t,
    wait: sys::iree_hal_semaphore_list_t,
    signal: sys::iree_hal_semaphore_list_t,
    buffer: *mut sys::iree_hal_buffer_t,
    scope: sys::iree_string_view_t,
    count: usize,
    enumerator: sys::iree_io_parameter_enumerator_t,
) -> sys::iree_status_t {
    // SAFETY: all arguments are those of this call; IREE takes the status of a failure over.
    unsafe {
        let written = callback::catch(|| {
            reached(wait)?;
            let scope = name(scope)?;
            for span in spans(count, enumerator) {
                let (name, span) = span?;
                let data = bytes(device, buffer, span)?;
                source(raw).write(scope, name, span.parameter_offset, &data)?;
            }
            check(sys::iree_hal_semaphore_list_signal(signal, ptr::null()))
        });
        if let Err(error) = &written {
            sys::iree_hal_semaphore_list_fail(signal, into_status(error));
        }
        status_of(written)
    }
}

/// Waits until all of `list` are reached.
///
/// # Safety
/// They are live.
unsafe fn reached(list: sys::iree_hal_semaphore_list_t) -> Result<()> {
    // SAFETY: by the contract of this function.
    let waited =
        check(unsafe { sys::iree_hal_semaphore_list_wait(list, sys::iree_infinite_timeout(), 0) });
    // A wait tells the code of a failure only; a semaphore tells what it failed with.
    waited.map_err(|error| {
        let failure = |at| {
            // SAFETY: as above; the list has `count` semaphores.
            unsafe {
                let semaphore = *list.semaphores.add(at);
                check(sys::iree_hal_semaphore_query(semaphore, &mut 0)).err()
            }
        };
        (0..list.count).find_map(failure).unwrap_or(error)
    })
}

/// The bytes of `buffer` that `span` says, copied from the device.
///
/// # Safety
/// Device and buffer are live.
unsafe fn bytes(
    device: *mut sys::iree_hal_device_t,
    buffer: *mut sys::iree_hal_buffer_t,
    span: sys::iree_io_parameter_span_t,
) -> Result<Vec<u8>> {
    let (offset, length) = (span.buffer_offset, span.length);
    // SAFETY: by the contract of this function.
    let whole = unsafe { sys::iree_hal_buffer_byte_length(buffer) };
    if offset.checked_add(length).is_none_or(|end| end > whole) {
        let what = format!("{length} bytes at byte {offset} of a buffer of {whole} to be written");
        return Err(Error::new(Code::OutOfRange, what));
    }
    let mut bytes = vec![0; length];
    if length > 0 {
        // SAFETY: by the contract of this function; both ranges were checked.
        check(unsafe {
            sys::iree_hal_device_transfer_d2h(
                device,
                buffer,
                offset,
                bytes.as_mut_ptr().cast(),
                length,
                0,
                sys::iree_infinite_timeout(),
            )
        })?;
    }
    Ok(bytes)
}
