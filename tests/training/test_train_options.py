"""Every flag of the contract is accepted, explained and does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from train_program import ON_CPU, Program, small

FLAGS = (
    "batch-size seq-len num-steps learning-rate hidden-dim n-layers num-layers n-heads num-heads "
    "n-kv-heads intermediate-dim vocab-size size device dtype variant use-amp seed deterministic "
    "gradient-accumulation-steps output-dir log-interval eval-interval eval-iters validate-setup "
    "weights save-weights enable-pytorch-profiler profile-dir profile-steps profile-memory threads "
    "profile-operators profile-stacks enable-deepspeed-flops enable-flops-profiler data "
    "flops-profile-step"
)
# What a run's configuration says of an option that differs from every default.
RECORDED: dict[str, object] = {
    "batch_size": 3,
    "seq_len": 10,
    "num_steps": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 0.002,
    "dtype": "bf16",
    "variant": "qkv+sdpa",
    "seed": 7,
    "hidden_dim": 48,
    "n_layers": 3,
    "n_heads": 6,
    "n_kv_heads": 3,
    "intermediate_dim": 20,
    "vocab_size": 77,
}


def test_help_explains_every_flag(program: Program) -> None:
    completed = program.run("--help")
    assert completed.returncode == 0
    assert completed.stderr == ""
    explained = re.findall(r"^ +(?:-\w,)?(--[\w,-]+).*(?:\n +[a-z].*)?", completed.stdout, re.M)
    names = {name for names in explained for name in names.split(",")}
    assert {f"--{flag}" for flag in FLAGS.split()} - names == set()
    assert "Exit status: 0 done; 1 " in completed.stdout


def test_the_configuration_records_what_was_asked_for(program: Program, tmp_path: Path) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in RECORDED.items()]
    extra = ["--log-interval=2", "--eval-interval=2", "--eval-iters=3", "--deterministic"]
    summary = program.trained(tmp_path, *ON_CPU, *options, *extra)
    found = summary["configuration"]
    expected = RECORDED | {"size": "custom", "deterministic": True, "data": "synthetic"}
    assert {name: found[name] for name in expected} == expected
    assert found["switches"] == "qkv+sdpa"
    evaluated = [s["step"] for s in summary["steps"] if s["evaluation_loss"] is not None]
    assert evaluated == [2, 4]
    assert summary["context"]["threads"] == 1


def test_every_profiler_flag_in_one_run(program: Program, tmp_path: Path) -> None:
    profilers = [
        *("--enable-pytorch-profiler", "--profile-steps=2", "--profile-memory"),
        *("--profile-operators", "--profile-stacks", f"--profile-dir={tmp_path / 'profile'}"),
    ]
    options = small(num_steps=7, output_dir=str(tmp_path / "output"))
    completed = program.run(*options, *profilers)
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "profile" / "trace_step_5_7.json").is_file()
    assert (tmp_path / "output" / "performance_summary.json").is_file()


@pytest.mark.parametrize("flag", ["--enable-deepspeed-flops", "--enable-flops-profiler"])
def test_flops_profiler_under_either_name(program: Program, tmp_path: Path, flag: str) -> None:
    folder = f"--profile-dir={tmp_path}"
    completed = program.run(*small(), flag, "--flops-profile-step=3", folder, "--validate-setup")
    # a profiler that is on needs its folder
    assert f"output: {tmp_path}: can be written to" in completed.stdout


def test_aliases_are_the_same_options(program: Program, tmp_path: Path) -> None:
    options = ["--hidden-dim=32", "--intermediate-dim=16", "--vocab-size=40", "--batch-size=2"]
    aliases = ["--num-layers=3", "--num-heads=2", "--n-kv-heads=1", "--seq-len=8"]
    summary = program.trained(tmp_path, *ON_CPU, *options, *aliases, "--num-steps=1")
    assert summary["configuration"]["n_layers"] == 3
    assert summary["configuration"]["n_heads"] == 2


@pytest.mark.parametrize(("size", "batch", "seq"), [("tiny", 8, 128), ("small", 8, 256)])
def test_a_size_brings_its_batch_and_sequence(
    program: Program, size: str, batch: int, seq: int
) -> None:
    completed = program.run(f"--size={size}", "--validate-setup", "--device=cpu")
    assert f"batch {batch} x seq {seq} needs about" in completed.stdout


def test_files_go_nowhere_unless_asked(program: Program, tmp_path: Path) -> None:
    completed = program.run(*small(num_steps=2), folder=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert list(tmp_path.iterdir()) == []


def test_profiles_go_to_profiles_by_default(program: Program, tmp_path: Path) -> None:
    completed = program.run(*small(num_steps=3), "--profile-memory", folder=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["profiles"]
    assert (tmp_path / "profiles" / "memory_timeline.json").is_file()
