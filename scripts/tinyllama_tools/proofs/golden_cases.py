"""The small models whose golden values are kept: their sizes, and what features they have."""

from typing import Any

DIMENSIONS = (
    *("vocab_size", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "intermediate_dim"),
    *("batch", "seq"),
)

# Small models, each for something. Five of LlamaForCausalLM without features: grouped-query
# attention with 2 and 4 query heads a KV head, as many KV heads as query heads, a single KV head;
# head_dim 6, 16, 32, 40; sequences of 1, 7, 33; odd vocabularies and intermediate sizes, so that
# nothing can hide behind a multiple of 8. Then one for each set of features that published families
# have. In the order of DIMENSIONS: vocab_size, hidden_dim, n_layers, n_heads, n_kv_heads,
# intermediate_dim, batch, seq.
_SIZES = {
    "gqa_groups_2": (37, 4 * 16, 2, 4, 2, 19, 2, 7),
    "gqa_groups_4": (19, 8 * 6, 1, 8, 2, 13, 1, 33),
    "multi_head": (31, 2 * 32, 1, 2, 2, 13, 3, 7),
    "single_kv_head": (17, 2 * 40, 1, 2, 1, 9, 2, 33),
    "seq_1": (19, 2 * 16, 1, 2, 1, 15, 2, 1),
    # frequencies by their turns within 64 positions: 10 are kept, 2 divided in part, 0.4 and less
    # divided whole
    "llama_3_1": (19, 2 * 16, 1, 2, 1, 11, 2, 29),
    # tied besides, with the factor 32 of the small ones; turns within 128 positions: 20, 2.3, 0.3
    "llama_3_2": (17, 2 * 12, 2, 2, 1, 7, 1, 23),
    # deepseek-coder has it
    "rope_linear": (17, 2 * 12, 1, 2, 2, 11, 2, 17),
    # the padding token occurs in the tokens: its row has the LM head's gradient alone
    "tied": (13, 2 * 10, 2, 2, 1, 9, 2, 11),
    # mistral-nemo: heads x head_dim is more than the hidden dimension; multi-query besides
    "head_dim": (13, 12, 1, 3, 1, 11, 2, 9),
    # granite's code models
    "llama_biases": (13, 4 * 6, 2, 4, 2, 11, 2, 11),
    "qwen2": (17, 4 * 6, 1, 4, 2, 13, 2, 13),
    "qwen2_untied": (11, 3 * 8, 2, 3, 1, 7, 1, 13),
    "qwen3": (17, 20, 1, 4, 2, 11, 2, 13),
    "qwen3_untied": (11, 2 * 10, 2, 2, 1, 7, 1, 13),
    "qwen3_biases": (11, 2 * 8, 1, 2, 1, 9, 2, 11),
    # the window hides keys from the fifth position on
    "mistral_window": (17, 4 * 6, 2, 4, 2, 9, 2, 13),
    # smollm2-135m: nine heads that share three
    "heads_9": (23, 9 * 6, 1, 9, 3, 13, 1, 11),
}
_ROPE_3: dict[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
_ROPE_3_1 = {**_ROPE_3, "factor": 8.0, "original_max_position_embeddings": 64}
_ROPE_3_2 = {**_ROPE_3, "factor": 32.0, "original_max_position_embeddings": 128}
_BIASES = {"qkv_bias": True, "o_bias": True}
_TIED = {"tied_embeddings": True}
_MISTRAL = {"model_type": "mistral", "norm_eps": 1e-6}
_QWEN2 = {"model_type": "qwen2", "norm_eps": 1e-6, "rope_theta": 1e6, "qkv_bias": True}
_QWEN3 = {"model_type": "qwen3", "norm_eps": 1e-6, "rope_theta": 1e6, "qk_norm": True}
_FEATURES: dict[str, dict[str, Any]] = {
    "llama_3_1": {"rope_theta": 500000.0, "rope_scaling": _ROPE_3_1},
    "llama_3_2": {"rope_theta": 500000.0, "rope_scaling": _ROPE_3_2, **_TIED},
    "rope_linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "tied": _TIED | {"padding_token": 2},
    "head_dim": _MISTRAL | {"own_head_dim": 64, "rope_theta": 1e6},
    "llama_biases": _BIASES | _TIED | {"mlp_bias": True, "padding_token": 0},
    "qwen2": _QWEN2 | _TIED,
    "qwen2_untied": _QWEN2,
    "qwen3": _QWEN3 | _TIED | {"own_head_dim": 12},
    "qwen3_untied": _QWEN3,
    "qwen3_biases": _QWEN3 | _BIASES,
    "mistral_window": _MISTRAL | {"sliding_window": 4},
    "heads_9": _TIED | {"rope_theta": 100000.0},
}
GOLDEN_CASES: dict[str, dict[str, Any]] = {
    name: dict(zip(DIMENSIONS, size, strict=True)) | _FEATURES.get(name, {})
    for name, size in _SIZES.items()
}
