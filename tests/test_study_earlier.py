"""What scripts/study takes from earlier studies, and what it leaves out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from study_runs import folders, page, run_study
from study_stand_in import GIB, PlayedPredictor
from training_figures import Figures
from training_stand_in import PlayedProgram, set_key


def test_earlier_sizes_join_the_table_where_the_settings_agree(tmp_path: Path) -> None:
    run_study(tmp_path, "tiny")
    next(tmp_path.glob("performance_study_*")).unlink()
    run_study(tmp_path, "small")
    text = page(tmp_path)
    assert "| tiny " in text and "From earlier studies" in text
    next(tmp_path.glob("performance_study_*")).unlink()
    run_study(tmp_path, "medium", "--variant=sdpa", "--max-minutes=1e6")
    assert "| tiny " not in page(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"context.threads": 64}, {"context.device.name": "Another CPU"}]
)
def test_earlier_sizes_of_another_machine_stay_out(
    tmp_path: Path, changes: Mapping[str, object]
) -> None:
    run_study(tmp_path, "tiny", program=PlayedProgram(changes=changes))
    next(tmp_path.glob("performance_study_*")).unlink()
    run_study(tmp_path, "small")
    assert "| tiny " not in page(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"summary.steps_completed": 3, "summary.final_loss": None, "steps.2.loss": None},
        {"summary.final_loss": None},
        {"summary.steps_completed": 49, "summary.interrupted": True},
    ],
)
def test_an_earlier_run_that_did_not_finish_stays_out(
    tmp_path: Path, changes: Mapping[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(tmp_path, "tiny")
    next(tmp_path.glob("performance_study_*")).unlink()
    file = folders(tmp_path)[0] / "performance_summary.json"
    summary = json.loads(file.read_text())
    for key, value in changes.items():
        set_key(summary, key, value)
    file.write_text(json.dumps(summary))
    capsys.readouterr()
    assert run_study(tmp_path, "tiny", "--dry-run") == 0
    assert "no time is expected" in capsys.readouterr().out
    run_study(tmp_path, "small")
    assert "| tiny " not in page(tmp_path)


def test_an_earlier_run_without_average_predicts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(tmp_path, "tiny")
    file = folders(tmp_path)[0] / "performance_summary.json"
    summary = json.loads(file.read_text())
    summary["summary"]["average_step_seconds"] = None
    file.write_text(json.dumps(summary))
    capsys.readouterr()
    assert run_study(tmp_path, "tiny", "--dry-run") == 0
    assert "no time is expected" in capsys.readouterr().out


def test_a_dry_run_expects_the_rate_of_earlier_studies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(tmp_path, "tiny", "small")
    rate = (
        Figures(8, 256, "small").flops
        / json.loads((folders(tmp_path)[0] / "performance_summary.json").read_text())["summary"][
            "average_step_seconds"
        ]
    )
    capsys.readouterr()
    roomy = PlayedPredictor(64 * GIB)
    assert run_study(tmp_path, "small", "medium", "--dry-run", predictor=roomy) == 0
    said = capsys.readouterr().out
    assert f"Expected from {rate / 1e9:,.1f} GFLOP/s attained in performance_results_small" in said
    assert "on Made-up CPU" in said
    assert "more than --max-minutes 15" in next(x for x in said.split("\n") if "| medium" in x)
    assert run_study(tmp_path, "small", "--dry-run", "--dtype=bf16") == 0
    assert "no time is expected" in capsys.readouterr().out
