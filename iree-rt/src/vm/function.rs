//! Functions: what a session can call.

use std::fmt;
use std::sync::Arc;

use iree_sys as sys;

use crate::base::error::{Code, Error, Result, printable};
use crate::base::status::check;
use crate::base::text::text;
use crate::hal::devices::device::Device;
use crate::vm::extents::{self, Extents};
use crate::vm::reflection::{Attributes, attributes};
use crate::vm::signature::{Signature, ValueType};

/// A function that a module exports, as reflected by [`Module::functions`](crate::Module::functions).
///
/// Shown as `name(left: tensor<4xf32>, i32) -> (tensor<4xf32>)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionInfo {
    /// Its name within its module.
    pub name: String,
    /// What it takes and returns.
    pub signature: Signature,
    /// What its compiler has written beside it, by name: `iree.abi.declaration`, and what the MLIR says
    /// in `iree.reflection`.
    pub attributes: Attributes,
    /// Whether it may be called asynchronously: it was compiled for that
    /// (`--iree-execution-model=async-external`), or has a second form `name$async` beside it, as
    /// functions of ONNX and PyTorch programs do (see
    /// [`Session::call_async`](crate::Session::call_async)). Two fences follow the arguments of
    /// such forms, which this crate adds.
    pub coarse_fences: bool,
    /// Letters of arguments and results, without the fences.
    pub(crate) convention: String,
    pub(crate) extents: Extents,
}

impl FunctionInfo {
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when its annotation of shapes is damaged.
    ///
    /// # Safety
    /// `raw` is a function of a live module.
    pub(crate) unsafe fn of(raw: &sys::iree_vm_function_t) -> Result<Self> {
        // SAFETY: by the contract of this function; the module owns the texts.
        let (name, convention, attributes) = unsafe {
            (
                text(sys::iree_vm_function_name(raw)),
                text(sys::iree_vm_function_signature(raw).calling_convention),
                attributes(|at, pair| sys::iree_vm_function_get_attr(*raw, at, pair)),
            )
        };
        let attribute = |name| attributes.get(name).map_or("", String::as_str);
        let (declaration, model) = (attribute(DECLARATION), attribute("iree.abi.model"));
        let shapes = attribute(extents::ATTRIBUTE);
        // IREE's importer of PyTorch programs leaves no attribute, but a name.
        let coarse_fences = model == "coarse-fences" || name.ends_with(ASYNC);
        let without = coarse_fences.then(|| without_fences(&convention)).flatten();
        let coarse_fences = without.is_some();
        let convention = without.unwrap_or(convention);
        let signature = Signature::new(&convention, declaration);
        let extents = Extents::parse(shapes).and_then(|extents| {
            extents.check_ranks(&ranks(&signature.arguments))?;
            Ok(extents)
        });
        let extents = extents.map_err(|what| {
            Error::invalid(format!(
                "the annotation `{}` (`{shapes}`) of function `{name}`: {what}",
                extents::ATTRIBUTE
            ))
        })?;
        Ok(Self { name, signature, attributes, coarse_fences, convention, extents })
    }

    /// The declaration as the compiler saw it (`iree.abi.declaration`), or empty.
    pub fn declaration(&self) -> &str {
        self.attributes.get(DECLARATION).map_or("", String::as_str)
    }

    /// Whether it is the form of `plain` that takes fences.
    pub(crate) fn is_async_form_of(&self, plain: &Self) -> bool {
        self.coarse_fences
            && !plain.coarse_fences
            && self.name.strip_suffix(ASYNC) == Some(&plain.name)
            && self.convention == plain.convention
    }

    /// The function of both forms.
    fn with_async_form(mut self, form: Self) -> Self {
        self.coarse_fences = true;
        if self.extents.is_empty() {
            self.extents = form.extents;
        }
        self
    }
}

impl fmt::Display for FunctionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signature = self.signature.to_string();
        write!(f, "{}{}", printable(&self.name), printable(&signature))
    }
}

/// The attribute with the declaration as the compiler saw it.
const DECLARATION: &str = "iree.abi.declaration";

/// What ends the name of a form with fences beside a form without.
pub(crate) const ASYNC: &str = "$async";

