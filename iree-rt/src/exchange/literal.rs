//! Literals: tensors on the host, and their text (`2x2xf32=[[1 2][3 4]]`), as IREE's tools write
//! them.

mod npy;
mod parse;

use std::fmt;
use std::str::FromStr;

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer::Buffer;
use crate::hal::memory::buffer_view::BufferView;
use crate::hal::memory::element::{Element, ElementType, byte_len, element_count};

/// A dense row-major tensor on the host.
///
/// It comes from text or from a device, and shows itself as text:
///
/// ```
/// use iree_rt::{ElementType, Literal};
///
/// let literal: Literal = "2x3xi32=[[1 2 3][4 5 6]]".parse()?;
/// assert_eq!((literal.shape(), literal.element_type()), (&[2, 3][..], ElementType::I32));
/// # #[cfg(feature = "link")] {
/// assert_eq!(literal.to_string(), "2x3xi32=[1 2 3][4 5 6]");
/// # }
/// let ones: Literal = "4xf32=1".parse()?; // one value fills the tensor
/// assert_eq!(ones.bytes().len(), 16);
/// # Ok::<(), iree_rt::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Literal {
    shape: Vec<usize>,
    element_type: ElementType,
    bytes: Vec<u8>,
}

impl Literal {
    /// A tensor of `shape` that holds `bytes`, its elements in row-major order and in the byte
    /// order of this machine.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when it would take another number of
    /// bytes.
    pub fn new(shape: Vec<usize>, element_type: ElementType, bytes: Vec<u8>) -> Result<Self> {
        let expected = byte_len(&shape, element_type)?;
        if bytes.len() != expected {
            return Err(Error::invalid(format!(
                "{} takes {expected} bytes, and {} are given",
                spell(&shape, element_type),
                bytes.len()
            )));
        }
        Ok(Self { shape, element_type, bytes })
    }

    /// A tensor of `shape` that holds `elements` in row-major order.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when it would take another number of them.
    pub fn from_elements<T: Element>(shape: &[usize], elements: &[T]) -> Result<Self> {
        Self::new(shape.to_vec(), T::TYPE, bytemuck::cast_slice(elements).to_vec())
    }

    /// The tensor that `view` holds now, copied from its device.
    ///
    /// # Errors
    /// Those of [`Buffer::read_into`].
    pub fn read(view: &BufferView) -> Result<Self> {
        let mut bytes = vec![0; view.byte_len()];
        view.buffer().read_into(0, &mut bytes)?;
        Ok(Self { shape: view.shape().to_vec(), element_type: view.element_type(), bytes })
    }

    /// A copy in new memory of `device`.
    ///
    /// # Errors
    /// Allocation and transfer errors of the device.
    pub fn to_device(&self, device: &Device) -> Result<BufferView> {
        let mut buffer = Buffer::allocate(device, self.bytes.len())?;
        buffer.write(0, &self.bytes)?;
        BufferView::from_buffer(&buffer, 0, &self.shape, self.element_type)
    }

    /// The shape and element type before the `=` of a literal: `2x3xi32`, or `f32` of a tensor
    /// without dimensions.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) for a dimension that is no number, a
    /// type that has no name, or more bytes than there are addresses.
    pub fn parse_type(text: &str) -> Result<(Vec<usize>, ElementType)> {
        let text = text.trim();
        // The name of a complex type has an x of its own.
        let name_at = text.find("complex<").unwrap_or(text.len());
        let at = text[..name_at].rfind('x');
        let (dims, name) = at.map_or(("", text), |at| (&text[..at], &text[at + 1..]));
        let shape = match dims {
            "" => Vec::new(),
            dims => dims.split('x').map(parse::dim).collect::<Result<_>>()?,
        };
        let element_type = ElementType::parse(name).ok_or_else(|| {
            Error::invalid(format!(
                "`{}` is no element type: give {}",
                shorten(name),
                ElementType::names().collect::<Vec<_>>().join(", ")
            ))
        })?;
        byte_len(&shape, element_type)?;
        Ok((shape, element_type))
    }

