//! Arguments and results on the host: from what a flag says, to a device and back, as text.

use std::io::Write;

use anyhow::{Context, Result, anyhow, bail, ensure};
use iree_rt::{Buffer, Device, ElementType, Literal, Value, ValueType};

use super::files::{Files, Sink};

/// An argument or result on the host.
#[derive(Debug, Clone, PartialEq)]
pub enum HostValue {
    /// A tensor.
    Tensor(Literal),
    /// A scalar: a tensor without dimensions that is passed as itself.
    Scalar(Literal),
    /// Bytes without a shape: storage that a result is written to, say.
    Buffer(Literal),
    /// A null reference.
    Null,
    /// Of an expected result: any value will do.
    Ignored,
    /// A result of a kind that has no text.
    Opaque,
}

/// The values that `specs` give, in IREE's syntax; `types` are those of the arguments or results
/// that they are for, which `flag` is about.
///
/// # Errors
///
/// A text or file is damaged or of another type, or there are too many or too few; the message
/// names the flag with its text.
pub fn parse(flag: &str, specs: &[String], types: &[ValueType]) -> Result<Vec<HostValue>> {
    let mut files = Files::default();
    let mut values = Vec::new();
    for spec in specs {
        parse_one(spec.trim(), types, &mut files, &mut values)
            .with_context(|| format!("{flag} {spec}"))?;
    }
    let list: Vec<_> = types.iter().map(ToString::to_string).collect();
    ensure!(
        values.len() == types.len(),
        "{} value(s) given by {flag}, and the function has {}: {}",
        values.len(),
        types.len(),
        if list.is_empty() { "none".to_owned() } else { list.join(", ") }
    );
    Ok(values)
}

fn parse_one(
    spec: &str,
    types: &[ValueType],
    files: &mut Files,
    values: &mut Vec<HostValue>,
) -> Result<()> {
    let ty = types.get(values.len());
    match spec.chars().next() {
        None => bail!("no value: give a tensor (2x2xf32=1 2 3 4), a scalar (3) or @FILE.npy"),
        Some(mode @ ('@' | '+' | '*')) => {
            let path = &spec[1..];
            ensure!(
                path.ends_with(".npy"),
                "only .npy files tell shape and type: write 2x2xf32={mode}{path} for raw bytes"
            );
            let file = files.open(path, mode == '@')?;
            // The rest of the file, or one array.
            while mode != '*' || !Files::at_end(file)? {
                let declared = match types.get(values.len()) {
                    Some(ValueType::Tensor { element_type, .. }) => Some(*element_type),
                    _ => None,
                };
                let literal = Literal::read_npy(file, declared).with_context(|| path.to_owned())?;
                values.push(match types.get(values.len()) {
                    Some(ValueType::Scalar(scalar)) => {
                        let one = literal.shape().is_empty();
                        ensure!(
                            one && literal.element_type() == ElementType::from(*scalar),
                            "{path} holds {}, and {scalar} is needed",
                            spell(&literal)
                        );
                        HostValue::Scalar(literal)
                    }
                    _ => HostValue::Tensor(literal),
                });
                if mode != '*' {
                    break;
                }
            }
            return Ok(());
        }
        _ => {}
    }
    let value = match (spec, ty) {
        ("(ignored)", _) => HostValue::Ignored,
        ("(null)", Some(ValueType::Scalar(scalar))) => {
            HostValue::Scalar(ElementType::from(*scalar).to_string().parse()?)
        }
        ("(null)", _) => HostValue::Null,
        (text, Some(ValueType::Scalar(scalar))) => {
            let name = ElementType::from(*scalar).to_string();
            let number = text.strip_prefix(&format!("{name}=")).unwrap_or(text);
            let literal = format!("{name}={number}").parse();
            let literal: Literal =
                literal.map_err(|_| anyhow!("`{number}` is no {name}: give one number"))?;
            ensure!(!number.trim().is_empty(), "no number: give one {name}");
            HostValue::Scalar(literal)
        }
        (text, _) => match text.strip_prefix('&') {
            Some(text) => HostValue::Buffer(tensor(text, files)?),
            None => HostValue::Tensor(tensor(text, files)?),
        },
    };
    values.push(value);
    Ok(())
}

/// `2x2xf32=1 2 3 4` or `2x2xf32=@FILE`.
fn tensor(text: &str, files: &mut Files) -> Result<Literal> {
    let Some((ty, path)) =
        text.split_once('=').and_then(|(ty, rest)| Some((ty, rest.strip_prefix(['@', '+'])?)))
    else {
        return Ok(text.parse()?);
    };
    let (shape, element_type) = Literal::parse_type(ty)?;
    let file = files.open(path, text.contains("=@"))?;
    let elements = shape.iter().product::<usize>();
    let bytes = (elements * element_type.bits()).div_ceil(8);
    let bytes = Files::read(file, bytes).with_context(|| format!("{path}, read as {ty}"))?;
    Ok(Literal::new(shape, element_type, bytes)?)
}

/// Shape and type: `2x3xf32`.
pub fn spell(literal: &Literal) -> String {
    let dims = literal.shape().iter().map(|dim| format!("{dim}x")).collect::<String>();
    format!("{dims}{}", literal.element_type())
}

