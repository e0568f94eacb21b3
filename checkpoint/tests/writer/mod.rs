//! GGUF files for tests, right and wrong ones.
#![allow(dead_code, reason = "each test binary uses its part")]

/// A file while it is made.
pub struct Gguf {
    version: u32,
    keys: Vec<(String, (u32, Vec<u8>))>,
    tensors: Vec<Tensor>,
}

struct Tensor {
    name: String,
    dimensions: Vec<u64>,
    kind: u32,
    /// Where it claims to be, if not where it is.
    offset: Option<u64>,
    bytes: Vec<u8>,
}

pub fn text(value: &str) -> (u32, Vec<u8>) {
    (8, string(value))
}

pub fn u32_value(value: u32) -> (u32, Vec<u8>) {
    (4, value.to_le_bytes().to_vec())
}

pub fn u64_value(value: u64) -> (u32, Vec<u8>) {
    (10, value.to_le_bytes().to_vec())
}

pub fn f32_value(value: f32) -> (u32, Vec<u8>) {
    (6, value.to_le_bytes().to_vec())
}

/// An array of booleans.
pub fn booleans(values: &[u8]) -> (u32, Vec<u8>) {
    (9, [&7_u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), values].concat())
}

/// An array of strings.
pub fn texts(values: &[&str]) -> (u32, Vec<u8>) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| string(value)).collect();
    (9, [&8_u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &bytes].concat())
}

/// An array of integers.
pub fn integers(values: &[i32]) -> (u32, Vec<u8>) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    (9, [&5_u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &bytes].concat())
}

/// An array of numbers in single precision.
pub fn floats(values: &[f32]) -> (u32, Vec<u8>) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    (9, [&6_u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &bytes].concat())
}

/// An array of one value.
pub fn array((kind, bytes): (u32, Vec<u8>)) -> (u32, Vec<u8>) {
    (9, [kind.to_le_bytes().to_vec(), 1_u64.to_le_bytes().to_vec(), bytes].concat())
}

fn string(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}

impl Gguf {
    pub fn new(version: u32) -> Self {
        Self { version, keys: Vec::new(), tensors: Vec::new() }
    }

    /// Adds a key, with its type's number and its bytes.
    pub fn key(&mut self, key: &str, value: (u32, Vec<u8>)) {
        self.keys.push((key.into(), value));
    }

    pub fn set(&mut self, key: &str, value: (u32, Vec<u8>)) {
        self.remove(key);
        self.key(key, value);
    }

    pub fn remove(&mut self, key: &str) {
        self.keys.retain(|(it, _)| it != key);
    }

    pub fn drop_tensor(&mut self, name: &str) {
        self.tensors.retain(|it| it.name != name);
    }

    pub fn f32(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let dimensions = shape.iter().rev().map(|size| *size as u64).collect();
        self.tensors.push(Tensor { name: name.into(), dimensions, kind: 0, offset: None, bytes });
    }

    /// A tensor that is described so, whatever its bytes are.
    pub fn described(
        &mut self,
        name: &str,
        dimensions: &[u64],
        kind: u32,
        offset: u64,
        bytes: &[u8],
    ) {
        self.tensors.push(Tensor {
            name: name.into(),
            dimensions: dimensions.into(),
            kind,
            offset: Some(offset),
            bytes: bytes.into(),
        });
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, (kind, bytes)) in &self.keys {
            out.extend(string(key));
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
        let mut at = 0;
        for Tensor { name, dimensions, kind, offset, bytes } in &self.tensors {
            out.extend(string(name));
            out.extend((dimensions.len() as u32).to_le_bytes());
            out.extend(dimensions.iter().flat_map(|size| size.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.unwrap_or(at as u64).to_le_bytes());
            at = (at + bytes.len()).next_multiple_of(32);
        }
        for Tensor { bytes, .. } in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(bytes);
        }
        out
    }
}
