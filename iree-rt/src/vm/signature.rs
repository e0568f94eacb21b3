//! Types of arguments and results, as far as a module tells.

use std::fmt;

use crate::base::error::{Code, Error, Result};
use crate::hal::memory::element::ElementType;

/// The type of an argument or result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueType {
    /// A tensor; a dimension that is known only at run time is `None`.
    Tensor {
        /// Elements along each dimension, outermost first.
        shape: Vec<Option<usize>>,
        /// The type of its elements.
        element_type: ElementType,
    },
    /// A buffer view of any shape and type.
    BufferView,
    /// A scalar.
    Scalar(ScalarType),
    /// A list of values of one type, or of any.
    List(Option<Box<ValueType>>),
    /// Bytes of the host.
    Bytes,
    /// Something else that is passed by reference, as MLIR names it. Without a name, the module does
    /// not say what: a tensor, mostly (IREE's importers of ONNX and PyTorch programs leave none).
    Reference(Option<String>),
}

/// The type of a scalar argument or result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScalarType {
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
}

/// The type of the elements of tensors that hold such scalars.
impl From<ScalarType> for ElementType {
    fn from(scalar: ScalarType) -> Self {
        match scalar {
            ScalarType::I32 => Self::I32,
            ScalarType::I64 => Self::I64,
            ScalarType::F32 => Self::F32,
            ScalarType::F64 => Self::F64,
        }
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F32 => "f32",
            Self::F64 => "f64",
        })
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor { shape, element_type } => {
                f.write_str("tensor<")?;
                for dim in shape {
                    match dim {
                        Some(dim) => write!(f, "{dim}x")?,
                        None => f.write_str("?x")?,
                    }
                }
                write!(f, "{element_type}>")
            }
            Self::BufferView => f.write_str("!hal.buffer_view"),
            Self::Scalar(scalar) => scalar.fmt(f),
            Self::List(Some(element)) => write!(f, "!util.list<{element}>"),
            Self::List(None) => f.write_str("!util.list<?>"),
            Self::Bytes => f.write_str("!util.buffer"),
            Self::Reference(name) => f.write_str(name.as_deref().unwrap_or("ref")),
        }
    }
}

/// What a function takes and returns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Signature {
    /// Types of the arguments, in order.
    pub arguments: Vec<ValueType>,
    /// Types of the results, in order.
    pub results: Vec<ValueType>,
    /// Names of the arguments that have one (`iree.abi.name`), in order.
    pub argument_names: Vec<Option<String>>,
    /// Names of the results that have one (`iree.abi.name`, too), in order.
    pub result_names: Vec<Option<String>>,
}

impl Signature {
    /// From the calling convention (`0rr_r`), made precise by the `iree.abi.declaration` of a
    /// function when it has one.
    pub(crate) fn new(calling_convention: &str, declaration: &str) -> Self {
        let (arguments, results) = calling_convention
            .strip_prefix('0')
            .unwrap_or(calling_convention)
            .split_once('_')
            .unwrap_or((calling_convention.strip_prefix('0').unwrap_or(""), ""));
        let mut signature = Self::of(by_letter(arguments), by_letter(results));
        if let Some((arguments, results)) = split_declaration(declaration) {
            if arguments.len() == signature.arguments.len() {
                signature.argument_names = chosen_names(&arguments, "input");
            }
            if results.len() == signature.results.len() {
                signature.result_names = chosen_names(&results, "output");
            }
            refine(&mut signature.arguments, &arguments);
            refine(&mut signature.results, &results);
        }
        signature
    }

    /// Of arguments without names.
    pub(crate) fn of(arguments: Vec<ValueType>, results: Vec<ValueType>) -> Self {
        let [argument_names, result_names] = [&arguments, &results].map(|it| vec![None; it.len()]);
        Self { arguments, results, argument_names, result_names }
    }
}

/// Which of `names`, those that the arguments or results of `function` have, is `name`.
pub(crate) fn index_of(
    names: &[Option<String>],
    name: &str,
    what: &str,
    function: &str,
) -> Result<usize> {
    let index = names.iter().position(|it| it.as_deref() == Some(name));
    index.ok_or_else(|| {
        let names: Vec<_> = names.iter().flatten().map(|it| format!("`{it}`")).collect();
        let named = match names.is_empty() {
            true => format!("none of its {what}s has a name"),
            false => format!("it has {}", names.join(", ")),
        };
        Error::new(Code::NotFound, format!("`{function}` has no {what} `{name}`: {named}"))
    })
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |types: &[ValueType], names: &[Option<String>]| {
            let named = |(at, ty): (usize, &ValueType)| match names.get(at) {
                Some(Some(name)) => format!("{name}: {ty}"),
                _ => ty.to_string(),
            };
            types.iter().enumerate().map(named).collect::<Vec<_>>().join(", ")
        };
        let arguments = list(&self.arguments, &self.argument_names);
        write!(f, "({arguments}) -> ({})", list(&self.results, &self.result_names))
    }
}