impl HostValue {
    /// As an argument, tensors in new memory of `device`.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn to_device(&self, device: &Device) -> Result<Value> {
        Ok(match self {
            Self::Tensor(literal) => literal.to_device(device)?.into(),
            Self::Buffer(literal) => {
                let mut buffer = Buffer::allocate(device, literal.bytes().len())?;
                buffer.write(0, literal.bytes())?;
                buffer.into()
            }
            Self::Scalar(literal) => {
                let bytes = literal.bytes();
                match literal.element_type() {
                    ElementType::I32 => i32::from_ne_bytes(bytes.try_into()?).into(),
                    ElementType::I64 => i64::from_ne_bytes(bytes.try_into()?).into(),
                    ElementType::F32 => f32::from_ne_bytes(bytes.try_into()?).into(),
                    ElementType::F64 => f64::from_ne_bytes(bytes.try_into()?).into(),
                    other => bail!("a scalar of {other} cannot be passed"),
                }
            }
            Self::Null | Self::Ignored | Self::Opaque => Value::Null,
        })
    }

    /// A result, copied from its device.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn read(value: &Value) -> Result<Self> {
        let scalar = |element_type, bytes: &[u8]| -> Result<Self> {
            Ok(Self::Scalar(Literal::new(Vec::new(), element_type, bytes.to_vec())?))
        };
        match value {
            Value::BufferView(view) => Ok(Self::Tensor(Literal::read(view)?)),
            Value::Buffer(buffer) => {
                let mut bytes = vec![0; buffer.byte_len()];
                buffer.read_into(0, &mut bytes)?;
                Ok(Self::Buffer(Literal::new(vec![bytes.len()], ElementType::I8, bytes)?))
            }
            Value::I32(value) => scalar(ElementType::I32, &value.to_ne_bytes()),
            Value::I64(value) => scalar(ElementType::I64, &value.to_ne_bytes()),
            Value::F32(value) => scalar(ElementType::F32, &value.to_ne_bytes()),
            Value::F64(value) => scalar(ElementType::F64, &value.to_ne_bytes()),
            Value::Null => Ok(Self::Null),
            _ => Ok(Self::Opaque),
        }
    }

    /// As `iree-run-module` prints it, with at most `max` elements.
    ///
    /// # Errors
    ///
    /// The elements have no text.
    pub fn text(&self, max: usize) -> Result<String> {
        Ok(match self {
            Self::Tensor(literal) => format!("hal.buffer_view\n{}", literal.format(max)?),
            // Numbers in C's %g, of which %G is the capital form.
            Self::Scalar(literal) => literal.format(max)?.to_lowercase(),
            Self::Buffer(_) => "hal.buffer\n(no printer)".to_owned(),
            Self::Null => "(null)".to_owned(),
            Self::Ignored => "(ignored)".to_owned(),
            Self::Opaque => "(no printer)".to_owned(),
        })
    }

    /// Gives it to `sink`; what is to be printed is returned.
    ///
    /// # Errors
    ///
    /// Those of the file, or there is nothing to write to one.
    pub fn write(&self, sink: Sink, max: usize) -> Result<String> {
        let (path, file) = match sink {
            Sink::Print => return Ok(self.text(max)? + "\n"),
            Sink::Ignore => return Ok(String::new()),
            Sink::File { path, file } => (path, file),
        };
        let (Self::Tensor(literal) | Self::Scalar(literal) | Self::Buffer(literal)) = self else {
            bail!("{path}: the result has no bytes to write");
        };
        let mut array = Vec::new();
        let bytes = if path.ends_with(".npy") {
            literal.write_npy(&mut array).with_context(|| path.clone())?;
            &array[..]
        } else {
            literal.bytes()
        };
        file.begin()?.write_all(bytes).context(path)?;
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests {
    use iree_rt::ScalarType;

    use super::*;

    fn tensor_type(text: &str) -> ValueType {
        let (shape, element_type) = Literal::parse_type(text).unwrap();
        ValueType::Tensor { shape: shape.into_iter().map(Some).collect(), element_type }
    }

    fn all(specs: &[&str], types: &[ValueType]) -> Result<Vec<HostValue>> {
        let specs: Vec<_> = specs.iter().map(|spec| (*spec).to_owned()).collect();
        parse("--input", &specs, types)
    }

    #[test]
    fn values_follow_the_types() {
        let types = [
            ValueType::Scalar(ScalarType::I32),
            tensor_type("2xf32"),
            ValueType::Scalar(ScalarType::F64),
            ValueType::Reference(Some("!hal.buffer".into())),
        ];
        let values = all(&["-3", " 2xf32=1,2 ", "1e3", "&4xi8"], &types).unwrap();
        assert_eq!(values[0].text(9).unwrap(), "i32=-3");
        assert_eq!(values[1].text(9).unwrap(), "hal.buffer_view\n2xf32=1 2");
        assert_eq!(values[2].text(9).unwrap(), "f64=1000");
        assert!(matches!(&values[3], HostValue::Buffer(literal) if literal.bytes() == [0; 4]));
        // What was printed can be given again.
        let again = all(&["i32=-3", "2xf32=1 2", "f64=1000", "(null)"], &types).unwrap();
        assert_eq!(again[..3], values[..3]);
        assert_eq!(again[3], HostValue::Null);
    }

    #[test]
    fn errors_name_the_flag_and_what_to_do() {
        let types = [ValueType::Scalar(ScalarType::I32), tensor_type("2xf32")];
        let error = |specs: &[&str]| format!("{:#}", all(specs, &types).unwrap_err());
        assert!(error(&["1.5", "2xf32"]).contains("--input 1.5: `1.5` is no i32"));
        assert!(error(&["i32=", "2xf32"]).contains("no number"));
        assert!(error(&["1", "2xf32=1,x"]).contains("element 1, `x`"));
        assert!(error(&["1", "@x.bin"]).contains("write 2x2xf32=@x.bin"));
        assert!(error(&["1", ""]).contains("no value"));
        assert!(error(&["1", "@/no/such.npy"]).contains("/no/such.npy"));
        assert!(
            error(&["1"]).contains(
                "1 value(s) given by --input, and the function has 2: i32, tensor<2xf32>"
            )
        );
        assert!(error(&["1", "2xf32", "3xf32"]).contains("3 value(s)"));
    }
}
