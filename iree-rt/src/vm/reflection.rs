//! Reflection: what a module says of itself beside the functions that it exports.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::fmt;

use iree_sys as sys;

use crate::base::error::{Result, printable};
use crate::base::status::check;
use crate::base::text::text;
use crate::vm::module::Module;
use crate::vm::signature::Signature;

/// What a compiler or importer has written beside a module or a function, by name: what Python's
/// `iree.runtime` calls `reflection`.
pub type Attributes = BTreeMap<String, String>;

/// A function that a module imports, of another module of its session.
///
/// Shown as `module.name(i32, tensor) -> (i32)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportInfo {
    /// Its full name: `module.function`.
    pub name: String,
    /// What it takes and returns, as far as the letters of IREE's calling convention tell: a
    /// reference may be to anything, and arguments that may come any number of times stand once.
    pub signature: Signature,
    /// Whether the module loads without it.
    pub is_optional: bool,
}

impl fmt::Display for ImportInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signature = self.signature.to_string();
        write!(f, "{}{}", printable(&self.name), printable(&signature))
    }
}

/// A module that another one needs beside it in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DependencyInfo {
    /// Its name: `hal` is IREE's own, for devices, and `io_parameters` what answers for parameters.
    pub name: String,
    /// The lowest version of it that does.
    pub minimum_version: u32,
    /// Whether the module loads without it.
    pub is_optional: bool,
}

/// The name of the module that answers for parameters.
const PARAMETERS: &str = "io_parameters";

impl Module {
    /// What its compiler has written beside it, by name.
    pub fn attributes(&self) -> Attributes {
        // SAFETY: the module is live, and owns the texts.
        unsafe { attributes(|at, pair| sys::iree_vm_module_get_attr(self.raw(), at, pair)) }
    }

    /// The functions that it imports, in the order of the file: IREE's own of the modules `hal` and
    /// `io_parameters` among them, and those that a [`NativeModule`](crate::NativeModule) or another
    /// program has to have, without which no session takes it.
    ///
    /// ```
    /// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{CompileOptions, Compiler, Module};
    /// let vmfb = Compiler::find()?.compile(
    ///     "module @program {
    ///        func.func private @host.add(i32, i32) -> i32
    ///        func.func @run(%a: i32) -> i32 {
    ///          %0 = call @host.add(%a, %a) : (i32, i32) -> i32
    ///          return %0 : i32 } }",
    ///     &CompileOptions::default(),
    /// )?;
    /// // SAFETY: compiled just now for the CPU of this machine.
    /// let module = unsafe { Module::from_bytes(&vmfb)? };
    /// let imports = module.imports()?;
    /// let add = imports.iter().find(|it| it.name.starts_with("host.")).unwrap();
    /// assert_eq!(add.to_string(), "host.add(i32, i32) -> (i32)");
    /// assert!(!add.is_optional);
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// When IREE cannot read its own table.
    pub fn imports(&self) -> Result<Vec<ImportInfo>> {
        // SAFETY: the module is live.
        let count = unsafe { sys::iree_vm_module_signature(self.raw()) }.import_function_count;
        let import = |ordinal| {
            let mut raw = sys::iree_vm_function_t::default();
            // SAFETY: the module is live, the ordinal inside, and the texts are the module's.
            unsafe {
                check(sys::iree_vm_module_lookup_function_by_ordinal(
                    self.raw(),
                    sys::IREE_VM_FUNCTION_LINKAGE_IMPORT,
                    ordinal,
                    &mut raw,
                ))?;
                let convention = text(sys::iree_vm_function_signature(&raw).calling_convention);
                let optional = sys::IREE_VM_FUNCTION_LINKAGE_IMPORT_OPTIONAL;
                Ok(ImportInfo {
                    name: text(sys::iree_vm_function_name(&raw)),
                    signature: Signature::new(&convention, ""),
                    is_optional: u32::from(raw.linkage) == optional,
                })
            }
        };
        (0..count).map(import).collect()
    }

    /// The modules that it needs beside it, in the order of the file.
    ///
    /// # Errors
    /// When IREE cannot read its own table.
    pub fn dependencies(&self) -> Result<Vec<DependencyInfo>> {
        let mut all = Vec::<DependencyInfo>::new();
        // SAFETY: the module is live; the callback gets the list during the call only.
        check(unsafe {
            let all = (&raw mut all).cast();
            sys::iree_vm_module_enumerate_dependencies(self.raw(), Some(note_dependency), all)
        })?;
        Ok(all)
    }

    /// Whether it asks for parameters, which its sessions have to be given
    /// ([`SessionBuilder::parameters`](crate::SessionBuilder::parameters)).
    ///
    /// # Errors
    /// When IREE cannot read its own table.
    pub fn takes_parameters(&self) -> Result<bool> {
        let all = self.dependencies()?;
        Ok(all.iter().any(|it| it.name == PARAMETERS && !it.is_optional))
    }
}

/// Those that `get` has, from the first on.
///
/// # Safety
/// `get` is a query of IREE's for the attribute of a number, of something that is live and owns
/// the texts.
pub(crate) unsafe fn attributes(
    get: impl Fn(usize, *mut sys::iree_string_pair_t) -> sys::iree_status_t,
) -> Attributes {
    let mut all = Attributes::new();
    let mut pair = sys::iree_string_pair_t::default();
    while check(get(all.len(), &mut pair)).is_ok() {
        // SAFETY: by the contract of this function.
        let (name, value) =
            unsafe { (text(pair.__bindgen_anon_1.key), text(pair.__bindgen_anon_2.value)) };
        // No compiler writes a name twice: a damaged module.
        let Entry::Vacant(place) = all.entry(name) else { break };
        place.insert(value);
    }
    all
}

/// Adds a dependency to the list `all`.
unsafe extern "C" fn note_dependency(
    all: *mut c_void,
    dependency: *const sys::iree_vm_module_dependency_t,
) -> sys::iree_status_t {
    // SAFETY: IREE passes on the list, and a live dependency.
    unsafe {
        let it = &*dependency;
        (*all.cast::<Vec<DependencyInfo>>()).push(DependencyInfo {
            name: text(it.name),
            minimum_version: it.minimum_version,
            is_optional: it.flags & sys::IREE_VM_MODULE_DEPENDENCY_FLAG_OPTIONAL != 0,
        });
    }
    sys::iree_status_from_code(sys::IREE_STATUS_OK)
}
