"""Training learns: from text, from saved weights, in micro-batches, in every variant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from train_program import ON_CPU, SMALL_BATCH, Json, Program, losses, small

TEXT = "the quick brown fox jumps over the lazy dog; " * 500
FAST = {"learning_rate": "0.01"}


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "fox.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


def test_text_is_learned_and_evaluated(program: Program, tmp_path: Path, text_file: Path) -> None:
    options = small(num_steps=90, data=str(text_file), eval_interval=30, eval_iters=2, **FAST)
    completed = program.run(*options, f"--output-dir={tmp_path}")
    assert completed.returncode == 0, completed.stderr
    summary = program.trained(tmp_path, *options)
    found = losses(summary)
    assert summary["configuration"]["data"] == "fox.txt"
    assert sum(found[-5:]) < 0.6 * sum(found[:5])
    evaluated = {s["step"]: s["evaluation_loss"] for s in summary["steps"] if s["evaluation_loss"]}
    assert list(evaluated) == [30, 60, 90]
    assert evaluated[90] < evaluated[30]
    said = re.findall(r"^Evaluation after step (\d+): Loss = ([\d.]+)$", completed.stdout, re.M)
    assert said == [(str(step), f"{loss:.4f}") for step, loss in evaluated.items()]


def test_text_is_evaluated_by_default(program: Program, tmp_path: Path, text_file: Path) -> None:
    summary = program.trained(tmp_path, *small(num_steps=101, data=str(text_file)))
    evaluated = [s["step"] for s in summary["steps"] if s["evaluation_loss"] is not None]
    assert evaluated == [100]


def test_each_step_reads_another_part_of_the_text(
    program: Program, tmp_path: Path, text_file: Path
) -> None:
    # with next to no learning the loss varies with what was read alone
    options = small(num_steps=6, data=str(text_file), learning_rate="1e-30")
    assert len(set(losses(program.trained(tmp_path, *options)))) == 6


def test_synthetic_tokens_are_learned(program: Program, tmp_path: Path) -> None:
    found = losses(program.trained(tmp_path, *small(num_steps=20, **FAST)))
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.5 * found[0]


def test_a_seed_decides_every_bit(program: Program, tmp_path: Path) -> None:
    def run(seed: int) -> list[float]:
        options = [o for o in small(num_steps=8, seed=seed) if not o.startswith("--threads")]
        return losses(program.trained(tmp_path, *options, "--threads=2", "--deterministic"))

    first = run(42)
    assert run(42) == first
    assert [a == b for a, b in zip(run(43), first, strict=True)] == [False] * 8


def test_determinism_is_recorded(program: Program, tmp_path: Path) -> None:
    summary = program.trained(tmp_path, *small(num_steps=1), "--deterministic")
    assert summary["configuration"]["deterministic"] is True
    assert summary["context"]["settings"]["deterministic_algorithms"] == "true"


def test_a_run_goes_on_from_saved_weights(program: Program, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    # one step of seven sees the loss of the weights that six steps made
    whole = losses(program.trained(tmp_path, *small(num_steps=7, **FAST)))
    part = program.trained(tmp_path, *small(num_steps=6, **FAST), f"--save-weights={weights}")
    assert losses(part) == whole[:6]
    assert {path.name for path in weights.iterdir()} == {"config.json", "model.safetensors"}
    batch = [f"--{name}={value}" for name, value in SMALL_BATCH.items()]
    continued = program.trained(tmp_path, *ON_CPU, *batch, "--num-steps=2", f"--weights={weights}")
    assert continued["model"] == part["model"]
    assert losses(continued)[0] == pytest.approx(whole[6], rel=1e-6)
    assert losses(continued)[1] < whole[6]


def test_micro_batches_make_the_same_step_in_less_memory(program: Program, tmp_path: Path) -> None:
    # every window of such a text is the same, so four samples twice are eight samples
    file = tmp_path / "text"
    file.write_bytes(b"a" * 2000)
    options = {"num_steps": 6, "data": str(file), "seq_len": 64, **FAST}
    whole = program.trained(tmp_path / "w", *small(batch_size=8, **options))
    halves = program.trained(
        tmp_path / "h", *small(batch_size=4, gradient_accumulation_steps=2, **options)
    )
    assert losses(halves) == pytest.approx(losses(whole), rel=1e-4)
    assert losses(halves)[-1] < 0.9 * losses(halves)[0]
    peaks = [run["summary"]["peak_memory_bytes"] for run in (halves, whole)]
    assert peaks[0] < 0.7 * peaks[1]
    assert halves["model"]["flops_per_step"] == whole["model"]["flops_per_step"]


def test_micro_batches_are_different_samples(program: Program, tmp_path: Path) -> None:
    options = [small(num_steps=1), small(num_steps=1, gradient_accumulation_steps=2)]
    one, two = [losses(program.trained(tmp_path, *o))[0] for o in options]
    # the mean over two batches, one of which is the other run's
    assert one != two
    assert two == pytest.approx(one, rel=0.1)


@pytest.fixture(scope="module")
def baseline(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Json:
    return program.trained(tmp_path_factory.mktemp("baseline"), *small(num_steps=5, **FAST))


@pytest.mark.parametrize("variant", ["fused", "optimized"])
def test_variants_learn_the_same(
    program: Program, tmp_path: Path, baseline: Json, variant: str
) -> None:
    options = small(num_steps=5, variant=variant, **FAST)
    summary = program.trained(tmp_path, *options)
    assert losses(summary) == pytest.approx(losses(baseline), rel=1e-3)
    assert summary["configuration"]["variant"] == variant
    assert {"qkv", "gate_up"} < set(summary["configuration"]["switches"].split("+"))
    assert baseline["configuration"]["switches"] == "baseline"


@pytest.mark.parametrize(
    ("options", "dtype"),
    [(["--use-amp"], "amp_bf16"), (["--use-amp", "--dtype=amp_bf16"], "amp_bf16")],
)
def test_mixed_precision_is_close_but_not_the_same(
    program: Program, tmp_path: Path, baseline: Json, options: list[str], dtype: str
) -> None:
    summary = program.trained(tmp_path, *small(num_steps=5, **FAST), *options)
    assert summary["configuration"]["dtype"] == dtype
    assert losses(summary) != losses(baseline)
    assert losses(summary) == pytest.approx(losses(baseline), rel=0.02)
    # weights stay in float32
    assert summary["model"]["model_size_bytes"] == baseline["model"]["model_size_bytes"]
