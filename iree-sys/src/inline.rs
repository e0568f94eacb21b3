//! The `static inline` functions and function-like macros of IREE's headers that we need, in
//! Rust: C linkers never see them. Each follows the header named in its section.

#![allow(non_snake_case)]

use std::ffi::c_void;
use std::ptr;

use crate::*;

// iree/base/status.h

/// The code in the low bits of a status; the status keeps its ownership.
pub fn iree_status_code(status: iree_status_t) -> iree_status_code_t {
    (status as usize & IREE_STATUS_CODE_MASK as usize) as iree_status_code_t
}

/// A status with nothing but a code: it owns nothing and need not be freed.
pub fn iree_status_from_code(code: iree_status_code_t) -> iree_status_t {
    (code as usize & IREE_STATUS_CODE_MASK as usize) as iree_status_t
}

/// Whether `status` is OK, the all-zero value.
pub fn iree_status_is_ok(status: iree_status_t) -> bool {
    status.is_null()
}

// iree/base/string_view.h

/// A view of `text`, valid while `text` is.
pub fn iree_make_string_view(text: &str) -> iree_string_view_t {
    iree_string_view_t { data: text.as_ptr().cast(), size: text.len() }
}

/// The empty string.
pub fn iree_string_view_empty() -> iree_string_view_t {
    iree_string_view_t { data: ptr::null(), size: 0 }
}

// iree/base/allocator.h

/// A view of `bytes`, valid while `bytes` is.
pub fn iree_make_const_byte_span(bytes: &[u8]) -> iree_const_byte_span_t {
    iree_const_byte_span_t { data: bytes.as_ptr(), data_length: bytes.len() }
}

/// The allocator that does nothing: given as an owner, nothing is freed.
pub fn iree_allocator_null() -> iree_allocator_t {
    iree_allocator_t { self_: ptr::null_mut(), ctl: None }
}

// iree/base/time.h

/// Never times out.
pub fn iree_infinite_timeout() -> iree_timeout_t {
    iree_timeout_t {
        type_: IREE_TIMEOUT_ABSOLUTE,
        nanos: i64::MAX, // IREE_TIME_INFINITE_FUTURE
    }
}

/// Times out `nanos` nanoseconds from the moment the callee looks at the clock.
pub fn iree_make_timeout_ns(nanos: i64) -> iree_timeout_t {
    iree_timeout_t { type_: IREE_TIMEOUT_RELATIVE, nanos }
}

// iree/vm/type_def.h

/// The type of lists that hold anything.
pub fn iree_vm_make_undefined_type_def() -> iree_vm_type_def_t {
    iree_vm_type_def_t::default()
}

// iree/vm/value.h

/// An i32 VM value.
pub fn iree_vm_value_make_i32(value: i32) -> iree_vm_value_t {
    iree_vm_value_t {
        type_: IREE_VM_VALUE_TYPE_I32,
        __bindgen_anon_1: iree_vm_value_t__bindgen_ty_1 { i32_: value },
    }
}

/// An i64 VM value.
pub fn iree_vm_value_make_i64(value: i64) -> iree_vm_value_t {
    iree_vm_value_t {
        type_: IREE_VM_VALUE_TYPE_I64,
        __bindgen_anon_1: iree_vm_value_t__bindgen_ty_1 { i64_: value },
    }
}

/// An f32 VM value.
pub fn iree_vm_value_make_f32(value: f32) -> iree_vm_value_t {
    iree_vm_value_t {
        type_: IREE_VM_VALUE_TYPE_F32,
        __bindgen_anon_1: iree_vm_value_t__bindgen_ty_1 { f32_: value },
    }
}

/// An f64 VM value.
pub fn iree_vm_value_make_f64(value: f64) -> iree_vm_value_t {
    iree_vm_value_t {
        type_: IREE_VM_VALUE_TYPE_F64,
        __bindgen_anon_1: iree_vm_value_t__bindgen_ty_1 { f64_: value },
    }
}

// iree/vm/ref.h

/// The null reference.
pub fn iree_vm_ref_null() -> iree_vm_ref_t {
    iree_vm_ref_t { ptr: ptr::null_mut::<c_void>(), type_: 0 }
}

// iree/hal/buffer.h

/// No release callback.
pub fn iree_hal_buffer_release_callback_null() -> iree_hal_buffer_release_callback_t {
    iree_hal_buffer_release_callback_t { fn_: None, user_data: ptr::null_mut() }
}

// iree/hal/buffer_view.h

/// Bits per element of a HAL element type.
pub fn iree_hal_element_bit_count(element_type: iree_hal_element_type_t) -> usize {
    (element_type & 0xFF) as usize
}

/// Bytes per element of a HAL element type, rounded up to whole bytes.
pub fn iree_hal_element_dense_byte_count(element_type: iree_hal_element_type_t) -> usize {
    iree_hal_element_bit_count(element_type).div_ceil(8)
}

// iree/async/frontier_tracker.h

/// Options for a tracker of one process.
pub fn iree_async_frontier_tracker_options_default() -> iree_async_frontier_tracker_options_t {
    iree_async_frontier_tracker_options_t {
        axis_table_capacity: 256,
        session_epoch: 1,
        machine_index: 0,
    }
}
