"""Families of published models: each has the features of a golden case (fixtures/golden/), whose
values are transformers' own, or is refused with the key that says why.

A family's config.json is here with the keys that decide what is computed, as they are published;
the sizes are scaled down. Its features are read by transformers' AutoConfig, from
it and from the golden case alike."""
# ruff: noqa: E402 -- what may be absent is imported after a look whether it is there

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_program import ON_CPU, Program

from built_programs import PROJECT_ROOT
from tools import require_oracle_packages

require_oracle_packages()

from transformers import AutoConfig, PretrainedConfig

GOLDEN = PROJECT_ROOT / "fixtures/golden"


def shape(heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """A config.json of llama's, of that shape; hidden_size is heads x 8 unless it is given."""
    return {
        "model_type": "llama",
        "vocab_size": 97,
        "hidden_size": heads * 8,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    } | more


def llama3(factor: float, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """What Llama 3.1 and its successors have."""
    factors = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling = {"rope_type": "llama3", "original_max_position_embeddings": 8192, **factors}
    plain = {"attention_bias": False, "mlp_bias": False, "rope_theta": 500000.0}
    return plain | {"rope_scaling": scaling, "max_position_embeddings": 131072} | more


MISTRAL: dict[str, Any] = {"model_type": "mistral"}
TIED: dict[str, Any] = {"tie_word_embeddings": True}
# their windows are written and switched off
QWEN: dict[str, Any] = {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "sliding_window": 32768}
QWEN |= {"use_sliding_window": False, "max_window_layers": 28}
QWEN2, QWEN3 = QWEN | {"model_type": "qwen2"}, QWEN | {"model_type": "qwen3"}
QWEN3 |= {"attention_bias": False}
GRANITE_CODE = TIED | {"attention_bias": True, "mlp_bias": True, "pad_token_id": 0}

# name -> the golden case of its features, and its config.json
GOLDEN_TESTED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2-7b": ("multi_head", shape(4, 4, rope_scaling=None)),
    "llama-2-70b": ("gqa_groups_4", shape(8, 1)),
    "code-llama-7b": ("multi_head", shape(4, 4, rope_theta=1e6)),
    "tinyllama-1.1b": ("gqa_groups_4", shape(8, 1)),
    "llama-3-8b": ("gqa_groups_4", shape(8, 2, rope_theta=500000.0)),
    "llama-3.1-8b": ("llama_3_1", shape(8, 2, **llama3(8.0))),
    "llama-3.1-70b": ("llama_3_1", shape(8, 1, **llama3(8.0))),
    "llama-3.2-1b": ("llama_3_2", shape(8, 2, **llama3(32.0, head_dim=8), **TIED)),
    "llama-3.3-70b": ("llama_3_1", shape(8, 1, **llama3(8.0))),
    "deepseek-coder-6.7b": (
        "rope_linear",
        shape(4, 4, rope_theta=100000.0, rope_scaling={"type": "linear", "factor": 4.0}),
    ),
    "deepseek-llm-7b": ("multi_head", shape(4, 4)),
    "smollm2-135m": ("heads_9", shape(9, 3, rope_theta=100000.0, **TIED)),
    "smollm2-135m-instruct": ("tied", shape(9, 3, rope_theta=100000.0, pad_token_id=2, **TIED)),
    "granite-8b-code": ("llama_biases", shape(8, 2, rope_theta=1e7, **GRANITE_CODE)),
    "mistral-7b-v0.1": ("mistral_window", shape(8, 2, **MISTRAL, sliding_window=4096)),
    "mistral-7b-v0.3": ("gqa_groups_4", shape(8, 2, **MISTRAL, sliding_window=None)),
    "mistral-nemo-12b": (
        "head_dim",
        shape(8, 2, **MISTRAL, hidden_size=80, head_dim=8, sliding_window=None),
    ),
    "qwen2-0.5b": ("qwen2", shape(7, 1, **QWEN2 | TIED)),
    "qwen2.5-7b": ("qwen2_untied", shape(7, 1, **QWEN2)),
    "qwen3-0.6b": ("qwen3", shape(4, 2, **QWEN3 | TIED, hidden_size=16, head_dim=8)),
    "qwen3-8b": ("qwen3_untied", shape(4, 1, **QWEN3, head_dim=8)),
}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "v_head_dim": 8}
CAPPED = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 8}
MULTIPLIED = {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
DYNAMIC = {"type": "dynamic", "factor": 2.0}
# name -> the key that the refusal names, and its config.json
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral-8x7b": ("model_type", shape(8, 2, model_type="mixtral", **EXPERTS)),
    "qwen3-30b-a3b": ("model_type", shape(8, 1, **QWEN3 | {"model_type": "qwen3_moe"})),
    "deepseek-v3": ("model_type", shape(8, 8, model_type="deepseek_v3", **LATENT)),
    "gemma-2-9b": ("model_type", shape(8, 4, model_type="gemma2", **CAPPED)),
    "granite-3.1-8b": ("model_type", shape(8, 2, model_type="granite", **MULTIPLIED)),
    "phi-4-mini": ("model_type", shape(6, 2, model_type="phi3", partial_rotary_factor=0.75)),
    "stablelm-2-1.6b": ("model_type", shape(4, 4, model_type="stablelm")),
    "olmo-2-7b": ("model_type", shape(4, 4, model_type="olmo2")),
    "smollm3-3b": ("model_type", shape(8, 2, model_type="smollm3", no_rope_layer_interval=4)),
    "nemotron-4-15b": ("model_type", shape(6, 1, model_type="nemotron", hidden_act="relu2")),
    "gpt-neox-20b": ("model_type", shape(4, 4, model_type="gpt_neox", hidden_act="gelu")),
    "llama-3.1-70b-awq": (
        "quantization_config",
        shape(8, 1, **llama3(8.0), quantization_config=AWQ),
    ),
    "qwen2.5-7b-yarn": ("rope_scaling", shape(7, 1, **QWEN2, rope_scaling=YARN)),
    "llama-2-7b-dynamic": ("rope_scaling", shape(4, 4, rope_scaling=DYNAMIC)),
    # one that keeps the family's type and adds what it lacks
    "llama-of-experts": ("num_local_experts", shape(8, 2, **EXPERTS)),
    "llama-partly-rotated": ("partial_rotary_factor", shape(4, 4, partial_rotary_factor=0.5)),
}


