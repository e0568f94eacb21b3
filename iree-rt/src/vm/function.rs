//! Functions: what a session can call.

use std::fmt;
use std::sync::Arc;

use iree_sys as sys;

use crate::base::text::text;
use crate::hal::devices::device::Device;
use crate::vm::signature::{Signature, ValueType};

/// A function that a module exports, as reflected by [`Module::functions`](crate::Module::functions).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionInfo {
    /// Its name within its module.
    pub name: String,
    /// What it takes and returns.
    pub signature: Signature,
    /// The declaration as the compiler saw it, or empty.
    pub declaration: String,
    /// Whether it was compiled for asynchronous calls (`--iree-execution-model=async-external`, or
    /// the form `name$async` of a PyTorch program or a native module): two fences follow its
    /// arguments, which this crate adds (see
    /// [`Session::call_async`](crate::Session::call_async)).
    pub coarse_fences: bool,
}

impl FunctionInfo {
    /// # Safety
    /// `raw` is a function of a live module.
    pub(crate) unsafe fn of(raw: &sys::iree_vm_function_t) -> Self {
        // SAFETY: by the contract of this function; the module owns the texts.
        unsafe {
            let convention = text(sys::iree_vm_function_signature(raw).calling_convention);
            let attribute = |name| {
                let key = sys::iree_make_string_view(name);
                text(sys::iree_vm_function_lookup_attr_by_name(raw, key))
            };
            let declaration = attribute("iree.abi.declaration");
            let name = text(sys::iree_vm_function_name(raw));
            // IREE's importer of PyTorch programs leaves no attribute, but a name.
            let coarse_fences =
                attribute("iree.abi.model") == "coarse-fences" || name.ends_with("$async");
            let without = coarse_fences.then(|| without_fences(&convention)).flatten();
            let coarse_fences = without.is_some();
            let convention = without.unwrap_or(convention);
            Self {
                name,
                signature: Signature::new(&convention, &declaration),
                declaration,
                coarse_fences,
            }
        }
    }
}

/// The calling convention without the two references that end the arguments, if they do.
fn without_fences(convention: &str) -> Option<String> {
    let (arguments, results) = convention.split_once('_')?;
    let arguments = arguments.strip_suffix("rr")?;
    Some(format!("{arguments}{}_{results}", if arguments == "0" { "v" } else { "" }))
}

/// A function of one session, looked up by [`Session::function`](crate::Session::function).
/// Cloning is cheap.
///
/// Any thread may hold one; calling goes through its session.
#[derive(Clone)]
pub struct Function(Arc<Inner>);

struct Inner {
    raw: sys::iree_vm_function_t,
    session: u64,
    module: String,
    info: FunctionInfo,
    /// That of the session, for what its calls take and leave.
    device: Device,
}

// SAFETY: the raw function is a module address and an ordinal, used only through the session of
// this number, which keeps the module alive.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Function {
    /// # Safety
    /// `raw` is a function of a module that the session numbered `session`, which is on `device`,
    /// keeps alive.
    pub(crate) unsafe fn new(raw: sys::iree_vm_function_t, session: u64, device: Device) -> Self {
        // SAFETY: by the contract of this function.
        let (module, info) =
            unsafe { (text(sys::iree_vm_module_name(raw.module)), FunctionInfo::of(&raw)) };
        Self(Arc::new(Inner { raw, session, module, info, device }))
    }

    /// Its full name: `module.function`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.0.module, self.0.info.name)
    }

    /// What it takes and returns.
    pub fn signature(&self) -> &Signature {
        &self.0.info.signature
    }

    /// Types of its arguments, in order.
    pub fn arguments(&self) -> &[ValueType] {
        &self.signature().arguments
    }

    /// Types of its results, in order.
    pub fn results(&self) -> &[ValueType] {
        &self.signature().results
    }

    /// Whether it was compiled for asynchronous calls: see
    /// [`Session::call_async`](crate::Session::call_async).
    pub fn coarse_fences(&self) -> bool {
        self.0.info.coarse_fences
    }

    /// The declaration as the compiler saw it, or empty.
    pub fn declaration(&self) -> &str {
        &self.0.info.declaration
    }

    /// The number of its session.
    pub(crate) fn session(&self) -> u64 {
        self.0.session
    }

    /// The device of its session, the first of several.
    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    pub(crate) fn raw(&self) -> sys::iree_vm_function_t {
        self.0.raw
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name(), self.signature())
    }
}

#[cfg(test)]
mod tests {
    use super::without_fences;

    #[test]
    fn fences_end_the_arguments() {
        assert_eq!(without_fences("0rirr_r").as_deref(), Some("0ri_r"));
        assert_eq!(without_fences("0rr_v").as_deref(), Some("0v_v"));
        assert_eq!(without_fences("0ri_r"), None);
        assert_eq!(without_fences("0v_v"), None);
        assert_eq!(without_fences(""), None);
    }
}
