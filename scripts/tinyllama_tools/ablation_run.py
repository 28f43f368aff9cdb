"""The parts of an ablation, one after another; what was measured stays in the study."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from tinyllama_tools.ablation_gates import TESTS, run_tests
from tinyllama_tools.ablation_measure import Measurement
from tinyllama_tools.ablation_metrics import VERSIONS
from tinyllama_tools.ablation_options import (
    ATTENTION_ROWS,
    MEMORY_ROWS,
    Plan,
    make_plan,
    rows_in_memory,
)
from tinyllama_tools.ablation_study import Kind, Point, RowName, Study
from tinyllama_tools.ablation_variants import removed_rows
from tinyllama_tools.data.programs import SuiteError, SuiteProgram

Save = Callable[[], None]


def plan_main(study: Study, measurement: Measurement, options: argparse.Namespace) -> None:
    """Adds and verifies the rows of the test points; the removed ones follow from `optimized`."""
    points = make_plan(options).points
    measurement.plan(study.main, study.rows, points)
    measurement.verify(study.main)
    removed = removed_rows(study.main, options.switches)
    study.rows += removed
    measurement.plan(study.main, removed, points)
    measurement.verify(study.main)


def grid_points(program: SuiteProgram) -> list[Point]:
    """The default grid of the program, as --list names it without any axis."""
    names, refusal = program.list_cases()
    if refusal:
        raise SuiteError(refusal)
    points: list[Point] = []
    for name in names:
        parts = name.split("/")
        if len(parts) == 7 and parts[0] != "peak":
            batch, seq = (int(part.partition(":")[2]) for part in parts[5:])
            points.append(Point(parts[3], parts[4], batch, seq, parts[0], parts[1]))
    return list(dict.fromkeys(points))


def plan_grid(study: Study, measurement: Measurement, options: argparse.Namespace) -> None:
    """Adds and verifies baseline and `optimized`, and every switch where asked for."""
    rows = [VERSIONS[0], VERSIONS[2]]
    if options.grid_switches:
        rows += study.rows_of(Kind.single)
    assert isinstance(measurement.program, SuiteProgram)
    measurement.plan(study.grid, rows, grid_points(measurement.program))
    measurement.verify(study.grid)


def plan_memory(
    study: Study, measurement: Measurement, plan: Plan, options: argparse.Namespace
) -> None:
    """Adds the cells of memory over the sequence."""
    for names, points in (
        (MEMORY_ROWS, plan.memory_points),
        (ATTENTION_ROWS, plan.attention_points),
    ):
        chosen = rows_in_memory(options.switches, names)
        measurement.plan(study.memory, [RowName(name, Kind.single) for name in chosen], points)


def run_study(
    study: Study,
    measurement: Measurement,
    options: argparse.Namespace,
    save: Save,
    most_memory_seconds: float,
) -> None:
    """Everything that was asked for, the costly last."""
    plan = make_plan(options)
    timed = []
    if "main" in options.parts:
        plan_main(study, measurement, options)
        timed.append(study.main)
        save()
    for part, table, points in (
        ("batches", study.batches, plan.batch_points),
        ("types", study.types, plan.type_points),
    ):
        if part in options.parts:
            measurement.plan(table, VERSIONS, points)
            measurement.verify(table)
            timed.append(table)
    if options.grid:
        plan_grid(study, measurement, options)
        timed.append(study.grid)
    save()

    def after_turn() -> None:
        study.meta["turns_done"] = study.meta.get("turns_done", 0) + 1
        save()

    if timed:
        measurement.take_turns(timed, after_turn)
    if "memory" in options.parts:
        run_memory(study, measurement, plan, options, most_memory_seconds)
        save()
    if "gates" in options.parts:
        for name, pattern in TESTS:
            measurement.progress.line(f"gate: {name}: {pattern} (takes minutes)")
            study.gates.append(run_tests(options.build_folder, name, pattern))
            save()


def run_memory(
    study: Study,
    measurement: Measurement,
    plan: Plan,
    options: argparse.Namespace,
    most_seconds: float,
) -> None:
    """Memory over the sequence, with more patience for the long ones."""
    plan_memory(study, measurement, plan, options)
    patient = measurement.program
    if isinstance(patient, SuiteProgram):
        others = [a for a in patient.arguments if not a.startswith("--max-seconds-per-case")]
        limit = f"--max-seconds-per-case={most_seconds:g}"
        patient = replace(patient, arguments=(limit, *others))
    replace(measurement, program=patient).once(study.memory)
