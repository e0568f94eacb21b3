//! Encoders'.

use serde_json::json;

use super::super::keys::Keys;

/// RoBERTa's, XLM-RoBERTa's and DistilBERT's files are BERT's too: positions begin at the first row, and what ranks is
/// called as RoBERTa calls it.
pub(super) const BERT_OUTSIDE: [(&str, &str); 6] = [
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
    ("cls", "classifier.dense"),
    ("cls.output", "classifier.out_proj"),
];

pub(super) const BERT: [(&str, &str); 8] = [
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
];

pub(super) fn bert(keys: &mut Keys) -> Result<(), String> {
    let texts = keys.rows("embeddings.token_type_embeddings.weight").unwrap_or(0);
    keys.names.insert("type_vocab_size".into(), "token_types.weight".into());
    keys.config.insert("type_vocab_size".into(), json!(texts));
    Ok(())
}

/// As the model's own code calls them.
pub(super) const NOMIC_OUTSIDE: [(&str, &str); 3] = [
    ("token_embd", "embeddings.word_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "emb_ln"),
];

pub(super) const NOMIC: [(&str, &str); 7] = [
    ("attn_qkv", "attn.Wqkv"),
    ("attn_output", "attn.out_proj"),
    ("attn_output_norm", "norm1"),
    ("ffn_up", "mlp.fc11"),
    ("ffn_gate", "mlp.fc12"),
    ("ffn_down", "mlp.fc2"),
    ("layer_output_norm", "norm2"),
];

pub(super) const MODERN_OUTSIDE: [(&str, &str); 6] = [
    ("token_embd", "embeddings.tok_embeddings"),
    ("token_embd_norm", "embeddings.norm"),
    ("output_norm", "final_norm"),
    ("cls", "head.dense"),
    ("cls.norm", "head.norm"),
    ("cls.output", "classifier"),
];

pub(super) const MODERN: [(&str, &str); 6] = [
    ("attn_norm", "attn_norm"),
    ("attn_qkv", "attn.Wqkv"),
    ("attn_output", "attn.Wo"),
    ("ffn_norm", "mlp_norm"),
    ("ffn_up", "mlp.Wi"),
    ("ffn_down", "mlp.Wo"),
];

pub(super) fn modern(keys: &mut Keys) -> Result<(), String> {
    keys.copy("global_rope_theta", "rope.freq_base");
    keys.copy("local_rope_theta", "rope.freq_base_swa");
    keys.required("local_attention", "attention.sliding_window")?;
    keys.copy("hidden_activation", "hidden_activation");
    for (flag, bias) in [
        ("norm_bias", "final_norm.bias"),
        ("attention_bias", "layers.0.attn.Wo.bias"),
        ("mlp_bias", "layers.0.mlp.Wo.bias"),
    ] {
        keys.config.insert(flag.into(), json!(keys.has(bias)));
    }
    super::window_pattern(keys);
    if let Some(every) = keys.config.remove("sliding_window_pattern") {
        keys.put("global_attn_every_n_layers", "attention.sliding_window_pattern", Some(every));
    }
    Ok(())
}
