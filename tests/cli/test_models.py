"""Sizes that others published, as tiny_llama_bench, tiny_llama_train and tiny_llama_scaling take
them: every name of fixtures/models.json, whose parameters the program counts as published; a
config.json that --config names, of which nothing else is read; what results say of a rank's share;
and what is refused."""

import json
import os
import re
from pathlib import Path

import pytest
from cli_program import BASELINE, QUICK, Program
from jsonschema import Draft202012Validator

from built_programs import ON_CPU, PROJECT_ROOT, Json, built_program, message_of, read_json
from tinyllama_tools.data.profiles import FEATURES
from tinyllama_tools.models.roofline import step_gemms

MODELS: dict[str, Json] = read_json(PROJECT_ROOT / "fixtures/models.json")["models"]
PARTS = ["--components=block,loss,full_step", BASELINE, *ON_CPU]
DRY_RUN = [*PARTS, "--dry-run", "--benchmark_format=json"]
# one layer of a model, so small that it runs
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
}
PARAMETERS = 2 * 300 * 32 + 32 + 32 * (2 * 32 + 2 * 16 + 3 * 48 + 2)


@pytest.fixture
def program() -> Program:
    return Program(built_program("benchmarks/tiny_llama_bench"))


def write(place: Path, config: Json) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(config), encoding="utf-8")
    return place


def dimensions(config: Json) -> dict[str, int]:
    """A config.json's sizes by the names that fixtures/problem_sizes.json has for them."""
    names = {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "intermediate_dim",
        "head_dim": "head_dim",
    }
    return {ours: config[theirs] for theirs, ours in names.items() if theirs in config}


def cases_of(program: Program, *options: str) -> dict[str, Json]:
    """The cases of a dry run, by name."""
    done = program.run(*DRY_RUN, *options)
    assert done.returncode == 0, done.stderr
    return {case["name"]: case for case in json.loads(done.stdout)["cases"]}


def test_every_published_model_dry_runs_with_the_published_parameters(program: Program) -> None:
    assert len(MODELS) >= 30
    cases = cases_of(program, f"--sizes={','.join(MODELS)}")
    counted = {}
    for name, case in cases.items():
        component, *_, size, _, batch, seq = name.split("/")
        assert (batch, seq) == ("batch:1", "seq:2048")
        assert case["model_flops"] > 0 and case["predicted_memory_bytes"] > 0
        if component == "full_step":
            counted[size] = case["parameters"]
            # the tools count the GEMMs of a step on their own
            gemms = step_gemms(dimensions(MODELS[size]["config"]), 1, 2048)
            assert sum(gemm.flops for gemm in gemms) == case["model_flops"], size
    assert counted == {name: model["parameters"] for name, model in MODELS.items()}


def test_each_model_says_where_it_is_from() -> None:
    page = (PROJECT_ROOT / "docs/models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| ([\d,]+) \| \[[^]]+\]\(([^)]+)\) \|", page, re.MULTILINE)
    assert rows == [
        (name, f"{model['parameters']:,}", model["source"]) for name, model in MODELS.items()
    ]
    for model in MODELS.values():
        assert model["source"].startswith("https://huggingface.co/")
        assert model["checked"]


def test_sizes_and_a_config_in_one_run(program: Program, tmp_path: Path) -> None:
    """Results say which features a size has, and of one that has none what they always said."""
    file = write(tmp_path / "config.json", CONFIG | {"head_dim": 16})
    shape = ["--components=rms_norm", "--passes=forward", BASELINE, "--seq=8", "--batch=2", *ON_CPU]
    out = tmp_path / "out.json"
    sizes = "--sizes=tiny,custom,llama-3.2-1b"
    _, result = program.measure(out, *shape, f"--config={file}", sizes, "--verify=off")
    by_name = result["context"]["sizes"]
    plain = "vocab_size hidden_dim n_layers n_heads n_kv_heads intermediate_dim norm_eps rope_theta"
    assert list(by_name["tiny"]) == plain.split()
    assert by_name["custom"]["head_dim"] == 16 and by_name["custom"]["rope_theta"] == 500000
    model = by_name["llama-3.2-1b"]
    assert model["tied_embeddings"] is True
    assert model["rope_scaling"]["rope_type"] == "llama3" and model["rope_scaling"]["factor"] == 32
    assert set(model) <= {*plain.split(), *FEATURES}
    assert "weights" not in result["context"]