/// Ranks of the tensors among `types`; of what is none, a rank that no tensor has.
fn ranks(types: &[ValueType]) -> Vec<Option<usize>> {
    let rank = |ty: &ValueType| match ty {
        ValueType::Tensor { shape, .. } => Some(shape.len()),
        ValueType::BufferView | ValueType::Reference(None) => None,
        _ => Some(0),
    };
    types.iter().map(rank).collect()
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
    /// The form that is called and returns, if there is one.
    plain: Option<sys::iree_vm_function_t>,
    /// The form that takes two fences behind its arguments, if there is one.
    fenced: Option<sys::iree_vm_function_t>,
    session: u64,
    module: String,
    info: FunctionInfo,
    /// That of the session, for what its calls take and leave.
    device: Device,
}

// SAFETY: the raw functions are a module address and an ordinal, used only through the session of
// this number, which keeps the module alive.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Function {
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when its annotation of shapes is damaged.
    ///
    /// # Safety
    /// `raw` is a function of a module that the session numbered `session`, which is on `device`,
    /// keeps alive.
    pub(crate) unsafe fn new(
        raw: sys::iree_vm_function_t,
        session: u64,
        device: Device,
    ) -> Result<Self> {
        // SAFETY: by the contract of this function.
        let (module, info) =
            unsafe { (text(sys::iree_vm_module_name(raw.module)), FunctionInfo::of(&raw)?) };
        let other = match info.name.strip_suffix(ASYNC) {
            Some(plain) => plain.to_owned(),
            None => format!("{}{ASYNC}", info.name),
        };
        // By either name it is the same function, so that what checks its arguments does.
        // SAFETY: as above.
        let (plain, fenced, info) = match unsafe { export(&raw, &other)? } {
            Some((fenced, form)) if form.is_async_form_of(&info) => {
                (Some(raw), Some(fenced), info.with_async_form(form))
            }
            Some((plain, form)) if info.is_async_form_of(&form) => {
                (Some(plain), Some(raw), form.with_async_form(info))
            }
            _ if info.coarse_fences => (None, Some(raw), info),
            _ => (Some(raw), None, info),
        };
        Ok(Self(Arc::new(Inner { plain, fenced, session, module, info, device })))
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

    /// Whether it may be called asynchronously ([`FunctionInfo::coarse_fences`]): see
    /// [`Session::call_async`](crate::Session::call_async).
    pub fn coarse_fences(&self) -> bool {
        self.0.info.coarse_fences
    }

    /// What its compiler has written beside it, by name ([`FunctionInfo::attributes`]).
    pub fn attributes(&self) -> &Attributes {
        &self.0.info.attributes
    }

    /// The declaration as the compiler saw it (`iree.abi.declaration`), or empty.
    pub fn declaration(&self) -> &str {
        self.0.info.declaration()
    }

    /// The number of its session.
    pub(crate) fn session(&self) -> u64 {
        self.0.session
    }

    /// The device of its session, the first of several.
    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// The form that is called and returns, if there is one.
    pub(crate) fn plain(&self) -> Option<sys::iree_vm_function_t> {
        self.0.plain
    }

    /// The form that takes two fences behind its arguments, if there is one.
    pub(crate) fn fenced(&self) -> Option<sys::iree_vm_function_t> {
        self.0.fenced
    }

    pub(crate) fn extents(&self) -> &Extents {
        &self.0.info.extents
    }

    /// What argument `index` is called in messages: by its number, and its name if it has one.
    pub(crate) fn argument(&self, index: usize) -> String {
        match self.signature().argument_names.get(index) {
            Some(Some(name)) => format!("argument {index} (`{name}`)"),
            _ => format!("argument {index}"),
        }
    }
}

/// The function `name` that the module of `beside` exports, if it does.
///
/// # Safety
/// `beside` is a function of a live module.
unsafe fn export(
    beside: &sys::iree_vm_function_t,
    name: &str,
) -> Result<Option<(sys::iree_vm_function_t, FunctionInfo)>> {
    let mut raw = sys::iree_vm_function_t::default();
    // SAFETY: the module is live; the text is only read during the call.
    let found = check(unsafe {
        sys::iree_vm_module_lookup_function_by_name(
            beside.module,
            sys::IREE_VM_FUNCTION_LINKAGE_EXPORT,
            sys::iree_make_string_view(name),
            &mut raw,
        )
    });
    match found {
        // SAFETY: as above.
        Ok(()) => Ok(Some((raw, unsafe { FunctionInfo::of(&raw)? }))),
        Err(error) if error.code() == Code::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", printable(&self.0.module), self.0.info)
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
