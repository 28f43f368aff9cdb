"""--weights: components run with the weights of a folder; a bad folder ends the run at once."""

import json
import shutil
from pathlib import Path

import pytest
from cli_program import (
    BASELINE,
    COMPONENTS,
    PROJECT_ROOT,
    QUICK,
    RUN,
    Json,
    Program,
    message_of,
    read_result,
)
from jsonschema import Draft202012Validator

GOLDEN = PROJECT_ROOT / "fixtures" / "golden" / "gqa_groups_2"
SHORT = ["--batch=2", "--seq=8", BASELINE]
DTYPES = "--dtypes=f32,bf16,f16,amp_bf16,amp_f16"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "my weights"
    target.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name, target / name)
    return target


def change_config(folder: Path, **changes: Json) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(config | changes), encoding="utf-8")


def refusal(program: Program, folder: Path, *arguments: str) -> str:
    """The message of a run that must end before anything is measured."""
    completed = program.run(f"--weights={folder}", *RUN, *SHORT, *arguments, timeout=60)
    assert "peak" not in completed.stderr
    return message_of(completed)


def test_every_component_is_proved_with_them(program: Program, folder: Path) -> None:
    arguments = [f"--weights={folder}", *SHORT, *RUN, DTYPES, "--verify=only"]
    completed = program.run(*arguments)
    assert completed.returncode == 0, completed.stderr
    verdicts = [line.split()[-1] for line in completed.stdout.splitlines()]
    listed = [name for name in program.names(*arguments) if not name.startswith("peak/")]
    assert len(verdicts) == len(listed)
    assert set(verdicts) == {"proved"}


def test_they_are_the_size_custom(program: Program, folder: Path) -> None:
    names = program.names(f"--weights={folder}", BASELINE)
    cases = [name for name in names if not name.startswith("peak/")]
    assert {name.split("/")[0] for name in cases} >= set(COMPONENTS)
    assert all("/baseline/custom/f32/batch:8/seq:128" in name for name in cases)
    same = ["--sizes=custom", "--hidden-dim=64", "--n-heads=4", "--vocab-size=37"]
    assert program.names(f"--weights={folder}", BASELINE, *same) == names
    table = program.run(f"--weights={folder}", *RUN, "--components=full_step", "--dry-run")
    assert table.returncode == 0, table.stderr
    parameters = 2 * 37 * 64 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 19 * 64)
    assert f" {parameters} " in table.stdout


def test_result_says_which_but_not_where(
    program: Program,
    folder: Path,
    tmp_path: Path,
    validator: Draft202012Validator,
) -> None:
    out, journal = tmp_path / "out.json", tmp_path / "with_weights.jsonl"
    choice = [f"--weights={folder}", *SHORT, *RUN, "--components=ffn", "--passes=forward"]
    completed = program.run(*choice, *QUICK, f"--benchmark_out={out}", f"--journal={journal}")
    assert completed.returncode == 0, completed.stderr
    result = read_result(out)
    assert not list(validator.iter_errors(result))
    weights = result["context"]["weights"]
    assert (weights["hidden_dim"], weights["n_layers"], weights["vocab_size"]) == (64, 2, 37)
    assert folder.name not in out.read_text(encoding="utf-8")
    assert folder.name not in journal.read_text(encoding="utf-8")

    again = program.run(*choice, *QUICK, f"--journal={journal}", "--resume")
    assert again.returncode == 0, again.stderr
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    message = message_of(program.run(*choice, *QUICK, f"--journal={journal}", "--resume"))
    assert "was written with weights = " in message
    assert weights["fingerprint"] in message


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--sizes=tiny", "--sizes 'tiny': must be custom or left out with --weights"),
        ("--hidden-dim=32", "--hidden-dim 32: must be 64 or left out with --weights"),
        ("--vocab-size=38", "--vocab-size 38: must be 37 or left out with --weights"),
    ],
)
def test_contradicting_options_are_refused(
    program: Program, folder: Path, option: str, expected: str
) -> None:
    assert expected in refusal(program, folder, option)


def test_missing_files_are_refused(program: Program, folder: Path) -> None:
    assert f"{folder / 'none' / 'config.json'}: cannot be read" in refusal(program, folder / "none")
    (folder / "model.safetensors").unlink()
    assert f"{folder}: has neither model.safetensors nor" in refusal(program, folder)
    (folder / "config.json").unlink()
    assert f"{folder / 'config.json'}: cannot be read" in refusal(program, folder)
    assert "--weights" in message_of(program.run("--weights", "", "--list"))


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_files_cut_short_are_refused(program: Program, folder: Path, kept: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert f"--weights: safetensors file {file}: " in refusal(program, folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"intermediate_size": 20}, "'model.layers.0.mlp.gate_proj.weight' has shape [19, 64]"),
        ({"num_hidden_layers": 3}, "'model.layers.2.self_attn.q_proj.weight' of shape [64, 64] is"),
        ({"num_hidden_layers": 1}, "'model.layers.1.input_layernorm.weight' is not part of the"),
        ({"num_hidden_layers": 10**6}, "1000000 layers, but there are only 21 tensors"),
    ],
)
def test_weights_of_another_size_are_refused(
    program: Program, folder: Path, changes: dict[str, int], expected: str
) -> None:
    change_config(folder, **changes)
    message = refusal(program, folder)
    assert f"{folder / 'model.safetensors'} does not hold the model of its config.json" in message
    assert expected in message


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model_type", "mistral", 'model_type = "mistral": must be "llama"'),
        ("tie_word_embeddings", True, "tie_word_embeddings = true: must be false"),
        ("rope_scaling", {"rope_type": "llama3"}, 'rope_scaling.rope_type = "llama3": only'),
        ("hidden_size", "64", 'hidden_size = "64": must be an integer'),
    ],
)
def test_other_models_are_refused(
    program: Program, folder: Path, key: str, value: Json, expected: str
) -> None:
    change_config(folder, **{key: value})
    assert f"--weights: {folder / 'config.json'}: {expected}" in refusal(program, folder)


def test_weights_too_large_for_a_type_fail_its_cases_only(program: Program, folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    # the first weight of the LM head, 2^100: bfloat16 holds it, float16 does not
    data = 8 + int.from_bytes(content[:8], "little")
    content[data : data + 2] = (0x7180).to_bytes(2, "little")
    file.write_bytes(content)
    arguments = ["--components=loss,embedding", "--passes=forward", "--verify=only"]
    dtypes = "--dtypes=f32,bf16,f16"
    completed = program.run(f"--weights={folder}", *SHORT, *RUN, dtypes, *arguments)
    failed = [line for line in completed.stdout.splitlines() if "FAILED" in line]
    assert completed.returncode == 1
    assert len(failed) == 1
    assert failed[0].startswith("loss/forward/baseline/custom/f16/")
    assert "'lm_head.weight' holds a value of magnitude 1.26765" in failed[0]
    assert "too large for Half" in failed[0]