def test_results_say_whose_share_they_are_and_of_which_model(
    program: Program, tmp_path: Path
) -> None:
    choice = ["--components=rms_norm", "--passes=forward", BASELINE, "--seq=8", "--batch=2"]
    choice += [
        *ON_CPU,
        "--sizes=tiny,custom",
        f"--config={write(tmp_path / 'config.json', CONFIG)}",
    ]
    _, whole = program.measure(tmp_path / "whole.json", *choice, "--verify=off")
    ranks = ("--tensor-parallel=4", "--pipeline-parallel=1")
    _, result = program.measure(tmp_path / "share.json", *choice, *ranks, "--verify=off")
    done = program.run(*choice, *ranks, "--dry-run", "--benchmark_format=json")
    sizes = result["context"]["sizes"]
    assert json.loads(done.stdout)["sizes"] == sizes
    assert list(sizes) == ["tiny-tp4", "custom-tp4"]
    for name, of in whole["context"]["sizes"].items():
        assert "share" not in of
        share = sizes[f"{name}-tp4"]
        assert share["share"] == {"tensor_parallel": 4, "pipeline_parallel": 1, "of": of}
        assert 4 * share["n_heads"] == of["n_heads"] and share["whole_vocab"] == of["vocab_size"]
    validator = Draft202012Validator(read_json(PROJECT_ROOT / "results/schema.json"))
    assert [error.message for error in validator.iter_errors(result)] == []
    del sizes["tiny-tp4"]["share"]["of"]
    assert [error.message for error in validator.iter_errors(result)] == [
        "'of' is a required property"
    ]


@pytest.mark.parametrize("place", ["config.json", ".", "models--a--b"])
def test_a_config_is_a_file_or_a_folder_of_which_nothing_else_is_read(
    program: Program, tmp_path: Path, place: str
) -> None:
    """The weights beside it claim 100 GB, and are no safetensors."""
    folder = tmp_path / "models--a--b/snapshots/abc" if place == "models--a--b" else tmp_path
    write(folder / "config.json", CONFIG)
    for shard in range(2):
        with (folder / f"model-0000{shard + 1}-of-00002.safetensors").open("wb") as file:
            os.truncate(file.fileno(), 50 * 10**9)
    (folder / "model.safetensors.index.json").write_text("{", encoding="utf-8")
    cases = cases_of(program, f"--config={tmp_path / place}")
    assert cases["full_step/train/baseline/custom/f32/batch:8/seq:128"]["parameters"] == PARAMETERS


def test_a_wrong_key_of_a_large_checkpoint_is_told_at_once(
    program: Program, tmp_path: Path
) -> None:
    write(tmp_path / "config.json", CONFIG | {"hidden_size": 30})
    with (tmp_path / "model.safetensors").open("wb") as file:
        os.truncate(file.fileno(), 100 * 10**9)
    for option in ("--config", "--weights"):
        peak, done = program.peak_memory(f"{option}={tmp_path}", "--list", *ON_CPU)
        assert done.returncode == 2 and "config.json: " in done.stderr
        assert "hidden_size = 30" in done.stderr
        assert peak < 1 << 30


def test_long_sequences_are_warned_of(program: Program, tmp_path: Path) -> None:
    file = write(tmp_path / "config.json", CONFIG)
    golden = PROJECT_ROOT / "fixtures/golden/gqa_groups_2"
    options = ["--dry-run", "--components=block", BASELINE, *ON_CPU]
    for chosen, words in (
        ((f"--config={file}",), "sequences of 128 tokens are longer than max_position_embeddings"),
        (("--sizes=tinyllama-1.1b", "--seq=4096"), "tinyllama-1.1b: sequences of 4096 tokens"),
        ((f"--weights={golden}", "--seq=1024,2049,2050"), "sequences of 2050 tokens are longer"),
    ):
        done = program.run(*options, *chosen)
        (warning,) = done.stderr.splitlines()
        assert done.returncode == 0 and words in warning and "max_position_embeddings = " in warning
    assert "warning" not in program.run(*options, "--sizes=tinyllama-1.1b").stderr


