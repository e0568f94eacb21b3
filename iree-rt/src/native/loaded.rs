//! Native modules in a session, as the VM calls them.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, TryLockError};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use super::slots::Slots;
use super::{Export, Native, RunAny};
use crate::callback;
use crate::device::Device;
use crate::error::{Code, Error, Result};
use crate::instance::Instance;
use crate::module::VmModule;
use crate::reference::RawReference;
use crate::signature::ValueType;
use crate::status::{check, status_of};

impl Native {
    /// The module for the VM, for one session on `device`.
    pub(crate) fn into_module(self, device: &Device) -> Result<VmModule> {
        let instance = Instance::get()?;
        let loaded = Box::into_raw(Loaded::new(self, device.clone()));
        let interface = sys::iree_vm_module_t {
            self_: loaded.cast(),
            destroy: Some(destroy),
            begin_call: Some(begin_call),
            ..Default::default()
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the interface is copied; the descriptor points into `loaded`, which stays where
        // it is until the module is destroyed and destroys it.
        let created = check(unsafe {
            sys::iree_vm_native_module_create(
                &interface,
                &(*loaded).descriptor,
                instance.vm.as_ptr(),
                host_allocator(),
                &mut raw,
            )
        });
        created.map(|()| VmModule::own(raw)).inspect_err(|_| {
            // SAFETY: nothing was created that would destroy it.
            drop(unsafe { Box::from_raw(loaded) });
        })
    }
}

/// What a module of the VM is made of, with the tables that IREE reads.
struct Loaded {
    descriptor: sys::iree_vm_native_module_descriptor_t,
    _descriptors: Vec<sys::iree_vm_native_export_descriptor_t>,
    _attributes: Vec<sys::iree_string_pair_t>,
    name: String,
    exports: Vec<Export>,
    device: Device,
    /// A lock only to notice a function that calls into its own session.
    run: Mutex<RunAny>,
}

impl Loaded {
    fn new(native: Native, device: Device) -> Box<Self> {
        let Native { name, exports, run } = native;
        // Views of texts on the heap, which moving their owner does not move.
        let view = |text: &str| sys::iree_make_string_view(text);
        let attributes: Vec<_> = exports
            .iter()
            .map(|export| {
                let mut pair = sys::iree_string_pair_t::default();
                pair.__bindgen_anon_1.key = view("iree.abi.declaration");
                pair.__bindgen_anon_2.value = view(&export.declaration);
                pair
            })
            .collect();
        let descriptors: Vec<_> = exports
            .iter()
            .zip(&attributes)
            .map(|(export, attribute)| sys::iree_vm_native_export_descriptor_t {
                local_name: view(&export.name),
                calling_convention: view(&export.convention),
                attr_count: 1,
                attrs: attribute,
            })
            .collect();
        let descriptor = sys::iree_vm_native_module_descriptor_t {
            name: view(&name),
            export_count: descriptors.len(),
            exports: descriptors.as_ptr(),
            ..Default::default()
        };
        Box::new(Self {
            descriptor,
            _descriptors: descriptors,
            _attributes: attributes,
            name,
            exports,
            device,
            run: Mutex::new(run),
        })
    }

    /// # Safety
    /// The spans are those of a call of function `at`: arguments live and results zeroed.
    unsafe fn call(
        &self,
        at: usize,
        arguments: sys::iree_byte_span_t,
        results: sys::iree_byte_span_t,
    ) -> Result<()> {
        let signature = &self.exports[at].signature;
        let mut from = Slots::new(arguments);
        let mut values = Vec::with_capacity(signature.arguments.len());
        for ty in &signature.arguments {
            // SAFETY: by the contract of this function, and types are those of the convention.
            values.push(unsafe { from.read(ty, &self.device)? });
        }
        let returned = {
            let mut run = match self.run.try_lock() {
                Ok(run) => run,
                // After a panic the state is as the function left it.
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::new(
                        Code::FailedPrecondition,
                        "called while another function of its module runs",
                    ));
                }
            };
            run(at, values)?
        };
        for (index, (value, ty)) in returned.iter().zip(&signature.results).enumerate() {
            // Of values that are typed at run time only; the VM would misread their neighbours.
            let scalar = match ty {
                ValueType::Scalar(scalar) => Some(*scalar),
                _ => None,
            };
            if value.scalar() != scalar {
                return Err(value.mismatch(ty).context(format!("result {index}")));
            }
            let foreign = value.find_device(&|device| !device.same_group(&self.device));
            if let Some(device) = foreign {
                return Err(Error::invalid(format!(
                    "result {index} is in the memory of another device (`{}`, opened separately)",
                    device.uri()
                )));
            }
        }
        // All of them before the first is handed over: IREE drops no results of a failed call.
        let references: Vec<_> = returned.iter().map(RawReference::of).collect::<Result<_>>()?;
        let mut to = Slots::new(results);
        for (value, reference) in returned.iter().zip(references) {
            // SAFETY: by the contract of this function, and the kinds of values were compared.
            unsafe { to.write(value, reference)? };
        }
        Ok(())
    }
}

unsafe extern "C" fn begin_call(
    self_: *mut c_void,
    _stack: *mut sys::iree_vm_stack_t,
    call: sys::iree_vm_function_call_t,
) -> sys::iree_status_t {
    // SAFETY: the box that `into_module` made, live as long as its module.
    let loaded = unsafe { &*self_.cast::<Loaded>() };
    let at = usize::from(call.function.ordinal);
    // SAFETY: the VM passes the spans of the function's calling convention, and IREE has checked
    // the ordinal.
    let called = callback::catch(|| unsafe { loaded.call(at, call.arguments, call.results) });
    status_of(called.map_err(|error| {
        error.context(format!("native function `{}.{}`", loaded.name, loaded.exports[at].name))
    }))
}

unsafe extern "C" fn destroy(self_: *mut c_void) {
    // SAFETY: the box that `into_module` made; a module is destroyed once.
    callback::catch_quietly(|| drop(unsafe { Box::from_raw(self_.cast::<Loaded>()) }));
}
