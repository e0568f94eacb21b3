"""The tiny models: every family, and every size and option that is easy to get wrong.

`config.json` is written by hand, in the form older versions of transformers wrote
(`rope_theta`, `rope_scaling`, `torch_dtype`) and in the newer one (`rope_parameters`, `dtype`).
"""

from dataclasses import dataclass, field

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass
class Fixture:
    """One checkpoint: its configuration and how its weights are stored."""

    config: dict
    dtype: str
    rope_type: str
    shards: int = 1
    residual_gain: float = 3.0
    generation_config: dict = field(default_factory=lambda: {"bos_token_id": 1, "eos_token_id": 2})

    def check_loaded(self, model):
        """Fails when transformers read another model than the one that was meant."""
        rope = model.config.rope_parameters
        assert rope["rope_type"] == self.rope_type, rope
        theta = self.config.get("rope_theta") or self.config["rope_parameters"]["rope_theta"]
        assert rope["rope_theta"] == theta, rope
        biased = model.model.layers[0].self_attn.q_proj.bias is not None
        meant = self.config.get("attention_bias", False) or self.config["model_type"] == "qwen2"
        assert biased == meant


def base(architecture, vocab, hidden, intermediate, layers, heads, kv_heads, head_dim=None):
    """The keys that all families share; `head_dim` is left out when it is hidden / heads."""
    config = {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": architecture.lower(),
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if head_dim is not None:
        config["head_dim"] = head_dim
    return config


def older(config, dtype, theta=10000.0, scaling=None, **more):
    """The form of transformers 4."""
    rope = {"rope_theta": theta, "rope_scaling": scaling}
    return config | rope | {"torch_dtype": dtype} | more


def newer(config, dtype, theta=10000.0, scaling=None, **more):
    """The form of transformers 5."""
    rope = (scaling or {"rope_type": "default"}) | {"rope_theta": theta}
    return config | {"rope_parameters": rope, "dtype": dtype} | more


FIXTURES = {
    # Llama 2's form: multi-head, head_dim from the quotient, nothing scaled. The epsilon is large
    # enough to be seen.
    "llama-mha-f32": Fixture(
        older(
            base("Llama", 299, 48, 101, 2, 4, 4) | {"rms_norm_eps": 0.05},
            "float32",
            tie_word_embeddings=False,
            attention_bias=False,
            mlp_bias=False,
        ),
        "float32",
        "default",
    ),
    # Llama 3.2's form: grouped queries, tied, scaled as Llama 3.1.
    "llama-llama3-tied-bf16": Fixture(
        older(
            base("Llama", 331, 60, 90, 3, 6, 2, 10) | {"eos_token_id": [2, 5]},
            "bfloat16",
            500000.0,
            LLAMA3,
            tie_word_embeddings=True,
        ),
        "bfloat16",
        "llama3",
        generation_config={"bos_token_id": 1, "eos_token_id": [2, 5, 7]},
    ),
    # The newer form, multi-query, wide heads, every bias, shards.
    "llama-llama3-biases-mqa-f16": Fixture(
        newer(
            base("Llama", 257, 52, 75, 3, 4, 1, 20),
            "float16",
            500000.0,
            LLAMA3,
            tie_word_embeddings=False,
            attention_bias=True,
            mlp_bias=True,
        ),
        "float16",
        "llama3",
        shards=3,
    ),
    "llama-linear-attention-bias-bf16": Fixture(
        older(
            base("Llama", 299, 45, 101, 2, 9, 3, 6),
            "bfloat16",
            10000.0,
            {"type": "linear", "factor": 2.5},
            tie_word_embeddings=True,
            attention_bias=True,
            mlp_bias=False,
        ),
        "bfloat16",
        "linear",
    ),
    "llama-gqa-long-bf16": Fixture(
        newer(
            base("Llama", 401, 64, 96, 2, 8, 2) | {"max_position_embeddings": 4096},
            "bfloat16",
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "default",
    ),
    "mistral-window-gqa-bf16": Fixture(
        newer(
            base("Mistral", 299, 60, 90, 3, 6, 3, 10),
            "bfloat16",
            1000000.0,
            sliding_window=50,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "default",
    ),
    "mistral-full-mqa-f16": Fixture(
        older(
            base("Mistral", 307, 54, 101, 2, 5, 1, 12),
            "float16",
            sliding_window=None,
            tie_word_embeddings=False,
        ),
        "float16",
        "default",
    ),
    "mistral-tied-gqa-f16": Fixture(
        newer(
            base("Mistral", 283, 40, 61, 2, 4, 2, 14),
            "float16",
            sliding_window=None,
            tie_word_embeddings=True,
        ),
        "float16",
        "default",
    ),
    "qwen2-gqa-tied-bf16": Fixture(
        older(
            base("Qwen2", 311, 56, 90, 3, 4, 2) | {"rms_norm_eps": 1e-6},
            "bfloat16",
            1000000.0,
            tie_word_embeddings=True,
            use_sliding_window=False,
            sliding_window=32,
            max_window_layers=3,
        ),
        "bfloat16",
        "default",
        shards=2,
        generation_config={"bos_token_id": 1, "eos_token_id": [2, 0]},
    ),
    # Only the layers from `max_window_layers` on have the window.
    "qwen2-window-untied-f16": Fixture(
        newer(
            base("Qwen2", 299, 60, 101, 3, 6, 2),
            "float16",
            tie_word_embeddings=False,
            use_sliding_window=True,
            sliding_window=40,
            max_window_layers=1,
        ),
        "float16",
        "default",
    ),
    "qwen3-gqa-tied-bf16": Fixture(
        newer(
            base("Qwen3", 313, 50, 90, 3, 4, 2, 20) | {"rms_norm_eps": 1e-6},
            "bfloat16",
            1000000.0,
            tie_word_embeddings=True,
            attention_bias=False,
        ),
        "bfloat16",
        "default",
    ),
    # `layer_types` decides, not `max_window_layers`.
    "qwen3-layer-types-bf16": Fixture(
        newer(
            base("Qwen3", 271, 44, 70, 3, 6, 2, 10),
            "bfloat16",
            1000000.0,
            tie_word_embeddings=False,
            attention_bias=False,
            use_sliding_window=True,
            sliding_window=33,
            max_window_layers=2,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        "bfloat16",
        "default",
    ),
    "qwen3-bias-linear-mha-f32": Fixture(
        older(
            base("Qwen3", 263, 42, 61, 3, 3, 3, 12),
            "float32",
            10000.0,
            {"rope_type": "linear", "factor": 2.0},
            tie_word_embeddings=False,
            attention_bias=True,
        ),
        "float32",
        "linear",
        shards=2,
    ),
    "qwen3-mqa-untied-f16": Fixture(
        older(
            base("Qwen3", 299, 48, 77, 2, 5, 1, 16),
            "float16",
            tie_word_embeddings=False,
            attention_bias=False,
        ),
        "float16",
        "default",
    ),
}
