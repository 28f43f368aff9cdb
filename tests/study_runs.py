"""Runs scripts/study with played programs, and finds what it wrote."""

from __future__ import annotations

from pathlib import Path

from study_stand_in import PlayedPredictor
from tinyllama_tools.study.command import parse_options, study
from training_stand_in import PlayedProgram


def run_study(
    results: Path,
    *arguments: str,
    program: PlayedProgram | None = None,
    predictor: PlayedPredictor | None = None,
) -> int:
    options = parse_options([*arguments, f"--results={results}"])
    return study(
        options, program or PlayedProgram(), "scripts/study", predictor or PlayedPredictor()
    )


def folders(results: Path) -> list[Path]:
    return sorted(results.glob("performance_results_*"))


def page(results: Path) -> str:
    (path,) = results.glob("performance_study_*.md")
    return path.read_text()
