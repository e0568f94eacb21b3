//! The families of models, each a file: its names, its defaults, the keys that it reads, and its
//! layers, composed of the parts of [`architecture`](crate::architecture).
//!
//! To add one, write its file and put it into [`Family::ALL`].

mod apertus;
mod arcee;
mod bert;
mod cohere;
mod cohere2;
mod cwm;
mod deepseek_v2;
mod deepseek_v3;
mod distilbert;
mod dots1;
mod ernie4_5;
mod eurobert;
mod exaone4;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod gemma4_unified;
mod glm;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt_oss;
mod granite;
mod granite4;
mod granitemoe;
mod granitemoeshared;
mod helium;
mod hunyuan_v1_dense;
mod lfm2;
mod lfm2_moe;
mod llama;
mod mellum;
mod ministral;
mod ministral3;
mod mistral;
mod mixtral;
mod modernbert;
mod mpnet;
mod nemotron;
mod nomic_bert;
mod olmo2;
mod olmo3;
mod olmoe;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
mod vaultgemma;

mod encoder;
mod experts;
mod latent;
mod parts;
mod rope;
mod sizes;
mod window;

use crate::Result;
use crate::architecture::{Activation, Architecture};
use crate::keys::Keys;

pub(crate) use sizes::{Sizes, limit};

/// A family of models.
pub struct Family {
    model_type: &'static str,
    class: &'static str,
    pub(crate) defaults: Defaults,
    /// Composes a model of these sizes, and reads from `config.json` what only this family has.
    pub(crate) architecture: fn(&Keys, &Sizes) -> Result<Architecture>,
}

/// What a family's configuration class in Hugging Face transformers takes where `config.json` is
/// silent, under its names.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    /// `None` is one for each query head.
    pub num_key_value_heads: Option<usize>,
    /// `None` is `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub tie_word_embeddings: bool,
    pub bos_token_id: Option<u32>,
    pub eos_token_ids: &'static [u32],
}

impl Family {
    /// Every family.
    pub const ALL: [&'static Self; 61] = [
        &llama::FAMILY,
        &mistral::FAMILY,
        &ministral::FAMILY,
        &ministral3::FAMILY,
        &qwen2::FAMILY,
        &qwen3::FAMILY,
        &qwen3_5::FAMILY,
        &phi::FAMILY,
        &gemma::FAMILY,
        &gemma2::FAMILY,
        &vaultgemma::FAMILY,
        &gemma3::FAMILY,
        &gemma4::FAMILY,
        &gemma4_unified::FAMILY,
        &phi3::FAMILY,
        &smollm3::FAMILY,
        &olmo2::FAMILY,
        &olmo3::FAMILY,
        &exaone4::FAMILY,
        &seed_oss::FAMILY,
        &ernie4_5::FAMILY,
        &granite::FAMILY,
        &granite4::FAMILY,
        &glm::FAMILY,
        &glm4::FAMILY,
        &cohere::FAMILY,
        &cohere2::FAMILY,
        &lfm2::FAMILY,
        &arcee::FAMILY,
        &nemotron::FAMILY,
        &stablelm::FAMILY,
        &starcoder2::FAMILY,
        &apertus::FAMILY,
        &helium::FAMILY,
        &cwm::FAMILY,
        &hunyuan_v1_dense::FAMILY,
        &mixtral::FAMILY,
        &qwen2_moe::FAMILY,
        &qwen3_moe::FAMILY,
        &mellum::FAMILY,
        &qwen3_next::FAMILY,
        &qwen3_5_moe::FAMILY,
        &olmoe::FAMILY,
        &lfm2_moe::FAMILY,
        &glm4_moe::FAMILY,
        &glm4_moe_lite::FAMILY,
        &deepseek_v2::FAMILY,
        &deepseek_v3::FAMILY,
        &dots1::FAMILY,
        &granitemoe::FAMILY,
        &granitemoeshared::FAMILY,
        &gpt_oss::FAMILY,
        &bert::BERT,
        &bert::ROBERTA,
        &bert::XLM_ROBERTA,
        &bert::CAMEMBERT,
        &distilbert::FAMILY,
        &mpnet::FAMILY,
        &modernbert::FAMILY,
        &nomic_bert::FAMILY,
        &eurobert::FAMILY,
    ];

    /// The Hugging Face `model_type`: "llama".
    pub fn model_type(&self) -> &'static str {
        self.model_type
    }

    /// The Hugging Face class in `architectures`: "LlamaForCausalLM"; of an encoder "BertModel".
    pub fn class(&self) -> &'static str {
        self.class
    }

    /// Whether `name` is that class, or the one within it that has no output projection, which models that
    /// make vectors of texts are saved of: "LlamaModel", "Gemma3TextModel"; or one around an encoder.
    pub(crate) fn has_class(&self, name: &str) -> bool {
        // ERNIE 4.5 has said "Ernie4_5_ForCausalLM".
        let name = &name.replace("_ForCausalLM", "ForCausalLM");
        if let Some(encoder) = self.class.strip_suffix("Model") {
            let around = [
                "Model",
                "ForMaskedLM",
                "ForPreTraining",
                "ForSequenceClassification",
                "ForTokenClassification",
                "ForQuestionAnswering",
            ];
            return name.strip_prefix(encoder).is_some_and(|it| around.contains(&it));
        }
        let stem = self.class.strip_suffix("ForCausalLM").unwrap_or(self.class);
        name == self.class || matches!(name.strip_prefix(stem), Some("Model" | "TextModel"))
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.model_type)
    }
}

impl Activation {
    /// The activation that `key` names, else `default`.
    fn read(keys: &Keys, key: &str, default: Self) -> Result<Self> {
        match keys.string(key)? {
            None => Ok(default),
            Some("silu" | "swish") => Ok(Self::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Self::GeluTanh),
            Some("gelu") => Ok(Self::Gelu),
            Some(_) => {
                let known = "supported are \"silu\", \"gelu\" and \"gelu_pytorch_tanh\"";
                Err(keys.refuse(key, known))
            }
        }
    }
}