fn by_letter(letters: &str) -> Vec<ValueType> {
    letters
        .chars()
        // Nothing, and what is around arguments that may come any number of times.
        .filter(|letter| !matches!(letter, 'v' | 'C' | 'D'))
        .map(|letter| match letter {
            'i' => ValueType::Scalar(ScalarType::I32),
            'I' => ValueType::Scalar(ScalarType::I64),
            'f' => ValueType::Scalar(ScalarType::F32),
            'F' => ValueType::Scalar(ScalarType::F64),
            'r' => ValueType::Reference(None),
            other => ValueType::Reference(Some(format!("calling convention `{other}`"))),
        })
        .collect()
}

/// Replaces what is only known as a reference; the calling convention decides on scalars.
fn refine(types: &mut [ValueType], declared: &[Declared<'_>]) {
    if types.len() != declared.len() {
        return;
    }
    for (ty, declared) in types.iter_mut().zip(declared) {
        if matches!(ty, ValueType::Reference(_)) {
            *ty = parse_reference(declared.ty);
        }
    }
}

fn parse_reference(text: &str) -> ValueType {
    let inside = text.strip_prefix("tensor<").and_then(|rest| rest.strip_suffix('>'));
    if let Some(tensor) = inside.and_then(parse_tensor) {
        return tensor;
    }
    if let Some(element) = text.strip_prefix("!util.list<").and_then(|t| t.strip_suffix('>')) {
        return ValueType::List(parse_element(element).map(Box::new));
    }
    match text {
        "!hal.buffer_view" => ValueType::BufferView,
        "!util.buffer" => ValueType::Bytes,
        _ => ValueType::Reference(Some(text.to_owned())),
    }
}

/// The type of a list's entries; `None` when they may be anything.
fn parse_element(text: &str) -> Option<ValueType> {
    Some(match text {
        "?" => return None,
        "i1" | "i8" | "i16" | "i32" => ValueType::Scalar(ScalarType::I32),
        "i64" | "index" => ValueType::Scalar(ScalarType::I64),
        "f32" => ValueType::Scalar(ScalarType::F32),
        "f64" => ValueType::Scalar(ScalarType::F64),
        // The compiler lets tensors be entries too, and hands buffer views around.
        other => parse_reference(other),
    })
}

/// `4x?xf32`, an encoding after a comma ignored.
fn parse_tensor(text: &str) -> Option<ValueType> {
    let text = text.split(',').next()?.trim();
    let mut shape = Vec::new();
    let mut rest = text;
    while let Some((dim, tail)) = rest.split_once('x') {
        if dim == "?" {
            shape.push(None);
        } else if let Ok(dim) = dim.parse() {
            shape.push(Some(dim));
        } else {
            break;
        }
        rest = tail;
    }
    let name = match rest {
        "si2" | "ui2" => "i2",
        "si4" | "ui4" => "i4",
        "si8" | "ui8" => "i8",
        "si16" | "ui16" => "i16",
        "si32" | "ui32" => "i32",
        "si64" | "ui64" => "i64",
        other => other,
    };
    Some(ValueType::Tensor { shape, element_type: ElementType::parse(name)? })
}

/// An argument or result in a declaration.
struct Declared<'a> {
    name: Option<&'a str>,
    ty: &'a str,
}

