"""Findings of exercise 3 that nobody measured, and changes to them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fake_study import GIB, PlayedPredictor
from fake_training import PlayedProgram, set_key
from tinyllama_tools.commands.exercise import parse_options
from tinyllama_tools.commands.exercise_3 import Findings, measure_findings, sheet_of
from tinyllama_tools.core.app import PROJECT, Json
from tinyllama_tools.models.ablation_evidence import Evidence
from tinyllama_tools.models.ablations import Point
from tinyllama_tools.models.bottlenecks import rank_bottlenecks
from tinyllama_tools.stats.rank_tests import ratio_of_turns

# Published with the project.
ABLATION = PROJECT / "results/reference/ablation_2core_xeon_avx512.json"
Changes = Mapping[str, object]


def made_up_findings(folder: Path, **program: object) -> Findings:
    """Of the made-up machine, with tiny, small and medium."""
    options = parse_options(["3", f"--output={folder}/exercise_3.md", "--max-minutes=100"])
    return measure_findings(options, PlayedProgram(**program), PlayedPredictor(40 * GIB))


def set_components(summary: Json, percents: Mapping[str, float]) -> None:
    """Shares of components; the others keep theirs."""
    for component in summary["operators"]["components"]:
        component["percent"] = percents.get(component["name"], component["percent"])


def changed_summary(summary: Json, changes: Changes) -> Json:
    """A copy; the key `components` takes shares by name, `step_seconds` the time of every step."""
    found = copy.deepcopy(summary)
    for key, value in changes.items():
        if key == "components":
            assert isinstance(value, Mapping)
            set_components(found, value)
        elif key == "step_seconds":
            for step in found["steps"]:
                step["time_seconds"] = value
        else:
            set_key(found, key, value)
    return found


def changed(
    findings: Findings,
    analysis: Changes | None = None,
    runs: Mapping[str, Changes] | None = None,
    sizes: Mapping[str, Changes] | None = None,
    evidence: Evidence | None = None,
) -> Findings:
    """The same findings with keys of its summaries replaced, and the ranking that follows."""
    run = replace(
        findings.analysis, summary=changed_summary(findings.analysis.summary or {}, analysis or {})
    )
    others = {
        name: replace(
            found, summary=changed_summary(found.summary or {}, (runs or {}).get(name, {}))
        )
        for name, found in findings.runs.items()
    }
    results = tuple(
        replace(
            result,
            summary=changed_summary(result.summary, (sizes or {}).get(result.size, {})),
        )
        if result.summary
        else result
        for result in findings.study.results
    )
    names = [found.name for found in findings.study.batches]
    batches = tuple(others[name] for name in names)
    return replace(
        findings,
        analysis=run,
        runs=others,
        evidence=evidence,
        ranking=tuple(rank_bottlenecks(run.summary or {}, evidence)),
        study=replace(findings.study, results=results, batches=batches),
    )


def made_up_evidence(file: Path, **speedups: float) -> Evidence:
    """An ablation at the worksheet's shape that measured these switches."""
    ratios = {name: ratio_of_turns([value] * 6, [1.0] * 6) for name, value in speedups.items()}
    return Evidence(file, Point("tiny", "f32", 8, 128), ratios)


def page(findings: Findings) -> str:
    """The worksheet."""
    return sheet_of(findings).page


def answer(text: str, question: str) -> str:
    """What stands below a question, to the next one."""
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith(f"**{question}"))
    rest = lines[start + 1 :]
    end = next(
        (i for i, line in enumerate(rest) if line.startswith(("**", "## ", "### "))), len(rest)
    )
    return "\n".join(line for line in rest[:end] if line)


def ticked(text: str, label: str) -> bool:
    """Whether the box with this label is ticked; StopIteration where there is none."""
    line = next(x for x in text.split("\n") if x.startswith("- [") and x[6:].startswith(label))
    return line.startswith("- [x]")


def row(text: str, first: str) -> list[str]:
    """Cells of the first table row that begins with this one."""
    line = next(x for x in text.split("\n") if x.startswith(f"| {first}"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def evidence_with_compile(folder: Path, speedup: float) -> Evidence:
    """A real ablation's file whose torch.compile rows were given another speedup."""
    found = json.loads(ABLATION.read_text())
    for peer in found["peers"]:
        peer["speedup"]["median"] = speedup
    path = folder / f"ablation_{speedup}.json"
    path.write_text(json.dumps(found))
    return made_up_evidence(path, qkv=1.01)