@dataclass(frozen=True)
class Features:
    """What of a model takes code of its own; sizes, theta and eps are numbers, and every golden
    case has some."""

    shares_kv_heads: bool
    own_head_dim: bool
    rope_type: str
    tied: bool
    padding: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    window: bool


def features(config: PretrainedConfig) -> Features:
    kind, heads = config.model_type, config.num_attention_heads
    attention_bias = getattr(config, "attention_bias", False)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Features(
        shares_kv_heads=config.num_key_value_heads < heads,
        own_head_dim=head_dim * heads != config.hidden_size,
        rope_type=(getattr(config, "rope_scaling", None) or {}).get("rope_type", "default"),
        tied=config.tie_word_embeddings,
        padding=config.pad_token_id is not None,
        qkv_bias=kind == "qwen2" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=getattr(config, "mlp_bias", False),
        qk_norm=kind == "qwen3",
        # None where a Qwen model's is switched off
        window=getattr(config, "sliding_window", None) is not None,
    )


def written(folder: Path, config: dict[str, Any]) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(config, indent=2))
    return file


@pytest.mark.parametrize("family", GOLDEN_TESTED)
def test_a_family_has_the_features_of_its_golden_case_and_is_taken(
    bench_program: Path, tmp_path: Path, family: str
) -> None:
    case, config = GOLDEN_TESTED[family]
    file = written(tmp_path, config)
    golden = features(AutoConfig.from_pretrained(GOLDEN / case))
    assert features(AutoConfig.from_pretrained(tmp_path)) == golden
    choice = [f"--config={file}", "--components=model", "--batch=1", "--seq=8", *ON_CPU]
    completed = Program(bench_program).run(*choice, "--dry-run")
    assert completed.returncode == 0, completed.stderr
    assert "model/forward/" in completed.stdout


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_is_not_computed_is_refused_by_name(
    bench_program: Path, tmp_path: Path, family: str
) -> None:
    key, config = REFUSED[family]
    file = written(tmp_path, config)
    completed = Program(bench_program).run(f"--config={file}", "--dry-run", *ON_CPU)
    assert completed.returncode == 2, completed.stdout
    (line,) = completed.stderr.splitlines()
    assert str(file) in line and key in line
    # with its value
    value = config[key]
    assert value in line if isinstance(value, str) else True


def test_every_golden_case_with_features_is_a_familys_or_says_why_not() -> None:
    without_family = {
        "qwen3_biases": "attention_bias true, which no published Qwen3 has",
        **dict.fromkeys(("gqa_groups_2", "single_kv_head", "seq_1"), "another shape of llama"),
    }
    cases = {folder.name for folder in GOLDEN.iterdir() if folder.is_dir()}
    assert cases == {case for case, _ in GOLDEN_TESTED.values()} | without_family.keys()
    assert len(GOLDEN_TESTED) >= 15
    # the numbers are several among them
    configs = [AutoConfig.from_pretrained(GOLDEN / case) for case in cases]
    assert len({config.rope_theta for config in configs}) >= 4
    assert len({config.rms_norm_eps for config in configs}) >= 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tie_word_embeddings", True),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("head_dim", 20),
        ("pad_token_id", 1),
        ("num_key_value_heads", 4),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
    ],
)
def test_a_feature_more_is_no_longer_the_golden_cases(
    tmp_path: Path, key: str, value: object
) -> None:
    case, config = GOLDEN_TESTED["llama-3-8b"]
    assert config["num_attention_heads"] == 8
    changed = config | {key: 8 if key == "num_key_value_heads" else value}
    written(tmp_path, changed)
    golden = features(AutoConfig.from_pretrained(GOLDEN / case))
    assert features(AutoConfig.from_pretrained(tmp_path)) != golden
