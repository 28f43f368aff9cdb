"""What a grid needs beside its rounds: the costs of its cases, the rates of the model's products at
their own shapes, and the out-of-memory frontier. check.py has the check of predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tinyllama_tools.core.app import Json, write_whole
from tinyllama_tools.data.json_files import read_json
from tinyllama_tools.data.programs import (
    CaseCost,
    SuiteError,
    SuiteProgram,
    ask_dry_run,
    read_case_costs,
)
from tinyllama_tools.data.studies import COSTS, FRONTIER, PRODUCTS, journal_of, journaled_names
from tinyllama_tools.frontier import write_frontier as predict_frontier
from tinyllama_tools.grid_study.bench_process import case_of
from tinyllama_tools.grid_study.plan import (
    axis_options,
    check_cost_options,
    own_shape_options,
    product_options,
)
from tinyllama_tools.grid_study.progress import GridProgress
from tinyllama_tools.grid_study.rounds import GridStudy, run_journaled


def planned_names(program: Path, options: Sequence[str]) -> list[str]:
    """What --list names; SuiteError with the program's own words where it refuses the options."""
    names, refusal = SuiteProgram(program=program).list_cases(options)
    if refusal:
        raise SuiteError(refusal)
    return names


def costs_of(study: GridStudy) -> list[CaseCost]:
    """Of every case of the grid, of every problem size at its own batch and sequence, and of the
    shapes that might check predictions: what costs.json says, which is written where it is not
    there yet.

    SuiteError where the program does not tell them, BadInputError where the file is no longer good.
    """
    path = study.folder / COSTS
    if not path.is_file():
        plan = study.record.plan
        grid = ask_dry_run(study.program, axis_options(plan))
        others = [own_shape_options(plan)]
        others += [check_cost_options(plan)] if plan.is_checked else []
        answers = [grid, *(ask_dry_run(study.program, options) for options in others)]
        cases = {str(cost.name): asdict(cost) for answer in answers for cost in answer.cases}
        document = {
            "device": dict(grid.device),
            "git_commit": grid.git_commit,
            "memory_budget_bytes": grid.memory_budget_bytes,
            "memory_budget_source": grid.memory_budget_source,
            "cases": [cost | {"name": name} for name, cost in cases.items()],
        }
        write_whole(path, json.dumps(document, indent=1) + "\n")
    return read_case_costs(read_json(path)[0])


def _merged(documents: Sequence[Json]) -> Json:
    """One result of several: a row that is in two of them is the first one's."""
    seen: set[str] = set()
    rows: list[Json] = []
    for document in documents:
        names = {case_of(entry) for entry in document["benchmarks"]} - seen
        rows += [entry for entry in document["benchmarks"] if case_of(entry) in names]
        seen |= names
    return documents[0] | {"benchmarks": rows}


def write_products(study: GridStudy, progress: GridProgress) -> None:
    """products.json: what each matrix product of a step reaches. Raises what run_journaled does."""
    path = study.folder / PRODUCTS
    if path.is_file():
        return
    parts = {
        study.folder / f"{path.stem}_{which}.json": options
        for which, options in product_options(study.record.plan).items()
    }
    documents = []
    for part, options in parts.items():
        names = planned_names(study.program, options)
        progress.begin("matrix products", names, journaled_names(journal_of(part)))
        document, is_interrupted = run_journaled(study, options, part, names, "off", progress)
        if is_interrupted:
            # its journal has what was measured
            raise KeyboardInterrupt
        documents.append(document)
    write_whole(path, json.dumps(_merged(documents), indent=1) + "\n")
    for part in parts:
        part.unlink()
        journal_of(part).unlink()


def write_frontier(study: GridStudy, progress: GridProgress) -> None:
    """frontier.json: the largest batch of each sequence, and the reverse.

    Raises SuiteError and BadInputError where it cannot be predicted.
    """
    if (study.folder / FRONTIER).is_file():
        return
    progress.say("predicting the largest batch of every sequence")
    predict_frontier(study.folder, study.program, study.record.plan.device)