# What --config names, relative to the folder below, further options, and what the message says.
REFUSED = """\
none.json                       | --config: | none.json
empty                           | --config: | empty: is empty: name a config.json, or a folder
weights                         | weights: holds model.safetensors: name a config.json
weights/model.safetensors       | has 2000000 bytes: must have at most
cut.json                        | cut.json: is not valid JSON
mamba.json                      | mamba.json: model_type = "mamba":
heads.json                      | heads.json: num_attention_heads = 5: must divide hidden_size = 32
right.json --weights=weights    | right.json: not with --weights weights, whose own config.json
right.json --hidden-dim=64      | --hidden-dim 64: must be 32 or left out with --config | right.json
right.json --sizes=tiny         | right.json: is size custom, which --sizes tiny does not name
"""


@pytest.mark.parametrize("line", REFUSED.splitlines())
def test_a_bad_config_is_refused(program: Program, tmp_path: Path, line: str) -> None:
    for name, config in (
        ("mamba", CONFIG | {"model_type": "mamba"}),
        ("heads", CONFIG | {"num_attention_heads": 5, "num_key_value_heads": 5}),
        ("right", CONFIG),
    ):
        write(tmp_path / f"{name}.json", config)
    (tmp_path / "cut.json").write_text(json.dumps(CONFIG)[:-9], encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/model.safetensors").write_bytes(bytes(2_000_000))
    given, *parts = (part.strip() for part in line.split(" | "))
    place, *options = given.split()
    done = program.run(f"--config={tmp_path / place}", *options, "--list", *ON_CPU, timeout=30)
    assert [part for part in parts if part not in message_of(done)] == []
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["tiny_llama_train", "tiny_llama_scaling"])
def test_the_other_programs_take_them_too(name: str, tmp_path: Path) -> None:
    other = write(tmp_path / "a/b.json", {"model_type": "mamba"})
    (tmp_path / "empty").mkdir()
    program = Program(built_program(f"benchmarks/{name}"))
    for option, parts in (
        (
            "--size=llama-3.1-8",
            ["--size 'llama-3.1-8': must be one of tiny", "; the nearest is ll"],
        ),
        (f"--config={tmp_path / 'empty'}", ["--config: ", "is empty: name a config.json"]),
        (f"--config={other}", ["b.json: model_type = "]),
    ):
        message = message_of(program.run(option, *ON_CPU, timeout=30))
        assert [part for part in parts if part not in message] == []
    help_text = program.run("--help").stdout
    assert "--config" in help_text and "docs/models.md" in help_text


def test_training_with_a_config_saves_it_with_the_weights(tmp_path: Path) -> None:
    file = write(tmp_path / "config.json", CONFIG | {"bos_token_id": 7})
    program = Program(built_program("benchmarks/tiny_llama_train"))
    options = ["--batch-size=2", "--seq-len=8", "--num-steps=2", f"--save-weights={tmp_path / 'w'}"]
    done = program.run(*ON_CPU, f"--config={file}", *options, f"--output-dir={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    summary = read_json(tmp_path / "out/performance_summary.json")
    assert summary["configuration"]["size"] == "custom"
    assert summary["model"]["total_parameters"] == PARAMETERS
    assert not set(summary["configuration"]) & set(FEATURES)
    saved = read_json(tmp_path / "w/config.json")
    assert saved["bos_token_id"] == 7 and saved["rope_theta"] == 500000
    again = program.run(*ON_CPU, *options[:3], f"--weights={tmp_path / 'w'}")
    assert again.returncode == 0, again.stderr


def test_unknown_size(program: Program) -> None:
    message = message_of(program.run("--sizes=tiny,LLaMA-3.1-8B-x", "--list", *ON_CPU, *QUICK))
    assert "--sizes 'LLaMA-3.1-8B-x': must be one of tiny, small" in message
    assert ", or of the published models llama-2-7b, " in message
    assert message.rstrip().endswith("; the nearest is llama-3.1-8b")


@pytest.mark.parametrize(("family", "norms"), [("qwen3", True), ("llama", False)])
def test_a_switch_of_norms_changes_the_attention_that_norms_q_and_k(
    program: Program, tmp_path: Path, family: str, norms: bool
) -> None:
    config = write(tmp_path / "config.json", CONFIG | {"model_type": family, "head_dim": 8})
    names = program.names(f"--config={config}", "--variants=fused_norm", *ON_CPU)
    assert any(name.startswith("block/") for name in names)
    assert any(name.startswith("attention/") for name in names) == norms