/// The names of `all`, but for those that the compiler gives to what has none: `word` and a number.
fn chosen_names(all: &[Declared<'_>], word: &str) -> Vec<Option<String>> {
    let chosen = |(at, it): (usize, &Declared<'_>)| {
        it.name.filter(|&name| name != format!("{word}{at}")).map(str::to_owned)
    };
    all.iter().enumerate().map(chosen).collect()
}

/// The arguments and results of `sync func @f(%a: tensor<4xf32>) -> (%r: tensor<4xf32>)`.
fn split_declaration(text: &str) -> Option<(Vec<Declared<'_>>, Vec<Declared<'_>>)> {
    let open = text.find('(')?;
    let close = open + matching(&text[open..])?;
    let results = text[close + 1..].trim().strip_prefix("->")?.trim();
    let results = match results.strip_prefix('(') {
        Some(inner) => &inner[..matching(results)? - 1],
        None => results,
    };
    Some((declared(&text[open + 1..close]), declared(results)))
}

/// Where the parenthesis that opens `text` closes.
fn matching(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// What is in a list `%name: type {attributes}, ...`, split at commas outside brackets.
fn declared(list: &str) -> Vec<Declared<'_>> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0i32, 0);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'<' | b'(' | b'{' | b'[' => depth += 1,
            // The arrow `->` closes nothing.
            b'>' if at > 0 && list.as_bytes()[at - 1] == b'-' => {}
            b'>' | b')' | b'}' | b']' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| match part.strip_prefix('%').and_then(|named| named.split_once(':')) {
            Some((name, ty)) => (Some(name.trim()), ty.trim()),
            None => (None, part),
        })
        .map(|(name, ty)| Declared { name, ty: ty.split(" {").next().unwrap_or(ty).trim() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[Option<usize>], element_type: ElementType) -> ValueType {
        ValueType::Tensor { shape: shape.to_vec(), element_type }
    }

    #[test]
    fn declarations() {
        let signature = Signature::new(
            "0rir_rI",
            "sync func @f(%input0: tensor<4x?xbf16> {iree.abi.output = 0 : index}, %input1: i32, \
             %input2: tensor<i1>) -> (%output0: tensor<2xui8>, %output1: i64)",
        );
        assert_eq!(
            signature.arguments,
            [
                tensor(&[Some(4), None], ElementType::BF16),
                ValueType::Scalar(ScalarType::I32),
                tensor(&[], ElementType::BOOL),
            ]
        );
        assert_eq!(
            signature.results,
            [tensor(&[Some(2)], ElementType::I8), ValueType::Scalar(ScalarType::I64)]
        );
        assert_eq!(
            signature.to_string(),
            "(tensor<4x?xbf16>, i32, tensor<i1>) -> (tensor<2xi8>, i64)"
        );
    }

    #[test]
    fn lists_and_bytes() {
        let signature = Signature::new(
            "0rrr_r",
            "sync func @f(%input0: !util.list<?>, %input1: !util.list<!util.list<i64>>, %input2: \
             !util.buffer) -> (%output0: !util.list<!hal.buffer_view>)",
        );
        let list = |element| ValueType::List(Some(Box::new(element)));
        let of_i64 = list(ValueType::Scalar(ScalarType::I64));
        assert_eq!(signature.arguments, [ValueType::List(None), list(of_i64), ValueType::Bytes]);
        assert_eq!(signature.results, [list(ValueType::BufferView)]);
        assert_eq!(signature.arguments[1].to_string(), "!util.list<!util.list<i64>>");
    }

    #[test]
    fn arguments_have_the_names_that_were_chosen() {
        let signature = Signature::new(
            "0rir_r",
            "sync func @f(%left: tensor<?xf32> {iree.abi.name = \"left\"}, %input1: i32, %input0: \
             tensor<?xf32>) -> (%output0: tensor<?xf32>)",
        );
        let names: Vec<_> = signature.argument_names.iter().map(Option::as_deref).collect();
        assert_eq!(names, [Some("left"), None, Some("input0")]);
        assert_eq!(signature.arguments[0], tensor(&[None], ElementType::F32));
        assert_eq!(Signature::new("0rr_v", "").argument_names, [None, None]);
    }

    #[test]
    fn results_have_the_names_that_were_chosen() {
        let signature = Signature::new(
            "0r_ri",
            "sync func @f(%input0: tensor<4xf32>) -> (%sum: tensor<4xf32>, %output1: i32)",
        );
        assert_eq!(signature.result_names, [Some("sum".to_owned()), None]);
        assert_eq!(signature.to_string(), "(tensor<4xf32>) -> (sum: tensor<4xf32>, i32)");
        assert_eq!(Signature::new("0v_rr", "").result_names, [None, None]);
    }

    #[test]
    fn without_declaration_the_calling_convention_counts() {
        let signature = Signature::new("0rfF_v", "");
        assert_eq!(signature.arguments.len(), 3);
        assert_eq!(signature.arguments[1], ValueType::Scalar(ScalarType::F32));
        assert!(signature.results.is_empty());
        assert!(Signature::new("0v_v", "garbage ) -> (").arguments.is_empty());
        assert_eq!(Signature::new("0r", "").arguments, [ValueType::Reference(None)]);
    }
}
