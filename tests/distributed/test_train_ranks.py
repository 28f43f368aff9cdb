"""tiny_llama_train over several ranks computes what one process with all samples computes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from rank_programs import (
    ON_CPU,
    SMALL_MODEL,
    Json,
    Ranks,
    assert_all_well,
    run_ranks,
    surroundings,
)
from safetensors.numpy import load_file

from tinyllama_tools.data.profiles import SCHEMA

STEPS = 4
OPTIONS = (
    *ON_CPU,
    *SMALL_MODEL,
    "--batch-size=2",
    "--seq-len=8",
    f"--num-steps={STEPS}",
    "--learning-rate=1e-3",
)


def summary(folder: Path) -> Json:
    return json.loads((folder / "performance_summary.json").read_text(encoding="utf-8"))


def losses(folder: Path) -> list[float]:
    return [step["loss"] for step in summary(folder)["steps"]]


def one_process(program: Path, folder: Path, micro_batches: int) -> None:
    """The samples of so many ranks, one after the other."""
    finished = subprocess.run(
        [
            str(program),
            *OPTIONS,
            f"--gradient-accumulation-steps={micro_batches}",
            f"--output-dir={folder}",
            f"--save-weights={folder / 'weights'}",
        ],
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


def largest_difference(one: Path, other: Path) -> float:
    """Of weights, over the largest magnitude of each tensor."""
    first = load_file(one / "weights/model.safetensors")
    second = load_file(other / "weights/model.safetensors")
    assert first.keys() == second.keys()
    return max(
        float(np.abs(first[name] - second[name]).max() / np.abs(first[name]).max())
        for name in first
    )


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (2, ()),
        (2, ("--no-overlap",)),
        (3, ("--bucket-mb=0.01",)),
        (4, ()),
        (2, ("--shard-optimizer",)),
        (3, ("--shard-optimizer", "--bucket-mb=0.01")),
    ],
)
def test_losses_and_weights_are_those_of_one_process_with_all_samples(
    train_program: Path, tmp_path: Path, ranks: int, more: tuple[str, ...]
) -> None:
    one_process(train_program, tmp_path / "one", ranks)
    many = tmp_path / "many"
    ends = run_ranks(
        train_program,
        ranks,
        *OPTIONS,
        *more,
        f"--output-dir={many}",
        f"--save-weights={many / 'weights'}",
    )
    assert_all_well(ends)
    assert losses(many) == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    # AdamW's first step is the sign of a gradient: where that is nearly 0, rounding decides
    assert largest_difference(tmp_path / "one", many) < 2e-2
    found = summary(many)["distributed"]
    assert found["world_size"] == ranks
    assert found["weights_are_identical"] is True
    assert found["shard_optimizer"] is ("--shard-optimizer" in more)
    # scripts/profile reads what is like the schema only
    jsonschema.validate(summary(many), json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_micro_batches_of_ranks_are_those_of_one_process(
    train_program: Path, tmp_path: Path
) -> None:
    one_process(train_program, tmp_path / "one", 4)
    ends = run_ranks(
        train_program,
        2,
        *OPTIONS,
        "--gradient-accumulation-steps=2",
        f"--output-dir={tmp_path / 'many'}",
    )
    assert_all_well(ends)
    assert losses(tmp_path / "many") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_speed_is_that_of_all_ranks_together(train_program: Path, tmp_path: Path) -> None:
    assert_all_well(run_ranks(train_program, 2, *OPTIONS, f"--output-dir={tmp_path}"))
    found = summary(tmp_path)["summary"]
    in_a_step = found["samples_per_second"] * found["average_step_seconds"]
    assert in_a_step == pytest.approx(2 * 2, rel=0.01)


def test_a_signal_to_one_rank_ends_all_after_the_same_step(
    train_program: Path, tmp_path: Path
) -> None:
    endless = [*OPTIONS[:-2], "--num-steps=1000000", f"--output-dir={tmp_path}"]
    with Ranks(train_program, 2, [endless, endless]) as started:
        output = started.processes[0].stdout
        assert output is not None
        for line in output:
            if line.startswith("Step 5/"):
                break
        started.processes[1].terminate()
        ends = started.ends()
    assert [end.status for end in ends] == [130, 130], [end.error for end in ends]
    assert summary(tmp_path)["summary"]["interrupted"] is True
    assert summary(tmp_path)["distributed"]["weights_are_identical"] is True


def test_one_process_has_nobody_to_share_an_optimizer_with(train_program: Path) -> None:
    finished = subprocess.run(
        [str(train_program), *OPTIONS, "--shard-optimizer"],
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 2
    assert "--shard-optimizer" in finished.stderr