    /// Elements along each dimension, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The type of its elements.
    pub fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// Elements in all.
    pub fn len(&self) -> usize {
        element_count(&self.shape).unwrap_or(0)
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its elements in row-major order, in the byte order of this machine.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its elements in row-major order.
    ///
    /// ```
    /// use iree_rt::Literal;
    ///
    /// let literal = Literal::from_elements(&[2], &[1f32, 2.])?;
    /// assert_eq!(literal.elements::<f32>()?, [1., 2.]);
    /// assert!(literal.elements::<i32>().is_err());
    /// # Ok::<(), iree_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when they are no `T`.
    pub fn elements<T: Element>(&self) -> Result<Vec<T>> {
        if !T::reads(self.element_type) {
            return Err(Error::invalid(format!(
                "a tensor of {} cannot be used as {}",
                self.element_type,
                std::any::type_name::<T>()
            )));
        }
        let element = |bytes| bytemuck::checked::try_pod_read_unaligned(bytes);
        let elements = self.bytes.chunks_exact(size_of::<T>()).map(element);
        elements.collect::<Result<_, _>>().map_err(|error| {
            Error::invalid(format!("not every element is {}: {error}", std::any::type_name::<T>()))
        })
    }

    /// The text of element `index`, counted in row-major order, as IREE writes it: `1.5`, `-3`,
    /// and hexadecimal bytes for types that are no numbers to it.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) past the end;
    /// [`Unimplemented`](Code::Unimplemented) for elements that share bytes.
    pub fn element(&self, index: usize) -> Result<String> {
        let size = self.element_type.size();
        if !self.element_type.bits().is_multiple_of(8) {
            return Err(Error::new(
                Code::Unimplemented,
                format!("elements of {} share bytes and have no text", self.element_type),
            ));
        }
        let bytes = (index.checked_mul(size))
            .and_then(|start| self.bytes.get(start..start.checked_add(size)?))
            .ok_or_else(|| {
                Error::new(
                    Code::OutOfRange,
                    format!("no element {index} in a tensor of {}", self.len()),
                )
            })?;
        // The longest is a cf128 in hexadecimal; an f64 takes at most 24.
        let mut text = [0u8; 64];
        let mut length = 0;
        // SAFETY: IREE reads one element of this type and writes no more than the capacity.
        check(unsafe {
            sys::iree_hal_format_element(
                sys::iree_make_const_byte_span(bytes),
                self.element_type.0,
                text.len(),
                text.as_mut_ptr().cast(),
                &mut length,
            )
        })?;
        Ok(String::from_utf8_lossy(&text[..length.min(text.len())]).into_owned())
    }

    /// Its text with at most `max` elements, `...` where others follow.
    ///
    /// # Errors
    /// As [`element`](Self::element).
    pub fn format(&self, max: usize) -> Result<String> {
        let mut out = spell(&self.shape, self.element_type) + "=";
        let mut next = 0;
        self.append(&mut out, &self.shape, &mut next, max)?;
        Ok(out)
    }

    fn append(
        &self,
        out: &mut String,
        shape: &[usize],
        next: &mut usize,
        max: usize,
    ) -> Result<()> {
        match shape {
            [] => *out += &self.element(0)?,
            // Brackets around nothing would be many.
            [_, _, ..] if self.is_empty() => {}
            [outer, inner @ ..] if !inner.is_empty() => {
                for _ in 0..*outer {
                    out.push('[');
                    self.append(out, inner, next, max)?;
                    out.push(']');
                }
            }
            [count, ..] => {
                let shown = max.saturating_sub(*next).min(*count);
                for at in 0..shown {
                    if at > 0 {
                        out.push(' ');
                    }
                    *out += &self.element(*next + at)?;
                }
                if shown < *count {
                    *out += "...";
                }
                *next += shown;
            }
        }
        Ok(())
    }
}

impl FromStr for Literal {
    type Err = Error;

    /// From text in the syntax of IREE's tools: shape and type, `=`, and the elements in row-major
    /// order, apart by spaces, commas or brackets; one element fills the tensor, and none leaves
    /// it zero.
    ///
    /// Stricter than IREE's own: what is no number of this type is an error, where C reads as far
    /// as it can (`1.5` as the integer 1, `010` as 8).
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (ty, elements) = text.split_once('=').unwrap_or((text, ""));
            let (shape, element_type) = Self::parse_type(ty)?;
            let bytes = parse::elements(&shape, element_type, elements)?;
            Self::new(shape, element_type, bytes)
        };
        parse().map_err(|error| error.context(format!("the literal `{}`", shorten(text))))
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.format(usize::MAX) {
            Ok(text) => f.write_str(&text),
            Err(error) => write!(f, "{} ({error})", spell(&self.shape, self.element_type)),
        }
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Literal({})", spell(&self.shape, self.element_type))
    }
}

/// As much of `text` as a message shows.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// `2x3xf32`.
fn spell(shape: &[usize], element_type: ElementType) -> String {
    shape.iter().map(|dim| format!("{dim}x")).collect::<String>() + &element_type.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complex_types_have_either_name() {
        let parse = |text| Literal::parse_type(text).unwrap();
        assert_eq!(parse("2x3xcomplex<f32>"), (vec![2, 3], ElementType::CF64));
        assert_eq!(parse("complex<f64>"), (vec![], ElementType::CF128));
        assert_eq!(parse("2xcf64"), (vec![2], ElementType::CF64));
        assert!(Literal::parse_type("2xcomplex<f16>").is_err());
        assert!(Literal::parse_type("2complex<f32>").is_err());
    }

    #[test]
    fn bytes_must_fill_the_shape() {
        let new = |bytes| Literal::new(vec![2, 2], ElementType::F16, vec![0; bytes]);
        assert!(new(8).is_ok());
        assert!(new(7).unwrap_err().message().contains("2x2xf16 takes 8 bytes, and 7"));
    }
}
