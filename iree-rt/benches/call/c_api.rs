//! The call as a C program would make it: `iree/runtime`, nothing of `iree-rt`.

use std::mem;
use std::ptr;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

/// Fails as a C program's `IREE_CHECK_OK` does.
fn ok(status: sys::iree_status_t) {
    assert!(sys::iree_status_is_ok(status), "status {}", sys::iree_status_code(status));
}

/// `gate.add` in a session on `local-sync`, with both arguments on the device. It lives as long as
/// the process.
pub struct Add {
    session: *mut sys::iree_runtime_session_t,
    function: sys::iree_vm_function_t,
    arguments: [*mut sys::iree_hal_buffer_view_t; 2],
    prepared: sys::iree_runtime_call_t,
}

impl Add {
    pub fn new(vmfb: &[u8]) -> Self {
        // Modules want 64-byte alignment, for as long as the process.
        let padded = Vec::leak(vec![0u8; vmfb.len() + 64]);
        let start = padded.as_ptr().align_offset(64);
        let aligned = &mut padded[start..start + vmfb.len()];
        aligned.copy_from_slice(vmfb);
        // SAFETY: each object is made of those made before it, which stay; nothing else uses IREE
        // in this process yet.
        unsafe {
            let mut options = mem::zeroed();
            sys::iree_runtime_instance_options_initialize(&mut options);
            sys::iree_runtime_instance_options_use_all_available_drivers(&mut options);
            let mut instance = ptr::null_mut();
            ok(sys::iree_runtime_instance_create(&options, host_allocator(), &mut instance));
            let mut device = ptr::null_mut();
            ok(sys::iree_runtime_instance_try_create_default_device(
                instance,
                sys::iree_make_string_view("local-sync"),
                &mut device,
            ));
            let mut options = mem::zeroed();
            sys::iree_runtime_session_options_initialize(&mut options);
            let mut session = ptr::null_mut();
            ok(sys::iree_runtime_session_create_with_device(
                instance,
                &options,
                device,
                host_allocator(),
                &mut session,
            ));
            ok(sys::iree_runtime_session_append_bytecode_module_from_memory(
                session,
                sys::iree_make_const_byte_span(aligned),
                sys::iree_allocator_null(),
            ));
            let mut function = mem::zeroed();
            let name = sys::iree_make_string_view("gate.add");
            ok(sys::iree_runtime_session_lookup_function(session, name, &mut function));
            let arguments =
                [view(session, &[1., 2., 3., 4.]), view(session, &[10., 20., 30., 40.])];
            let mut prepared = mem::zeroed();
            ok(sys::iree_runtime_call_initialize(session, function, &mut prepared));
            for argument in arguments {
                let pushed =
                    sys::iree_runtime_call_inputs_push_back_buffer_view(&mut prepared, argument);
                ok(pushed);
            }
            Self { session, function, arguments, prepared }
        }
    }

    /// With arguments set once; the result stays in the list until the next call.
    pub fn invoke(&mut self) {
        // SAFETY: session, call and lists are live and used by this thread alone.
        unsafe {
            let outputs = sys::iree_runtime_call_outputs(&self.prepared);
            ok(sys::iree_vm_list_resize(outputs, 0));
            ok(sys::iree_runtime_call_invoke(&mut self.prepared, 0));
        }
    }

    /// With lists of its own; the result is taken out and released.
    pub fn call(&mut self) {
        // SAFETY: as above; what the call makes is released.
        unsafe {
            let mut call = mem::zeroed();
            ok(sys::iree_runtime_call_initialize(self.session, self.function, &mut call));
            for argument in self.arguments {
                ok(sys::iree_runtime_call_inputs_push_back_buffer_view(&mut call, argument));
            }
            ok(sys::iree_runtime_call_invoke(&mut call, 0));
            let mut sum = ptr::null_mut();
            ok(sys::iree_runtime_call_outputs_pop_front_buffer_view(&mut call, &mut sum));
            sys::iree_hal_buffer_view_release(sum);
            sys::iree_runtime_call_deinitialize(&mut call);
        }
    }

    /// With a new first argument; the result is copied to `out`.
    pub fn serve(&mut self, input: &[f32; 4], out: &mut [f32; 4]) {
        // SAFETY: as above; the list holds the argument, and the transfer fills `out`.
        unsafe {
            let argument = view(self.session, input);
            let inputs = sys::iree_runtime_call_inputs(&self.prepared);
            ok(sys::iree_vm_list_set_buffer_view_retain(inputs, 0, argument));
            sys::iree_hal_buffer_view_release(argument);
            self.invoke();
            let outputs = sys::iree_runtime_call_outputs(&self.prepared);
            let sum = sys::iree_vm_list_get_buffer_view_assign(outputs, 0);
            ok(sys::iree_hal_device_transfer_d2h(
                sys::iree_runtime_session_device(self.session),
                sys::iree_hal_buffer_view_buffer(sum),
                0,
                out.as_mut_ptr().cast(),
                size_of_val(out),
                0,
                sys::iree_infinite_timeout(),
            ));
        }
    }
}

/// # Safety
/// `session` is live.
unsafe fn view(
    session: *mut sys::iree_runtime_session_t,
    data: &[f32; 4],
) -> *mut sys::iree_hal_buffer_view_t {
    let params = sys::iree_hal_buffer_params_t {
        usage: (sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_MAPPING) as _,
        type_: (sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL | sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE)
            as _,
        ..Default::default()
    };
    let mut view = ptr::null_mut();
    // SAFETY: the session is live; IREE copies the data.
    unsafe {
        ok(sys::iree_hal_buffer_view_allocate_buffer_copy(
            sys::iree_runtime_session_device(session),
            sys::iree_runtime_session_device_allocator(session),
            1,
            &4,
            sys::IREE_HAL_ELEMENT_TYPE_FLOAT_32,
            sys::IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR as _,
            params,
            sys::iree_const_byte_span_t {
                data: data.as_ptr().cast(),
                data_length: size_of_val(data),
            },
            &mut view,
        ));
    }
    view
}
