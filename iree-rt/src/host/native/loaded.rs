//! Native modules in a session, as the VM calls them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, TryLockError};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use super::slots::Slots;
use super::{Export, Native, RunAny};
use crate::base::callback;
use crate::base::error::{Code, Error, Result};
use crate::base::instance::Instance;
use crate::base::status::{check, status_of};
use crate::base::text::text;
use crate::hal::devices::device::Device;
use crate::vm::function::ASYNC;
use crate::vm::module::VmModule;
use crate::vm::reference::RawReference;
use crate::vm::signature::ValueType;
use crate::vm::value::Value;

impl Native {
    /// The module for the VM, for one session on `device`.
    pub(crate) fn into_module(self, device: &Device) -> Result<VmModule> {
        let instance = Instance::get()?;
        let loaded = Box::into_raw(Loaded::new(self, device.clone()));
        let interface = sys::iree_vm_module_t {
            self_: loaded.cast(),
            destroy: Some(destroy),
            lookup_function: Some(lookup_function),
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
        if let Err(error) = created {
            // SAFETY: nothing was created that would destroy it.
            drop(unsafe { Box::from_raw(loaded) });
            return Err(error);
        }
        // SAFETY: nobody else knows the module yet.
        unsafe { (*loaded).module = raw };
        Ok(VmModule::own(raw))
    }
}

/// A function as a program may import it: `name`, or compiled for asynchronous calls and with two
/// fences behind its arguments, `name$async` (as IREE calls that form of PyTorch's functions).
struct Form {
    name: String,
    convention: String,
    /// Which function it is.
    function: usize,
    fences: bool,
}

/// All forms of `functions`, sorted by name as IREE wants them. What is named so itself goes before
/// another's form.
fn forms(functions: &[Export]) -> Vec<Form> {
    let mut forms = BTreeMap::new();
    for fences in [true, false] {
        for (at, function) in functions.iter().enumerate() {
            let name = format!("{}{}", function.name, if fences { ASYNC } else { "" });
            let convention = function.convention(fences);
            forms.insert(name.clone(), Form { name, convention, function: at, fences });
        }
    }
    forms.into_values().collect()
}

/// What a module of the VM is made of, with the tables that IREE reads.
struct Loaded {
    /// The module, once there is one.
    module: *mut sys::iree_vm_module_t,
    descriptor: sys::iree_vm_native_module_descriptor_t,
    _descriptors: Vec<sys::iree_vm_native_export_descriptor_t>,
    _attributes: Vec<sys::iree_string_pair_t>,
    name: String,
    functions: Vec<Export>,
    forms: Vec<Form>,
    device: Device,
    /// A lock only to notice a function that calls into its own session.
    run: Mutex<RunAny>,
}

impl Loaded {
    fn new(native: Native, device: Device) -> Box<Self> {
        let Native { name, exports: functions, run } = native;
        let forms = forms(&functions);
        // Views of texts on the heap, which moving their owner does not move.
        let view = |text: &str| sys::iree_make_string_view(text);
        let attributes: Vec<_> = forms
            .iter()
            .map(|form| {
                let mut pair = sys::iree_string_pair_t::default();
                pair.__bindgen_anon_1.key = view("iree.abi.declaration");
                pair.__bindgen_anon_2.value = view(&functions[form.function].declaration);
                pair
            })
            .collect();
        let descriptors: Vec<_> = forms
            .iter()
            .zip(&attributes)
            .map(|(form, attribute)| sys::iree_vm_native_export_descriptor_t {
                local_name: view(&form.name),
                calling_convention: view(&form.convention),
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
            module: ptr::null_mut(),
            descriptor,
            _descriptors: descriptors,
            _attributes: attributes,
            name,
            functions,
            forms,
            device,
            run: Mutex::new(run),
        })
    }

    /// The number of the form called `name`, or of the one with fences if that is what is expected.
    fn find(&self, name: &str, expected: Option<&str>) -> Option<usize> {
        let find = |name: &str| self.forms.binary_search_by(|form| form.name.as_str().cmp(name));
        let plain = find(name).ok()?;
        let with_fences = find(&format!("{name}{ASYNC}")).ok();
        let fits = |&at: &usize| expected == Some(&self.forms[at].convention);
        Some(with_fences.filter(fits).filter(|_| !fits(&plain)).unwrap_or(plain))
    }

    /// # Safety
    /// The spans are those of a call of form `at`: arguments live and results zeroed.
    unsafe fn call(
        &self,
        at: usize,
        arguments: sys::iree_byte_span_t,
        results: sys::iree_byte_span_t,
    ) -> Result<()> {
        let form = &self.forms[at];
        let mut from = Slots::new(arguments);
        let mut values = Vec::new();
        for ty in &self.functions[form.function].signature.arguments {
            // SAFETY: by the contract of this function, and types are those of the convention.
            values.push(unsafe { from.read(ty, &self.device)? });
        }
        if !form.fences {
            // SAFETY: by the contract of this function.
            return unsafe { self.run(form.function, values, results) };
        }
        // SAFETY: as above.
        let (after, done) =
            unsafe { (from.read_fence(&self.device)?, from.read_fence(&self.device)?) };
        let outcome = after.map_or(Ok(()), |after| after.wait(None)).and_then(|()| {
            // SAFETY: as above.
            callback::catch(|| unsafe { self.run(form.function, values, results) })
        });
        if let Some(done) = done {
            done.settle(&outcome);
        }
        outcome
    }

    /// # Safety
    /// The span is that of the results of function `at`, zeroed.
    unsafe fn run(
        &self,
        at: usize,
        values: Vec<Value>,
        results: sys::iree_byte_span_t,
    ) -> Result<()> {
        let signature = &self.functions[at].signature;
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

unsafe extern "C" fn lookup_function(
    self_: *mut c_void,
    _linkage: sys::iree_vm_function_linkage_t,
    name: sys::iree_string_view_t,
    expected: *const sys::iree_vm_function_signature_t,
    function: *mut sys::iree_vm_function_t,
) -> sys::iree_status_t {
    // SAFETY: the box that `into_module` made, live as long as its module; texts are live, and
    // nothing may be expected.
    let (loaded, name, expected) = unsafe {
        let expected = expected.as_ref().map(|expected| text(expected.calling_convention));
        (&*self_.cast::<Loaded>(), text(name), expected)
    };
    let Some(at) = loaded.find(&name, expected.as_deref()) else {
        let what = format!("no function `{name}` exported by module `{}`", loaded.name);
        return status_of(Err(Error::new(Code::NotFound, what)));
    };
    // SAFETY: a valid out pointer.
    unsafe {
        *function = sys::iree_vm_function_t {
            module: loaded.module,
            linkage: sys::IREE_VM_FUNCTION_LINKAGE_EXPORT as _,
            ordinal: at as u16,
        };
    }
    status_of(Ok(()))
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
        let function = &loaded.functions[loaded.forms[at].function];
        error.context(format!("native function `{}.{}`", loaded.name, function.name))
    }))
}

unsafe extern "C" fn destroy(self_: *mut c_void) {
    // SAFETY: the box that `into_module` made; a module is destroyed once.
    callback::catch_quietly(|| drop(unsafe { Box::from_raw(self_.cast::<Loaded>()) }));
}
