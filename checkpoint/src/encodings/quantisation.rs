//! Which encoding a folder's matrices have.

use super::awq::Awq;
use super::bitsandbytes;
use super::compressed_tensors::CompressedTensors;
use super::encoded::Encoded;
use super::fp8::Fp8;
use super::gptq::Gptq;
use super::mlx::Mlx;
use super::mxfp4;
use super::parts::Parts;
use crate::Result;
use crate::keys::Keys;

/// What `config.json` says of quantised weights.
#[derive(Debug, Clone)]
pub(crate) enum Quantisation {
    Mlx(Mlx),
    Gptq(Gptq),
    Awq(Awq),
    CompressedTensors(CompressedTensors),
    Fp8(Fp8),
    Mxfp4,
    BitsAndBytes,
}

impl Quantisation {
    /// Of the keys of `config.json`; `None` where weights are not quantised.
    pub fn read(config: &Keys) -> Result<Option<Self>> {
        // MLX's own key goes first: newer versions of mlx-lm write the other one too.
        if let Some(map) = config.object("quantization")? {
            let keys = Keys { path: config.path, prefix: "quantization.", map, names: None };
            return Ok(Some(Self::Mlx(Mlx::read(&keys)?)));
        }
        let Some(map) = config.object("quantization_config")? else { return Ok(None) };
        let keys = Keys { path: config.path, prefix: "quantization_config.", map, names: None };
        Ok(Some(match keys.string("quant_method")? {
            Some("gptq") => Self::Gptq(Gptq::read(&keys)?),
            Some("awq") => Self::Awq(Awq::read(&keys)?),
            Some("compressed-tensors") => Self::CompressedTensors(CompressedTensors::read(&keys)?),
            Some("fp8") => Self::Fp8(Fp8::read(&keys)?),
            Some("mxfp4") => Self::Mxfp4,
            Some("bitsandbytes") => Self::BitsAndBytes,
            _ => {
                let known = "supported are gptq, awq, compressed-tensors, fp8, mxfp4 and bitsandbytes, and \
                             MLX's key `quantization`; use one of these, or the original bf16, f16 or \
                             f32 checkpoint";
                return Err(keys.refuse("quant_method", known));
            }
        }))
    }

    /// The matrix of `module`, if it is quantised; its tensors must fit each other and `shape`.
    pub fn find(&self, parts: &Parts, module: &str, shape: [usize; 2]) -> Result<Option<Encoded>> {
        match self {
            Self::Mlx(it) => it.find(parts, module, shape),
            Self::Gptq(it) => it.find(parts, module, shape),
            Self::Awq(it) => it.find(parts, module, shape),
            Self::CompressedTensors(it) => it.find(parts, module, shape),
            Self::Fp8(it) => it.find(parts, module, shape),
            Self::Mxfp4 => mxfp4::find(parts, module, shape),
            Self::BitsAndBytes => bitsandbytes::find(parts, module, shape),
        }
    }
}
