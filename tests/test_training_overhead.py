"""What the training program adds to a step: ratios of sides in turn, and what they prove."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tinyllama_tools import training_overhead, training_overhead_options
from tinyllama_tools.suite_run import PROJECT, SuiteError
from tinyllama_tools.training_overhead import compare, step_seconds, table
from tinyllama_tools.training_overhead_options import parse_options
from tinyllama_tools.training_run import TrainingError


def summary(plain: float, profiled: float) -> dict[str, object]:
    """Five steps, of which the first is slow and two are profiled."""
    times = [(9.0, False), (plain, False), (plain, False), (profiled, True), (profiled, True)]
    return {
        "steps": [
            {"step": n, "time_seconds": t + 5, "evaluation_seconds": 5, "profiled": p}
            for n, (t, p) in enumerate(times, start=1)
        ]
    }


def test_the_first_step_and_evaluations_do_not_count() -> None:
    assert step_seconds(summary(1.0, 2.0), False) == pytest.approx(1.0)
    assert step_seconds(summary(1.0, 2.0), True) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [([1.0] * 8, "yes"), ([1.1] * 8, "no"), ([1.0, 1.1] * 4, "not shown")],
)
def test_a_limit_holds_only_where_the_whole_interval_keeps_it(
    ratios: list[float], verdict: str
) -> None:
    turns = [{"tiny_llama_train": (r, 1.0), "memory": (1.0, 1.0)} for r in ratios]
    own, memory = compare(turns)
    assert (own.against, own.limit, own.holds()) == ("full_step", 1.02, verdict)
    assert (memory.limit, memory.holds()) == (1.15, "yes")
    assert verdict in table("baseline", [own])[2]


BAD_OPTIONS = (
    (["--steps=3"], "--steps 3"),
    (["--turns=0"], "'0'"),
    (["--dtype=f64"], "amp_bf16"),
    (["--variants=baseline,"], "'': must be a name"),
    (["--variants=No Name"], "'No Name': must be a name"),
)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "amp_bf16", "amp_f16"])
def test_options_are_read(dtype: str) -> None:
    options = parse_options([f"--dtype={dtype}", "--variants=fused, qkv+sdpa,fused"])
    assert (options.dtype, options.variants) == (dtype, ("fused", "qkv+sdpa"))


@pytest.mark.parametrize(
    ("error", "status"),
    [(TrainingError("refused", 2), 2), (TrainingError("crashed"), 1), (SuiteError("bad"), 1)],
)
def test_the_exit_status_is_the_errors(
    error: Exception,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(training_overhead, "context", fail)
    assert training_overhead.main([]) == status
    assert f"scripts/training_overhead: {error}" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reference").write_text("no folder")
    monkeypatch.setattr(training_overhead, "RESULTS", tmp_path)
    monkeypatch.setattr(training_overhead, "context", lambda _: {})
    monkeypatch.setattr(training_overhead, "measure", lambda *_: {})
    monkeypatch.setattr(training_overhead_options, "changed_files", lambda _: "")
    assert training_overhead.main(["--publish=box"]) == 2
    assert str(tmp_path / "reference") in capsys.readouterr().err


def test_the_script_refuses_before_the_set_up() -> None:
    command = [str(PROJECT / "scripts/training_overhead"), "--dtype=f64"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    # the set-up would have said what it does
    assert found.stderr.startswith("usage:")
    assert not found.stdout


def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in BAD_OPTIONS:
        with pytest.raises(SystemExit) as refused:
            training_overhead.main(arguments)
        assert refused.value.code == 2
        assert words in capsys.readouterr().err
