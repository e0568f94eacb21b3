//! The header of a safetensors file: where each tensor lies, checked before it is believed.
//!
//! The format: eight bytes with the header's length (little-endian), the header (a JSON object of
//! tensor name to dtype, shape and offsets), then the tensors' bytes without a gap.

use std::collections::BTreeMap;

use safetensors::tensor::TensorInfo;
use serde_json::{Map, Value};

use crate::Dtype;
use crate::tensor::RowOrder;

/// Bytes before the header.
pub(crate) const LENGTH_BYTES: u64 = 8;
/// The longest header that is read; the limit of the format's own reader.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// One tensor's type, shape and place in its file.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// `None` where weights may not have it.
    pub dtype: Option<Dtype>,
    pub dtype_name: String,
    pub shape: Vec<usize>,
    /// First byte and end, from the start of the file.
    pub start: u64,
    pub end: u64,
    /// The order of its rows.
    pub rows: RowOrder,
}

impl Entry {
    /// Bytes of its own, where it shares them.
    pub fn bytes(&self) -> u64 {
        self.rows.share(self.end - self.start)
    }
}

/// The header's length that the first eight bytes state, if a file of `file_bytes` can hold it.
pub(crate) fn length(first: [u8; LENGTH_BYTES as usize], file_bytes: u64) -> Result<u64, String> {
    let length = u64::from_le_bytes(first);
    if length > MAX_HEADER_BYTES {
        return Err(format!(
            "its header claims {length} bytes, more than the {MAX_HEADER_BYTES} that the format \
             allows: this is no safetensors file, or a damaged one"
        ));
    }
    if length > file_bytes - LENGTH_BYTES {
        return Err(format!(
            "truncated: the header alone takes {length} bytes, the file has {file_bytes}; \
             download it again"
        ));
    }
    Ok(length)
}

/// The tensors that `header` describes, for a file of `file_bytes`.
pub(crate) fn parse(header: &[u8], file_bytes: u64) -> Result<BTreeMap<String, Entry>, String> {
    let map: Map<String, Value> = serde_json::from_slice(header)
        .map_err(|e| format!("its header is not valid JSON ({e}): download the file again"))?;
    let data_start = LENGTH_BYTES + header.len() as u64;
    let data_bytes = file_bytes - data_start;

    let mut order = Vec::with_capacity(map.len());
    for (name, value) in map {
        if name == "__metadata__" {
            continue;
        }
        let dtype_name = value["dtype"].as_str().unwrap_or_default().to_owned();
        let info: TensorInfo = serde_json::from_value(value)
            .map_err(|e| format!("tensor `{name}` is not described properly: {e}"))?;
        let (start, end) = info.data_offsets;
        let size = size(&info).ok_or_else(|| {
            format!("tensor `{name}`: shape {:?} is too large to be real", info.shape)
        })?;
        if end < start || (end - start) as u64 != size {
            return Err(format!(
                "tensor `{name}` is {dtype_name} {:?}, {size} bytes, but its offsets are {start} \
                 to {end}: the file is damaged; download it again",
                info.shape
            ));
        }
        order.push((start as u64, end as u64, name, dtype_name, info));
    }
    order.sort_unstable_by_key(|(start, end, ..)| (*start, *end));

    let mut tensors = BTreeMap::new();
    let mut expected = 0;
    for (start, end, name, dtype_name, info) in order {
        if start != expected {
            let problem =
                if start < expected { "overlaps the tensor before it" } else { "leaves a gap" };
            return Err(format!(
                "tensor `{name}` {problem} (it starts at byte {start} of the data, the one before \
                 it ends at {expected}): the file is damaged; download it again"
            ));
        }
        if end > data_bytes {
            return Err(format!(
                "truncated: tensor `{name}` ends at byte {end} of the data, the file has \
                 {data_bytes}; download it again"
            ));
        }
        expected = end;
        let entry = Entry {
            dtype: Dtype::from_safetensors(info.dtype),
            dtype_name,
            shape: info.shape,
            start: data_start + start,
            end: data_start + end,
            rows: RowOrder::Stored,
        };
        tensors.insert(name, entry);
    }
    if expected != data_bytes {
        return Err(format!(
            "its tensors take {expected} bytes, but {data_bytes} follow the header: the file is \
             damaged; download it again"
        ));
    }
    Ok(tensors)
}

/// Size in bytes of a tensor; `None` when it overflows or is no whole number of bytes.
fn size(info: &TensorInfo) -> Option<u64> {
    let bits = info
        .shape
        .iter()
        .try_fold(info.dtype.bitsize() as u64, |bits, n| bits.checked_mul(*n as u64))?;
    bits.is_multiple_of(8).then_some(bits / 8)
}
