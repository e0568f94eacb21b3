//! IREE's own objects, with the feature `raw`.

use iree_rt::sys;

#[test]
fn objects_are_those_of_iree() {
    let mut session = crate::support::session("local-sync");
    let view = session.device().buffer_view(&[3], &[1f32, 2., 3.]).unwrap();
    // SAFETY: the objects are live while their handles are.
    unsafe {
        assert_eq!(sys::iree_hal_buffer_view_element_count(view.as_raw()), 3);
        assert_eq!(sys::iree_hal_buffer_view_buffer(view.as_raw()), view.buffer().as_raw());
        let allocator = sys::iree_hal_device_allocator(session.device().as_raw());
        assert!(!allocator.is_null());
        let (context, module) = (session.as_raw(), session.modules()[0].as_raw());
        assert_eq!(sys::iree_vm_context_module_at(context, 1), module);
    }
}
