"""config.json: the dimensions that the C++ reader finds are those of the model that transformers
builds from the same file, and so is what is written back."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from built_programs import TIMEOUT_S, Json, built_program
from tools import require_oracle_packages

require_oracle_packages()

import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

TYPES = ("llama", "mistral", "qwen2", "qwen3")
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 300,
}
# as transformers 4.57 writes them
SAVED = SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "float32",
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "initializer_range": 0.2,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "model_type": "llama",
    "num_key_value_heads": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.57.1",
    "use_cache": True,
}
LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 2.5}
WINDOW = {"use_sliding_window": True, "sliding_window": 5}
NO_WINDOW = ["full_attention"] * 2
ALL_WINDOW = ["sliding_attention"] * 2
# of each type, beside SIZES
FEATURES: dict[str, dict[str, dict[str, Json]]] = {
    "llama": {
        "attention_bias": {"attention_bias": True},
        "mlp_bias": {"mlp_bias": True},
        "null": {"head_dim": None, "num_key_value_heads": None, "attention_bias": None},
    },
    "mistral": {
        "defaults_of_heads": {"num_attention_heads": 16},
        "null": {"head_dim": None, "num_key_value_heads": None, "sliding_window": None},
        "window": {"sliding_window": 5, "num_key_value_heads": 4},
        # for AutoConfig the class is Ministral then, which fails without head_dim
        "layer_types": {**WINDOW, "layer_types": ALL_WINDOW, "head_dim": 16}
        | {"num_key_value_heads": 4},
    },
    "qwen2": {
        "attention_bias": {"attention_bias": False, "num_key_value_heads": 2},
        "null": {"num_key_value_heads": None, **WINDOW, "sliding_window": None},
        "window_unused": {"sliding_window": 5, "max_window_layers": 0, "num_key_value_heads": 2},
        "window_beyond": {**WINDOW, "max_window_layers": 2, "num_key_value_heads": 2},
        "window": {**WINDOW, "max_window_layers": 0, "num_key_value_heads": 2},
        "layer_types": {**WINDOW, "layer_types": ALL_WINDOW, "num_key_value_heads": 2},
    },
    "qwen3": {
        "attention_bias": {"attention_bias": True, "num_key_value_heads": 2},
        "head_dim_of_heads": {"head_dim": 16, "num_key_value_heads": 2},
        "window_by_default": {**WINDOW, "num_hidden_layers": 3, "num_key_value_heads": 2},
        "window": {**WINDOW, "max_window_layers": 0, "num_key_value_heads": 2},
        "layer_types": {**WINDOW, "max_window_layers": 0, "layer_types": NO_WINDOW}
        | {"num_key_value_heads": 2},
    },
}
FOR_ALL: dict[str, dict[str, Json]] = {
    "multi_query": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "head_dim": {"head_dim": 32},
    "padding": {"pad_token_id": 7},
    "padding_from_the_end": {"pad_token_id": -1},
    "theta": {"rope_theta": 500000, "rms_norm_eps": 1e-5},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "linear_newer": {"rope_scaling": LINEAR, "rope_theta": 1e6},
    "llama3": {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "default_rope": {"rope_scaling": {"rope_type": "default"}},
}


def files_of_version_4() -> dict[str, dict[str, Json]]:
    files = {f"{model}-defaults": {"model_type": model} for model in TYPES}
    for model in TYPES:
        for name, keys in FOR_ALL.items():
            file = {"model_type": model} | SIZES | {"num_key_value_heads": 2} | keys
            files[f"{model}-{name}"] = file
        for name, keys in FEATURES[model].items():
            files[f"{model}-{name}"] = {"model_type": model} | SIZES | keys
    files["minimal"] = SIZES | {"model_type": "llama"}
    files["saved"] = SAVED
    files["saved_tied"] = SAVED | {"tie_word_embeddings": True}
    files["saved_head_dim"] = SAVED | {"head_dim": 32}
    files["saved_attention_bias"] = SAVED | {"attention_bias": True}
    files["saved_llama3"] = SAVED | {"rope_scaling": {"rope_type": "llama3", **LLAMA3}}
    files["saved_mistral"] = SAVED | {"model_type": "mistral", "sliding_window": None}
    files["of_the_first_llama"] = SIZES | {
        "architectures": ["LLaMAForCausalLM"],
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_sequence_length": 2048,
        "model_type": "llama",
        "pad_token_id": -1,
        "rms_norm_eps": 1e-06,
        "torch_dtype": "float16",
        "transformers_version": "4.27.0.dev0",
        "use_cache": True,
    }
    return files


VERSION_4 = files_of_version_4()


def as_version_5(file: dict[str, Json]) -> dict[str, Json]:
    """The same model in the spelling of transformers 5, which 4.57 does not read."""
    newer = {k: v for k, v in file.items() if k not in ("rope_theta", "rope_scaling")}
    rope = {"rope_type": "default", **(file.get("rope_scaling") or {})}
    rope["rope_type"] = rope.pop("type", rope["rope_type"])
    rope["rope_theta"] = file.get("rope_theta", 10000.0)
    return newer | {"rope_parameters": rope, "transformers_version": "5.0.0"}


def write_all(folder: Path, files: dict[str, dict[str, Json]]) -> list[Path]:
    paths = [folder / f"{name}.json" for name in files]
    for path, file in zip(paths, files.values(), strict=True):
        path.write_text(json.dumps(file))
    return paths


def describe(paths: list[Path]) -> list[dict[str, Any]]:
    program = built_program("tests/fuzzing/describe_configs")
    run = subprocess.run(
        [program, *paths], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.fixture(scope="module", params=["4", "5"])
def described(request: pytest.FixtureRequest, tmp_path_factory: Any) -> dict[str, Json]:  # noqa: ANN401
    """What C++ reads, in the spelling of that version of transformers."""
    files = VERSION_4
    if request.param == "5":
        files = {name: as_version_5(file) for name, file in files.items()}
    paths = write_all(tmp_path_factory.mktemp("configs"), files)
    return dict(zip(files, describe(paths), strict=True))


def inverse_frequencies(dimensions: dict[str, Json]) -> torch.Tensor:
    """By the suite's meaning of theta and scaling."""
    head_dim = dimensions["head_dim"]
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = dimensions["rope_theta"] ** -exponents
    scaling = dimensions["rope_scaling"]
    if scaling["type"] == 0:
        return frequencies
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = torch.zeros_like(frequencies)  # that is not stretched
    if scaling["type"] == 2:
        turns = scaling["original_positions"] * frequencies / (2 * torch.pi)
        share = ((turns - low) / (high - low)).clamp(0, 1)
    return share * frequencies + (1 - share) * frequencies / scaling["factor"]


