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
    embedding_scale: float = 1.0
    #: What norms are around; 0 where the model adds 1 to their weights.
    norm: float = 1.0
    generation_config: dict = field(default_factory=lambda: {"bos_token_id": 1, "eos_token_id": 2})
    #: The `model_type` of a model that reads images too, of which this is the text model.
    wrapper: str | None = None
    #: What else that says.
    outer: dict = field(default_factory=dict)

    def written_config(self):
        """What `config.json` says."""
        if self.wrapper is None:
            return self.config
        text = {key: value for key, value in self.config.items() if key != "architectures"}
        return {
            "architectures": [
                self.config["architectures"][0].replace("ForCausalLM", "ForConditionalGeneration")
            ],
            "model_type": self.wrapper,
            "tie_word_embeddings": self.config["tie_word_embeddings"],
            "text_config": text,
        } | self.outer

    def check_loaded(self, model):
        """Fails when transformers read another model than the one that was meant."""
        config = model.config.get_text_config()
        rope, meant = config.rope_parameters, self.config.get("rope_parameters", {})
        if "full_attention" in rope:
            rope, meant = rope["full_attention"], meant.get("full_attention", {})
        assert rope["rope_type"] == self.rope_type, rope
        theta = self.config.get("rope_theta") or meant["rope_theta"]
        assert rope["rope_theta"] == theta, rope
        decoder = getattr(model.model, "language_model", model.model)
        attention = next(it.self_attn for it in decoder.layers if hasattr(it, "self_attn"))
        if getattr(attention, "q_proj", None) is not None:
            biased = attention.q_proj.bias is not None
            always = self.config["model_type"] in ("qwen2", "qwen2_moe", "qwen2_5_vl", "gpt_oss", "phi")
            keys = ("attention_bias", "use_bias", "use_qkv_bias")
            assert biased == next((self.config[key] for key in keys if key in self.config), always)


