"""machine.json: what runs tell of their machine, and what steps on it are predicted from.

    bandwidth   the curve over the size of the working set
    gemms       rates by shape and type
    steps       for each dtype and variant, costs of a launch, of traffic, of elementwise work and
                of what a step does beyond its parts, and how far held-out steps were off
    ranks       alpha and beta of each collective, how ranks slow each other, held-out steps

Each of the four names the entry of `sources` that it was measured by; `missing` says why one is not
there. docs/report.md describes the keys."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import (
    BadInputError,
    Json,
    bad_file,
    made_by,
    now_text,
    read_json,
    schema_problem,
)
from tinyllama_tools.core.installation import typed
from tinyllama_tools.data.machine import (
    BYTES,
    Machine,
    ProductRate,
    device_of,
    device_text,
    placed_device,
)
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.data.studies import SCHEMAS
from tinyllama_tools.models.collectives import AlphaBeta
from tinyllama_tools.models.data_parallel import Analysis
from tinyllama_tools.models.over_ranks import Range, RankFigures, rank_figures, why_other_ranks
from tinyllama_tools.models.prediction import (
    Costs,
    ErrorModel,
    HeldOut,
    Operators,
    StepModel,
    fit_step_model,
)

KIND, SCHEMA_VERSION = "machine", 1
WRITE_AGAIN = f"write it again: {typed('report')} RESULT... --format machine -o machine.json"
BANDWIDTH, GEMMS, STEPS, RANKS = "bandwidth", "gemms", "steps", "ranks"


# ---- writing


def _source(
    context: Mapping[str, Any], paths: Sequence[Path], cases: Sequence[MeasuredCase]
) -> Json:
    """`cases`: those that may have been disturbed."""
    return {
        "files": [path.name for path in paths],
        "device": placed_device(context),
        "date": str(context.get("date") or ""),
        "git_commit": str(context.get("git_commit") or ""),
        "git_dirty": context.get("git_dirty") is True,
        "torch_version": str(context.get("torch_version") or ""),
        "cases": len(cases),
        "disturbed": sum(bool(case.disturbance) for case in cases),
    }


def _model_json(model: StepModel) -> Json:
    return {
        "dtype": model.dtype,
        "variant": model.variant,
        "sizes": model.sizes,
        "cells": model.cells,
        "flops": model.flops,
        "flops_per_token": model.flops_per_token,
        "costs": asdict(model.costs),
        "operators": {name: found._asdict() for name, found in model.operators.items()},
        "errors": model.errors._asdict(),
        "held_out": [asdict(held) for held in model.held_out],
    }


def _ranks_json(figures: RankFigures) -> Json:
    found = asdict(figures)
    found["slowdown"] = [
        {"ranks": ranks, **each._asdict()} for ranks, each in figures.slowdown.items()
    ]
    return found


def machine_document(results: ResultSet, runs: Sequence[Analysis]) -> Json:
    """The content of machine.json: of results of the suite and, of data-parallel runs, the first
    whose collectives have fits, of those on the suite's device with as many threads if there are
    any. BadInputError where there is nothing of all that."""
    missing: dict[str, str] = {}
    sources: list[Json] = []
    document: Json = dict.fromkeys((BANDWIDTH, GEMMS, RANKS)) | {STEPS: []}
    machine = Machine.of_peaks(results.context)
    if results.cases or results.products:
        sources.append(_source(results.context, results.paths, [*results.cases.values()]))
    if machine.curve:
        curve = [{"bytes": size, BYTES: rate} for size, rate in machine.curve]
        memory = machine.memory_bandwidth
        document[BANDWIDTH] = {"source": 0, "curve": curve, "memory": memory}
    if machine.peak_flops or results.products:
        rates = [asdict(one) for one in results.products]
        document[GEMMS] = {"source": 0, "peaks": machine.peak_flops, "rates": rates}
    steps = [case.name for case in results.cases.values() if case.name.is_training_step]
    for dtype, variant in dict.fromkeys((name.dtype, name.variant) for name in steps):
        try:
            model = fit_step_model(results, dtype, variant)
            document[STEPS].append({"source": 0, **_model_json(model)})
        except BadInputError as error:
            missing[f"{STEPS}, {dtype}, {variant}"] = str(error)
    here = device_of(results.context)
    for run in sorted(runs, key=lambda run: device_of(run.results[-1].context) != here):
        try:
            figures = rank_figures(run, results)
        except BadInputError as error:
            missing[RANKS] = str(error)
            continue
        last = run.results[-1]
        document[RANKS] = {"source": len(sources), **_ranks_json(figures)}
        sources.append(_source(last.context, [one.path for one in run.results], []))
        missing.pop(RANKS, None)
        break
    if not sources:
        raise BadInputError("no result of the suite and no collective: there is no machine to tell")
    lacking = {
        BANDWIDTH: "no bandwidth curve was measured",
        GEMMS: "no peak and no rate of a GEMM was measured",
        STEPS: "no training step (full_step/train) was measured",
        RANKS: f"no data-parallel run was given ({typed('scaling')} makes one)",
    }
    for key, why in lacking.items():
        if not document[key] and not any(known.startswith(key) for known in missing):
            missing[key] = why
    head = {"kind": KIND, "schema_version": SCHEMA_VERSION, "date": now_text(), "sources": sources}
    return head | document | {"missing": missing}


def machine_text(document: Json) -> str:
    """The file."""
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


# ---- reading


@dataclass(frozen=True)
class MachineFile:
    """`machine`: its curve and rates. `models`: of steps, by dtype and variant. `ranks`: None where
    no collectives were measured. `source_of`: the entry of `sources` by section; `missing`: why a
    section is not there."""

    path: Path
    models: Mapping[tuple[str, str], StepModel]
    ranks: RankFigures | None
    source_of: Mapping[str, Json]
    missing: Mapping[str, str]

    def model_of(self, dtype: str, variant: str) -> StepModel:
        """BadInputError where its steps, or anything that they rest on, were not measured."""
        for section in (BANDWIDTH, GEMMS):
            if section not in self.source_of:
                raise self._lacks(section, section)
        if (dtype, variant) not in self.models:
            raise self._lacks(f"{STEPS}, {dtype}, {variant}", STEPS)
        return self.models[dtype, variant]

    def rank_figures(self) -> RankFigures:
        """BadInputError where no collectives were measured, or by ranks on other devices than the
        steps."""
        if self.ranks is None:
            raise self._lacks(RANKS, RANKS)
        devices = [self.source_of[key]["device"] for key in (STEPS, RANKS) if key in self.source_of]
        if len(devices) > 1 and (why := why_other_ranks(*devices)):
            raise BadInputError(f"{self.path}: its {why}")
        return self.ranks

    def _lacks(self, section: str, otherwise: str) -> BadInputError:
        known = sorted(f"{dtype}, {variant}" for dtype, variant in self.models)
        there = f" (it has {'; '.join(known)})" if otherwise == STEPS and known else ""
        why = self.missing.get(section) or self.missing.get(otherwise)
        what = f"has no {section}{there}" + (f": {why}" if why else "")
        return bad_file(self.path, what, f"measure that, and {WRITE_AGAIN}")


def _device(source: Json) -> Json:
    """As device_of() has it."""
    return {key: value for key, value in source["device"].items() if key != "whole_node"}


def source_text(source: Json) -> str:
    """Device, commit, libtorch, day and files of a source."""
    commit = f"{source['git_commit'][:8] or 'unknown'}{' with changes' * source['git_dirty']}"
    text = (
        f"{device_text(_device(source))}, commit {commit}, libtorch "
        f"{source['torch_version'] or 'unknown'}, {source['date'][:10] or 'unknown date'}: "
        f"{', '.join(source['files'])}"
    )
    if source["disturbed"]:
        text += f"; {source['disturbed']} of {source['cases']} cases were disturbed"
    return text


def _model(found: Json, machine: Machine) -> StepModel:
    costs = Costs(**found["costs"])
    operators = {name: Operators(**each) for name, each in found["operators"].items()}
    if lacking := operators.keys() - costs.elementwise.keys():
        raise ValueError(f"costs.elementwise lacks {', '.join(sorted(lacking))}")
    return StepModel(
        *(found["dtype"], found["variant"], machine, costs, operators),
        *(tuple(found["sizes"]), found["cells"]),
        *(tuple(found["flops"]), tuple(found["flops_per_token"])),
        ErrorModel(**found["errors"]),
        tuple(HeldOut(**held) for held in found["held_out"]),
    )


def _ranks(found: Json) -> RankFigures:
    rows = [dict(row) for row in found["slowdown"]]
    return RankFigures(
        *(found["backend"], found["bucket_bytes"], found["compress"], found["most_ranks"]),
        tuple(AlphaBeta(**fit) for fit in found["collectives"]),
        {row.pop("ranks"): Range(**row) for row in rows},
        tuple(HeldOut(**held) for held in found["held_out"]),
    )


def read_machine(path: Path) -> MachineFile:
    """BadInputError naming file, key and rule for another kind of file, another version, and a
    value that cannot be used."""
    document, _ = read_json(path)
    if document.get("kind") != KIND:
        what = f"kind is {document.get('kind')!r}, must be {KIND!r}: it is no machine.json"
        raise bad_file(path, what, WRITE_AGAIN)
    if document.get("schema_version") != SCHEMA_VERSION:
        what = f"schema_version is {document.get('schema_version')!r}, must be {SCHEMA_VERSION}"
        raise bad_file(path, what, WRITE_AGAIN)
    if problem := schema_problem(document, SCHEMAS["machine"]):
        raise bad_file(path, problem, WRITE_AGAIN)
    bandwidth, gemms, ranks = (document[key] for key in (BANDWIDTH, GEMMS, RANKS))
    with made_by(f"{typed('report')} --format machine", path):
        curve = [(point["bytes"], point[BYTES]) for point in (bandwidth or {}).get("curve", ())]
        if curve != sorted(curve):
            raise ValueError("bandwidth.curve: bytes must ascend")
        machine = Machine(
            (gemms or {}).get("peaks", {}),
            curve,
            (bandwidth or {}).get("memory"),
            tuple(ProductRate(**one) for one in (gemms or {}).get("rates", ())),
        )
        models = {(one["dtype"], one["variant"]): _model(one, machine) for one in document[STEPS]}
        first = {STEPS: next(iter(document[STEPS]), None)}
        sections = {BANDWIDTH: bandwidth, GEMMS: gemms, RANKS: ranks} | first
        source_of = {
            key: document["sources"][section["source"]]
            for key, section in sections.items()
            if section
        }
        figures = _ranks(ranks) if ranks else None
        return MachineFile(path, models, figures, source_of, document["missing"])