def model_of(file: Path) -> dict[str, Json]:
    """What transformers builds from a file, as its modules have it."""
    config = AutoConfig.from_pretrained(file)
    n_layers = config.num_hidden_layers
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    body, layers = model.model, model.model.layers
    embedding = body.embed_tokens
    assert len(layers) == n_layers

    def all_layers(value: Any) -> Json:  # noqa: ANN401
        values = [value(layer) for layer in layers]
        assert all(one == values[0] for one in values), values
        return values[0]

    def has_biases(part: str, names: str) -> bool:
        found = {
            getattr(getattr(layer, part), name).bias is not None
            for layer in layers
            for name in names.split()
        }
        assert len(found) == 1
        return found.pop()

    head_dim = all_layers(lambda layer: layer.self_attn.head_dim)
    if config.model_type == "mistral":  # its layers ask the configuration
        window = config.sliding_window
    else:
        window = all_layers(lambda layer: getattr(layer.self_attn, "sliding_window", None))
    rotary = type(body.rotary_emb)(config, device="cpu")
    assert rotary.attention_scaling == 1
    return {
        "vocab_size": model.lm_head.out_features,
        "hidden_dim": embedding.embedding_dim,
        "n_layers": n_layers,
        "n_heads": all_layers(lambda layer: layer.self_attn.q_proj.out_features) // head_dim,
        "n_kv_heads": all_layers(lambda layer: layer.self_attn.v_proj.out_features) // head_dim,
        "intermediate_dim": all_layers(lambda layer: layer.mlp.down_proj.in_features),
        "norm_eps": body.norm.variance_epsilon,
        "padding_token": embedding.padding_idx,
        "head_dim": head_dim,
        "tied_embeddings": model.lm_head.weight is embedding.weight,
        "qkv_bias": has_biases("self_attn", "q_proj k_proj v_proj"),
        "o_bias": has_biases("self_attn", "o_proj"),
        "mlp_bias": has_biases("mlp", "gate_proj up_proj down_proj"),
        "qk_norm": all_layers(lambda layer: hasattr(layer.self_attn, "k_norm")),
        "sliding_window": window,
        "inverse_frequencies": rotary.inv_freq,
    }


def check_same(found: dict[str, Json], wanted: dict[str, Json]) -> None:
    found, wanted = dict(found), dict(wanted)
    frequencies = found.pop("inverse_frequencies").double()
    expected = wanted.pop("inverse_frequencies").double()
    assert found == wanted
    assert torch.allclose(frequencies, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", VERSION_4)
def test_dimensions_are_those_of_the_model_that_transformers_builds(
    name: str, described: dict[str, Json], tmp_path: Path
) -> None:
    [path] = write_all(tmp_path, {"config": VERSION_4[name]})
    wanted = model_of(path)
    dimensions = dict(described[name])
    written = tmp_path / "written.json"
    written.write_text(dimensions.pop("written"))
    usual = dimensions["hidden_dim"] / dimensions["n_heads"]
    own = dimensions.pop("own_head_dim")
    assert own != usual, "equal models compare equal"
    dimensions["head_dim"] = own or usual
    dimensions["inverse_frequencies"] = inverse_frequencies(dimensions)
    del dimensions["rope_theta"], dimensions["rope_scaling"]
    check_same(dimensions, wanted)
    check_same(model_of(written), wanted)


def test_files_that_transformers_fails_on_are_refused(tmp_path: Path) -> None:
    program = built_program("tests/fuzzing/describe_configs")
    for model in ("qwen2", "qwen3"):
        file = {"model_type": model} | SIZES | {"num_key_value_heads": 2, "head_dim": None}
        [path] = write_all(tmp_path, {model: file})
        with pytest.raises(TypeError):
            model_of(path)
        run = subprocess.run([program, path], capture_output=True, text=True, check=False)
        assert run.returncode == 2
        assert f"{path}: head_dim = null: must be an integer" in run.stderr