def base(
    architecture, vocab, hidden, intermediate, layers, heads, kv_heads, head_dim=None, kind=None
):
    """The keys that all families share; `head_dim` is left out when it is hidden / heads, and a width of `None`."""
    config = {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": kind or architecture.lower(),
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
    if intermediate is None:
        del config["intermediate_size"]
    return config


def older(config, dtype, theta=10000.0, scaling=None, **more):
    """The form of transformers 4."""
    rope = {"rope_theta": theta, "rope_scaling": scaling}
    return config | rope | {"torch_dtype": dtype} | more


def newer(config, dtype, theta=10000.0, scaling=None, **more):
    """The form of transformers 5."""
    rope = (scaling or {"rope_type": "default"}) | {"rope_theta": theta}
    return config | {"rope_parameters": rope, "dtype": dtype} | more


#: As small as they come: no image is read.
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
}

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
    "ministral-layer-types-f16": Fixture(
        older(
            base("Ministral", 281, 48, 75, 3, 4, 2, 14),
            "float16",
            sliding_window=40,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
            tie_word_embeddings=True,
        ),
        "float16",
        "default",
    ),
    # Prompts and answers go five times beyond the original context, and scores grow there.
    "ministral3-yarn-gqa-bf16": Fixture(
        newer(
            base("Ministral3", 293, 60, 90, 3, 6, 2, 14, kind="ministral3"),
            "bfloat16",
            1000000.0,
            {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.5,
            },
            sliding_window=None,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "yarn",
    ),
    "exaone4-windows-gqa-f16": Fixture(
        newer(
            base("Exaone4", 277, 52, 80, 3, 4, 2, 14),
            "float16",
            1000000.0,
            LLAMA3,
            sliding_window=40,
            sliding_window_pattern="LG",
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            tie_word_embeddings=True,
        ),
        "float16",
        "llama3",
        embedding_scale=0.3,
    ),
    "exaone4-full-mqa-f32": Fixture(
        older(
            base("Exaone4", 269, 48, 70, 2, 4, 1, 14),
            "float32",
            sliding_window=None,
            layer_types=["full_attention"] * 2,
            tie_word_embeddings=False,
        ),
        "float32",
        "default",
    ),
    "seed-oss-biases-gqa-f16": Fixture(
        newer(
            base("SeedOss", 289, 44, 70, 2, 6, 2, 10, kind="seed_oss"),
            "float16",
            attention_bias=True,
            attention_out_bias=True,
            mlp_bias=True,
            tie_word_embeddings=False,
        ),
        "float16",
        "default",
    ),
    "ernie4-5-tied-gqa-bf16": Fixture(
        older(
            base("Ernie4_5", 263, 44, 70, 2, 4, 2, 14, kind="ernie4_5"),
            "bfloat16",
            500000.0,
            use_bias=False,
            tie_word_embeddings=True,
        ),
        "bfloat16",
        "default",
    ),
    "gemma-gqa-bf16": Fixture(
        older(
            base("Gemma", 271, 48, 90, 2, 4, 2, 16) | {"hidden_act": "gelu_pytorch_tanh"},
            "bfloat16",
            tie_word_embeddings=True,
        ),
        "bfloat16",
        "default",
        embedding_scale=0.03,
        norm=0.0,
    ),
    "olmoe-mha-bf16": Fixture(
        older(
            base("Olmoe", 259, 48, 32, 2, 4, 4),
            "bfloat16",
            num_experts=6,
            num_experts_per_tok=2,
            norm_topk_prob=False,
            clip_qkv=None,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "default",
    ),
    "arcee-biases-gqa-f16": Fixture(
        newer(
            base("Arcee", 239, 48, 77, 2, 4, 2) | {"hidden_act": "relu2"},
            "float16",
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=False,
        ),
        "float16",
        "default",
    ),
    "starcoder2-window-gqa-bf16": Fixture(
        newer(
            base("Starcoder2", 241, 48, 99, 2, 4, 2)
            | {"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-3},
            "bfloat16",
            use_bias=True,
            sliding_window=40,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "default",
    ),
    "stablelm-biases-mha-f16": Fixture(
        older(
            base("StableLm", 233, 64, 90, 2, 4, 4) | {"layer_norm_eps": 1e-3},
            "float16",
            use_qkv_bias=True,
            use_parallel_residual=False,
            partial_rotary_factor=0.25,
            tie_word_embeddings=False,
        ),
        "float16",
        "default",
    ),
    "nemotron-gqa-bf16": Fixture(
        newer(
            base("Nemotron", 247, 48, 83, 2, 4, 2) | {"hidden_act": "relu2", "norm_eps": 1e-3},
            "bfloat16",
            scaling={"rope_type": "default", "partial_rotary_factor": 0.5},
            attention_bias=False,
            mlp_bias=False,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "default",
        norm=0.0,
    ),
    # One MLP and attention in parallel, an output with a bias.
    "phi-partial-mha-f16": Fixture(
        older(
            base("Phi", 233, 60, 90, 2, 3, 3) | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
            "float16",
            partial_rotary_factor=0.4,
            qk_layernorm=False,
            tie_word_embeddings=False,
        ),
        "float16",
        "default",
    ),
    "glm-partial-gqa-bf16": Fixture(
        newer(
            base("Glm", 239, 44, 70, 2, 4, 2, 12) | {"pad_token_id": 0},
            "bfloat16",
            scaling={"rope_type": "default", "partial_rotary_factor": 0.5},
            attention_bias=True,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "default",
    ),
    "helium-biases-mha-f16": Fixture(
        older(
            base("Helium", 241, 48, 77, 2, 4, 4, 12),
            "float16",
            100000.0,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=False,
        ),
        "float16",
        "default",
    ),
    # The window of the layers that have one, by default.
    "cwm-windows-gqa-bf16": Fixture(
        newer(
            base("Cwm", 251, 48, 70, 3, 4, 2, 12),
            "bfloat16",
            1000000.0,
            LLAMA3,
            sliding_window=40,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "llama3",
    ),
    "vaultgemma-windows-gqa-bf16": Fixture(
        older(
            base("VaultGemma", 251, 48, 80, 3, 4, 2, 14)
            | {"hidden_activation": "gelu_pytorch_tanh"},
            "bfloat16",
            query_pre_attn_scalar=20,
            sliding_window=40,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
            tie_word_embeddings=True,
        ),
        "bfloat16",
        "default",
        embedding_scale=0.03,
        norm=0.0,
    ),
    "dots1-gqa-bf16": Fixture(
        newer(
            base("Dots1", 241, 48, 70, 3, 4, 2, 12),
            "bfloat16",
            n_routed_experts=6,
            num_experts_per_tok=2,
            n_shared_experts=2,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.5,
            n_group=1,
            topk_group=1,
            sliding_window=None,
            attention_bias=False,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "default",
    ),
    "mellum-windows-gqa-bf16": Fixture(
        base("Mellum", 241, 48, 70, 3, 4, 2, 12)
        | {
            "dtype": "bfloat16",
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 40,
            # It says nothing here.
            "use_sliding_window": True,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "attention_bias": False,
            "tie_word_embeddings": False,
        },
        "bfloat16",
        "default",
    ),
    # As hubs have it: all in one object.
    "qwen2-5-vl-tied-gqa-bf16": Fixture(
        older(
            base("Qwen2_5_VL", 241, 48, 70, 2, 4, 2, kind="qwen2_5_vl")
            | {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "vision_config": VISION},
            "bfloat16",
            1000000.0,
            {"type": "mrope", "mrope_section": [2, 2, 2]},
            use_sliding_window=False,
            tie_word_embeddings=True,
        ),
        "bfloat16",
        "default",
        embedding_scale=0.3,
    ),
    "qwen3-vl-gqa-f16": Fixture(
        older(
            base("Qwen3VLText", 241, 48, 70, 2, 4, 2, 12, kind="qwen3_vl_text")
            | {"architectures": ["Qwen3VLForCausalLM"]},
            "float16",
            500000.0,
            {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 2, 2]},
            attention_bias=False,
            tie_word_embeddings=False,
        ),
        "float16",
        "default",
        wrapper="qwen3_vl",
        outer={"vision_config": VISION | {"out_hidden_size": 48}},
    ),
    "hunyuan-alpha-tied-gqa-bf16": Fixture(
        older(
            base("HunYuanDenseV1", 251, 44, 70, 2, 6, 2, 14, kind="hunyuan_v1_dense"),
            "bfloat16",
            10000.0,
            {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
            attention_bias=False,
            tie_word_embeddings=True,
        ),
        "bfloat16",
        "dynamic",
        embedding_scale=0.3,
    ),
    "apertus-gqa-bf16": Fixture(
        newer(
            base("Apertus", 241, 44, 71, 2, 6, 2, 10) | {"hidden_act": "xielu"},
            "bfloat16",
            12000000.0,
            attention_bias=False,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "default",
    ),
    "cohere-biases-mha-f16": Fixture(
        older(
            base("Cohere", 233, 44, 70, 2, 4, None, 16),
            "float16",
            layer_norm_eps=1e-3,
            logit_scale=0.125,
            use_qk_norm=False,
            attention_bias=True,
            tie_word_embeddings=False,
        ),
        "float16",
        "default",
    ),
    # As Command R+: each head of queries and keys has a norm of its own.
    "cohere-head-norms-gqa-bf16": Fixture(
        older(
            base("Cohere", 223, 40, 62, 2, 4, 2, 12),
            "bfloat16",
            layer_norm_eps=1e-5,
            logit_scale=0.5,
            use_qk_norm=True,
            attention_bias=False,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "default",
    ),
    "cohere2-windows-tied-gqa-bf16": Fixture(
        newer(
            base("Cohere2", 229, 48, 75, 3, 4, 2),
            "bfloat16",
            50000.0,
            layer_norm_eps=1e-5,
            logit_scale=0.25,
            sliding_window=40,
            sliding_window_pattern=2,
            tie_word_embeddings=True,
        ),
        "bfloat16",
        "default",
        embedding_scale=0.3,
    ),
    # The keys of the first files: the width of the MLP is made of three, the epsilon has a name of its own, and
    # which layers attend is a list.
    "lfm2-older-tied-gqa-bf16": Fixture(
        older(
            base("Lfm2", 253, 44, 33, 4, 6, 2, 10),
            "bfloat16",
            1000000.0,
            norm_eps=1e-3,
            conv_bias=False,
            conv_L_cache=3,
            block_ff_dim=96,
            block_auto_adjust_ff_dim=True,
            block_ffn_dim_multiplier=1.1,
            block_multiple_of=8,
            full_attn_idxs=[1, 3],
            tie_embedding=True,
        ),
        "bfloat16",
        "default",
        embedding_scale=0.3,
    ),
    "lfm2-layer-types-untied-f16": Fixture(
        newer(
            base("Lfm2", 241, 38, 57, 3, 4, 1, 14),
            "float16",
            norm_eps=1e-5,
            conv_bias=False,
            conv_L_cache=4,
            block_auto_adjust_ff_dim=False,
            layer_types=["full_attention", "conv", "conv"],
            tie_word_embeddings=False,
        ),
        "float16",
        "default",
    ),
    # Experts in a layer that attends and in one that convolves, behind one without.
    "lfm2-moe-gqa-f16": Fixture(
        newer(
            base("Lfm2Moe", 237, 48, 57, 3, 4, 2, kind="lfm2_moe"),
            "float16",
            norm_eps=1e-5,
            conv_bias=False,
            conv_L_cache=3,
            layer_types=["conv", "full_attention", "conv"],
            num_dense_layers=1,
            moe_intermediate_size=32,
            num_experts=7,
            num_experts_per_tok=3,
            norm_topk_prob=True,
            use_expert_bias=True,
            routed_scaling_factor=1.5,
            tie_word_embeddings=True,
        ),
        "float16",
        "default",
        embedding_scale=0.3,
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
    # As the published models: the last of four layers attends, a quarter of each head is rotated, and two value
    # heads meet each key head.
    "qwen3-5-gqa-bf16": Fixture(
        newer(
            base("Qwen3_5", 249, 44, 70, 4, 4, 2, 24, kind="qwen3_5_text") | {"rms_norm_eps": 1e-6},
            "bfloat16",
            10000000.0,
            {
                "rope_type": "default",
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [1, 1, 1],
            },
            tie_word_embeddings=True,
            attention_bias=False,
            attn_output_gate=True,
            full_attention_interval=4,
            linear_conv_kernel_dim=4,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=8,
        ),
        "bfloat16",
        "default",
        embedding_scale=0.3,
        norm=0.0,
    ),
    # A part of one that reads images, with biases, as many key heads, and other layers that attend.
    "qwen3-5-mha-f32": Fixture(
        newer(
            base("Qwen3_5", 229, 38, 57, 3, 3, 3, 12, kind="qwen3_5_text"),
            "float32",
            scaling={"rope_type": "default", "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1]},
            tie_word_embeddings=False,
            attention_bias=True,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            linear_conv_kernel_dim=3,
            linear_num_key_heads=3,
            linear_num_value_heads=3,
            linear_key_head_dim=10,
            linear_value_head_dim=12,
        ),
        "float32",
        "default",
        norm=0.0,
        wrapper="qwen3_5",
    ),
    # As published: a part of one that reads images, whose experts are two tensors. No layer has the other width.
    "qwen3-5-moe-gqa-bf16": Fixture(
        newer(
            base("Qwen3_5Moe", 245, 48, None, 2, 4, 2, 16, kind="qwen3_5_moe_text"),
            "bfloat16",
            scaling={
                "rope_type": "default",
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [1, 1, 0],
            },
            tie_word_embeddings=False,
            attention_bias=False,
            full_attention_interval=2,
            linear_conv_kernel_dim=4,
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_key_head_dim=12,
            linear_value_head_dim=8,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=26,
            num_experts=7,
            num_experts_per_tok=3,
        ),
        "bfloat16",
        "default",
        norm=0.0,
        wrapper="qwen3_5_moe",
    ),
    # What linear attention reads lies key head by key head.
    "qwen3-next-mqa-f16": Fixture(
        older(
            base("Qwen3Next", 239, 32, 50, 2, 4, 1, 12, kind="qwen3_next"),
            "float16",
            partial_rotary_factor=0.5,
            tie_word_embeddings=False,
            attention_bias=False,
            layer_types=["linear_attention", "full_attention"],
            linear_conv_kernel_dim=4,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=10,
            linear_value_head_dim=8,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            moe_intermediate_size=16,
            shared_expert_intermediate_size=22,
            num_experts=6,
            num_experts_per_tok=2,
            norm_topk_prob=True,
        ),
        "float16",
        "default",
        norm=0.0,
    ),
    # The older form of ropes and layers: the pattern alone, and two bases.
    "gemma2-gqa-tied-bf16": Fixture(
        older(
            base("Gemma2", 211, 44, 70, 3, 4, 2, 14),
            "bfloat16",
            tie_word_embeddings=True,
            hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=20,
            sliding_window=40,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=8.0,
        ),
        "bfloat16",
        "default",
        embedding_scale=0.03,
        norm=0.0,
    ),
    "gemma2-mqa-uncapped-f16": Fixture(
        newer(
            base("Gemma2", 223, 36, 53, 2, 3, 1, 16),
            "float16",
            20000.0,
            tie_word_embeddings=True,
            query_pre_attn_scalar=16,
            sliding_window=33,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            attention_bias=True,
            layer_types=["full_attention", "sliding_attention"],
        ),
        "float16",
        "default",
        embedding_scale=0.03,
        norm=0.0,
    ),
    "gemma2-mha-f32": Fixture(
        newer(
            base("Gemma2", 199, 36, 47, 2, 3, 3, 12),
            "float32",
            tie_word_embeddings=True,
            query_pre_attn_scalar=12,
            sliding_window=4096,
            attn_logit_softcapping=6.0,
            final_logit_softcapping=30.0,
        ),
        "float32",
        "default",
        embedding_scale=0.03,
        norm=0.0,
    ),
    "gemma3-older-gqa-bf16": Fixture(
        older(
            base("Gemma3", 227, 40, 66, 4, 4, 2, 12, "gemma3_text"),
            "bfloat16",
            1000000.0,
            {"rope_type": "linear", "factor": 8.0},
            tie_word_embeddings=True,
            hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=12,
            rope_local_base_freq=10000.0,
            sliding_window=32,
            sliding_window_pattern=3,
        ),
        "bfloat16",
        "linear",
        embedding_scale=0.03,
        norm=0.0,
    ),
    "gemma3-newer-mqa-f16": Fixture(
        base("Gemma3", 219, 36, 51, 3, 3, 1, 18, "gemma3_text")
        | {
            "dtype": "float16",
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 18,
            "sliding_window": 45,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
        "float16",
        "default",
        embedding_scale=0.03,
        norm=0.0,
    ),
    "gemma3-capped-mha-f32": Fixture(
        older(
            base("Gemma3", 193, 32, 45, 2, 4, 4, 8, "gemma3_text"),
            "float32",
            1000000.0,
            tie_word_embeddings=True,
            query_pre_attn_scalar=8,
            rope_local_base_freq=20000.0,
            sliding_window=37,
            sliding_window_pattern=2,
            final_logit_softcapping=9.0,
        ),
        "float32",
        "default",
        embedding_scale=0.03,
        norm=0.0,
    ),
    # As E2B: the last layers see keys and values of earlier ones, of their type, and have wider MLPs.
    "gemma4-shared-inputs-gqa-bf16": Fixture(
        base("Gemma4", 211, 44, 33, 5, 4, 2, 12, "gemma4_text")
        | {
            "dtype": "bfloat16",
            "tie_word_embeddings": True,
            "global_head_dim": 20,
            "sliding_window": 40,
            "layer_types": [
                "sliding_attention",
                "sliding_attention",
                "full_attention",
                "sliding_attention",
                "full_attention",
            ],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 50000.0,
                    "partial_rotary_factor": 0.3,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 215,
            "final_logit_softcapping": 20.0,
        },
        "bfloat16",
        "proportional",
        embedding_scale=0.1,
    ),
    # As 12B: keys of fewer heads that are values too, in the form that transformers saves.
    "gemma4-unified-keys-as-values-f16": Fixture(
        base("Gemma4Unified", 209, 36, 51, 3, 4, 2, 14, "gemma4_unified_text")
        | {
            "dtype": "float16",
            "tie_word_embeddings": False,
            "attention_bias": True,
            "attention_k_eq_v": True,
            "per_layer_config": {
                "0": {"head_dim": 24, "num_key_value_heads": 1},
                "2": {"head_dim": 24, "num_key_value_heads": 1},
            },
            "sliding_window": 33,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1000000.0,
                    "partial_rotary_factor": 0.25,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        "float16",
        "proportional",
    ),
    "phi3-mha-window-bf16": Fixture(
        older(
            base("Phi3", 229, 48, 70, 2, 4, 4) | {"original_max_position_embeddings": 512},
            "bfloat16",
            tie_word_embeddings=False,
            sliding_window=41,
            pad_token_id=0,
        ),
        "bfloat16",
        "default",
    ),
    # As Phi-4-mini: part of a head, and tied. What comes before the original context is rotated by the
    # short factors.
    "phi3-longrope-partial-gqa-f16": Fixture(
        older(
            base("Phi3", 233, 64, 90, 2, 4, 2)
            | {"max_position_embeddings": 2048, "original_max_position_embeddings": 512},
            "float16",
            10000.0,
            {
                "type": "longrope",
                "short_factor": [1.0, 1.1, 1.25, 1.5, 2.0, 3.0],
                "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 13.0],
            },
            tie_word_embeddings=True,
            partial_rotary_factor=0.75,
            pad_token_id=0,
        ),
        "float16",
        "longrope",
    ),
    # The newer form.
    "phi3-longrope-mqa-f32": Fixture(
        newer(
            base("Phi3", 197, 36, 47, 2, 3, 1)
            | {"max_position_embeddings": 4096, "original_max_position_embeddings": 512},
            "float32",
            10000.0,
            {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0],
                "long_factor": [1.5, 2.0, 3.0, 5.0, 8.0, 13.0],
            },
            tie_word_embeddings=False,
            pad_token_id=0,
        ),
        "float32",
        "longrope",
    ),
    "smollm3-gqa-tied-bf16": Fixture(
        newer(
            base("SmolLM3", 241, 48, 66, 4, 4, 2),
            "bfloat16",
            5000000.0,
            tie_word_embeddings=True,
            pad_token_id=0,
        ),
        "bfloat16",
        "default",
    ),
    "smollm3-yarn-biases-f16": Fixture(
        newer(
            base("SmolLM3", 203, 42, 59, 3, 3, 1),
            "float16",
            10000.0,
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            tie_word_embeddings=False,
            attention_bias=True,
            mlp_bias=True,
            no_rope_layers=[1, 0, 1],
            pad_token_id=0,
        ),
        "float16",
        "yarn",
    ),
    "smollm3-window-mha-f32": Fixture(
        newer(
            base("SmolLM3", 191, 30, 47, 3, 3, 3),
            "float32",
            tie_word_embeddings=False,
            no_rope_layer_interval=2,
            use_sliding_window=True,
            sliding_window=35,
            pad_token_id=0,
        ),
        "float32",
        "default",
    ),
    "olmo2-gqa-bf16": Fixture(
        newer(
            base("Olmo2", 239, 48, 66, 2, 4, 2),
            "bfloat16",
            500000.0,
            tie_word_embeddings=False,
            pad_token_id=0,
        ),
        "bfloat16",
        "default",
    ),
    "olmo2-mha-tied-f16": Fixture(
        older(
            base("Olmo2", 217, 42, 59, 3, 3, 3),
            "float16",
            tie_word_embeddings=True,
            pad_token_id=0,
        ),
        "float16",
        "default",
        embedding_scale=0.2,
    ),
    "olmo2-bias-mqa-f32": Fixture(
        newer(
            base("Olmo2", 181, 40, 45, 2, 5, 1),
            "float32",
            tie_word_embeddings=False,
            attention_bias=True,
            pad_token_id=0,
        ),
        "float32",
        "default",
    ),
    "olmo3-yarn-gqa-bf16": Fixture(
        older(
            base("Olmo3", 251, 48, 66, 4, 4, 2),
            "bfloat16",
            500000.0,
            {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "attention_factor": 1.2079441541679836,
            },
            tie_word_embeddings=False,
            sliding_window=40,
            pad_token_id=0,
        ),
        "bfloat16",
        "yarn",
    ),
    "olmo3-tied-mha-f16": Fixture(
        older(
            base("Olmo3", 207, 36, 53, 2, 3, 3),
            "float16",
            500000.0,
            tie_word_embeddings=True,
            sliding_window=50,
            layer_types=["full_attention", "sliding_attention"],
            pad_token_id=0,
        ),
        "float16",
        "default",
        embedding_scale=0.2,
    ),
    "olmo3-bases-mqa-f32": Fixture(
        base("Olmo3", 187, 40, 45, 2, 4, 1)
        | {
            "dtype": "float32",
            "tie_word_embeddings": False,
            "attention_bias": True,
            "sliding_window": 33,
            "layer_types": ["sliding_attention", "full_attention"],
            "pad_token_id": 0,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
            },
        },
        "float32",
        "default",
    ),
    "granite-gqa-tied-bf16": Fixture(
        older(
            base("Granite", 263, 48, 66, 3, 4, 2),
            "bfloat16",
            tie_word_embeddings=True,
            embedding_multiplier=12.0,
            attention_multiplier=0.2,
            residual_multiplier=0.22,
            logits_scaling=8.0,
        ),
        "bfloat16",
        "default",
        residual_gain=8.0,
        embedding_scale=0.03,
    ),
    "granite-biases-mqa-f16": Fixture(
        newer(
            base("Granite", 209, 42, 59, 2, 3, 1),
            "float16",
            tie_word_embeddings=False,
            attention_bias=True,
            mlp_bias=True,
            embedding_multiplier=3.0,
            attention_multiplier=0.3,
            residual_multiplier=0.5,
            logits_scaling=3.0,
        ),
        "float16",
        "default",
        embedding_scale=0.1,
    ),
    "granite-mha-f32": Fixture(
        newer(
            base("Granite", 183, 32, 45, 2, 4, 4),
            "float32",
            tie_word_embeddings=False,
            attention_multiplier=0.35,
            residual_multiplier=1.4,
        ),
        "float32",
        "default",
    ),
    "granite-moe-tied-gqa-bf16": Fixture(
        older(
            base("GraniteMoe", 243, 48, 32, 2, 4, 2, kind="granitemoe"),
            "bfloat16",
            num_local_experts=6,
            num_experts_per_tok=2,
            embedding_multiplier=12.0,
            attention_multiplier=0.2,
            residual_multiplier=0.22,
            logits_scaling=6.0,
            tie_word_embeddings=True,
        ),
        "bfloat16",
        "default",
        residual_gain=8.0,
        embedding_scale=0.03,
    ),
    # The expert of all rows has no gate, and another width.
    "granite-moe-shared-mqa-f16": Fixture(
        newer(
            base("GraniteMoeShared", 207, 32, 16, 2, 4, 1, kind="granitemoeshared"),
            "float16",
            num_local_experts=5,
            num_experts_per_tok=3,
            shared_intermediate_size=24,
            attention_bias=True,
            residual_multiplier=0.6,
            tie_word_embeddings=False,
        ),
        "float16",
        "default",
    ),
    "glm4-moe-gqa-bf16": Fixture(
        newer(
            base("Glm4Moe", 227, 48, 70, 2, 4, 2, 16, kind="glm4_moe"),
            "bfloat16",
            partial_rotary_factor=0.5,
            attention_bias=True,
            use_qk_norm=True,
            first_k_dense_replace=1,
            moe_intermediate_size=16,
            n_routed_experts=7,
            n_shared_experts=2,
            num_experts_per_tok=3,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.5,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "default",
    ),
    # A group has two experts, prompts and answers go beyond the original context, where scores grow, and what the
    # latent norms keep from zero is not what others do.
    "deepseek-v3-moe-groups-bf16": Fixture(
        newer(
            base("DeepseekV3", 241, 48, 70, 2, 3, 3, kind="deepseek_v3") | {"rms_norm_eps": 0.05},
            "bfloat16",
            10000.0,
            {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
            q_lora_rank=26,
            kv_lora_rank=20,
            qk_nope_head_dim=10,
            qk_rope_head_dim=6,
            v_head_dim=12,
            first_k_dense_replace=1,
            moe_intermediate_size=16,
            n_routed_experts=8,
            n_shared_experts=1,
            num_experts_per_tok=3,
            n_group=4,
            topk_group=2,
            norm_topk_prob=True,
            routed_scaling_factor=1.5,
            tie_word_embeddings=False,
        ),
        "bfloat16",
        "yarn",
    ),
    # Values as wide as keys, heads that are no part of the hidden size, every bias, two factors that differ.
    "glm4-moe-lite-biases-f16": Fixture(
        older(
            base("Glm4MoeLite", 219, 48, 64, 2, 5, 5, kind="glm4_moe_lite"),
            "float16",
            10000.0,
            {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
            },
            q_lora_rank=30,
            kv_lora_rank=18,
            qk_nope_head_dim=10,
            qk_rope_head_dim=4,
            v_head_dim=14,
            attention_bias=True,
            rope_interleave=False,
            moe_intermediate_size=16,
            n_routed_experts=6,
            n_shared_experts=1,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.8,
            tie_word_embeddings=True,
        ),
        "float16",
        "yarn",
        embedding_scale=0.2,
    ),
    # As the Lite: queries of all of a row.
    "deepseek-v2-moe-groups-f32": Fixture(
        older(
            base("DeepseekV2", 233, 48, 60, 2, 4, 4, kind="deepseek_v2"),
            "float32",
            10000.0,
            {
                "type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
            },
            q_lora_rank=None,
            kv_lora_rank=20,
            qk_nope_head_dim=8,
            qk_rope_head_dim=6,
            v_head_dim=8,
            first_k_dense_replace=1,
            moe_intermediate_size=16,
            n_routed_experts=9,
            n_shared_experts=2,
            num_experts_per_tok=3,
            topk_method="group_limited_greedy",
            n_group=3,
            topk_group=2,
            norm_topk_prob=False,
            routed_scaling_factor=4.0,
            tie_word_embeddings=False,
        ),
        "float32",
        "yarn",
    ),
    "glm4-gqa-biases-bf16": Fixture(
        newer(
            base("Glm4", 257, 48, 66, 3, 4, 2, 12),
            "bfloat16",
            tie_word_embeddings=False,
            attention_bias=True,
            partial_rotary_factor=0.5,
            pad_token_id=0,
        ),
        "bfloat16",
        "default",
    ),
    "glm4-tied-mqa-f16": Fixture(
        older(
            base("Glm4", 213, 42, 59, 2, 3, 1, 16),
            "float16",
            tie_word_embeddings=True,
            attention_bias=False,
            partial_rotary_factor=0.5,
            pad_token_id=0,
        ),
        "float16",
        "default",
        embedding_scale=0.2,
    ),
    "glm4-whole-heads-mha-f32": Fixture(
        older(
            base("Glm4", 189, 30, 45, 2, 3, 3, 10),
            "float32",
            tie_word_embeddings=False,
            attention_bias=False,
            partial_rotary_factor=1.0,
            pad_token_id=0,
        ),
        "float32",
        "default",
    ),
    "mixtral-gqa-bf16": Fixture(
        newer(
            base("Mixtral", 243, 48, 32, 2, 4, 2, 10),
            "bfloat16",
            1000000.0,
            tie_word_embeddings=False,
            sliding_window=None,
            num_local_experts=5,
            num_experts_per_tok=2,
        ),
        "bfloat16",
        "default",
    ),
    "mixtral-window-mqa-f16": Fixture(
        older(
            base("Mixtral", 205, 32, 48, 2, 4, 1),
            "float16",
            tie_word_embeddings=True,
            sliding_window=40,
            num_local_experts=3,
            num_experts_per_tok=1,
        ),
        "float16",
        "default",
    ),
    "mixtral-mha-f32": Fixture(
        newer(
            base("Mixtral", 179, 32, 16, 2, 2, 2),
            "float32",
            tie_word_embeddings=False,
            num_local_experts=4,
            num_experts_per_tok=3,
        ),
        "float32",
        "default",
    ),
    "qwen2-moe-shared-gqa-bf16": Fixture(
        newer(
            base("Qwen2Moe", 249, 48, 70, 3, 4, 2, kind="qwen2_moe"),
            "bfloat16",
            1000000.0,
            tie_word_embeddings=False,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=58,
            num_experts=6,
            num_experts_per_tok=2,
            norm_topk_prob=False,
            decoder_sparse_step=1,
            mlp_only_layers=[1],
        ),
        "bfloat16",
        "default",
    ),
    "qwen2-moe-step-mha-f16": Fixture(
        older(
            base("Qwen2Moe", 201, 32, 50, 2, 4, 4, kind="qwen2_moe"),
            "float16",
            tie_word_embeddings=True,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=40,
            num_experts=5,
            num_experts_per_tok=3,
            norm_topk_prob=True,
            decoder_sparse_step=2,
        ),
        "float16",
        "default",
    ),
    "qwen2-moe-mqa-f32": Fixture(
        newer(
            base("Qwen2Moe", 177, 32, 42, 2, 2, 1, kind="qwen2_moe"),
            "float32",
            tie_word_embeddings=False,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=24,
            num_experts=4,
            num_experts_per_tok=4,
        ),
        "float32",
        "default",
    ),
    "qwen3-moe-gqa-bf16": Fixture(
        newer(
            base("Qwen3Moe", 247, 48, 70, 2, 4, 2, 12, kind="qwen3_moe"),
            "bfloat16",
            1000000.0,
            tie_word_embeddings=False,
            moe_intermediate_size=32,
            num_experts=9,
            num_experts_per_tok=3,
            norm_topk_prob=True,
        ),
        "bfloat16",
        "default",
    ),
    "qwen3-moe-dense-layer-mqa-f16": Fixture(
        older(
            base("Qwen3Moe", 203, 32, 50, 3, 4, 1, 10, kind="qwen3_moe"),
            "float16",
            tie_word_embeddings=True,
            moe_intermediate_size=16,
            num_experts=5,
            num_experts_per_tok=2,
            norm_topk_prob=False,
            mlp_only_layers=[0],
        ),
        "float16",
        "default",
        embedding_scale=0.3,
    ),
    "qwen3-moe-bias-mha-f32": Fixture(
        newer(
            base("Qwen3Moe", 175, 32, 42, 2, 2, 2, 14, kind="qwen3_moe"),
            "float32",
            tie_word_embeddings=False,
            attention_bias=True,
            moe_intermediate_size=16,
            num_experts=7,
            num_experts_per_tok=1,
            norm_topk_prob=True,
        ),
        "float32",
        "default",
    ),
    # Stretched as the published models are, which no key says.
    "gpt-oss-gqa-bf16": Fixture(
        older(
            base("GptOss", 231, 48, 32, 3, 4, 2, 10, kind="gpt_oss"),
            "bfloat16",
            150000.0,
            tie_word_embeddings=False,
            sliding_window=40,
            num_local_experts=5,
            num_experts_per_tok=2,
        ),
        "bfloat16",
        "yarn",
    ),
    "gpt-oss-narrow-mha-f32": Fixture(
        newer(
            base("GptOss", 177, 32, 16, 2, 3, 3, 14, kind="gpt_oss"),
            "float32",
            5000.0,
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "beta_fast": 16.0,
                "beta_slow": 1.0,
                "truncate": True,
                "original_max_position_embeddings": 64,
            },
            tie_word_embeddings=False,
            sliding_window=33,
            layer_types=["full_attention", "sliding_attention"],
            num_local_experts=7,
            num_experts_per_tok=3,
            swiglu_alpha=1.3,
            swiglu_limit=1.25,
        ),
        "float32",
        "yarn",
    ),
    "gpt-oss-tied-mqa-f16": Fixture(
        newer(
            base("GptOss", 203, 32, 48, 2, 5, 1, 12, kind="gpt_oss"),
            "float16",
            tie_word_embeddings=True,
            attention_bias=False,
            sliding_window=50,
            num_local_experts=3,
            num_experts_per_tok=1,
        ),
        "float16",
        "default",
        embedding_scale=0.3,
    ),
    "granite4-gqa-tied-bf16": Fixture(
        older(
            base("GraniteMoeHybrid", 251, 48, 66, 3, 4, 2, kind="granitemoehybrid"),
            "bfloat16",
            10000.0,
            tie_word_embeddings=True,
            shared_intermediate_size=66,
            num_local_experts=0,
            num_experts_per_tok=0,
            mamba_n_heads=1,
            layer_types=["attention"] * 3,
            position_embedding_type="rope",
            embedding_multiplier=12.0,
            attention_multiplier=0.2,
            residual_multiplier=0.22,
            logits_scaling=8.0,
        ),
        "bfloat16",
        "default",
        residual_gain=8.0,
        embedding_scale=0.03,
    ),
    # Nothing is rotated.
    "granite4-nope-mqa-f16": Fixture(
        newer(
            base("GraniteMoeHybrid", 197, 42, 59, 2, 3, 1, kind="granitemoehybrid"),
            "float16",
            tie_word_embeddings=False,
            attention_bias=True,
            shared_intermediate_size=50,
            num_local_experts=0,
            num_experts_per_tok=0,
            mamba_n_heads=1,
            layer_types=["attention"] * 2,
            position_embedding_type="nope",
            embedding_multiplier=3.0,
            attention_multiplier=0.3,
            residual_multiplier=0.5,
            logits_scaling=3.0,
        ),
        "float16",
        "default",
        embedding_scale=0.1,
    ),
    "granite4-mha-f32": Fixture(
        newer(
            base("GraniteMoeHybrid", 181, 32, 45, 2, 4, 4, kind="granitemoehybrid"),
            "float32",
            tie_word_embeddings=False,
            shared_intermediate_size=45,
            num_local_experts=0,
            num_experts_per_tok=0,
            mamba_n_heads=1,
            layer_types=["attention"] * 2,
            position_embedding_type="rope",
            attention_multiplier=0.35,
            residual_multiplier=1.4,
        ),
        "float32",
        "default",
    ),
}
