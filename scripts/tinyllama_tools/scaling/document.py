"""scaling.json: what follows from a scaling run, as plain values."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import PROJECT, BadInputError, Json, head_commit
from tinyllama_tools.data.json_files import read_json
from tinyllama_tools.scaling.alpha_beta import AlphaBeta
from tinyllama_tools.scaling.analysis import Analysis
from tinyllama_tools.scaling.failure import Failure
from tinyllama_tools.scaling.files import DOCUMENT, KIND, SCHEMA_VERSION
from tinyllama_tools.scaling.local_step import LocalStep
from tinyllama_tools.scaling.projections import Projections


def _finite(value: Any) -> Any:  # noqa: ANN401
    """JSON knows no infinity: an interval without an end has null there."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _fit(fit: AlphaBeta) -> Json:
    rows = asdict(fit)
    rows["held_out"] = [{"bytes": size, "percent_off": off} for size, off in fit.held_out]
    return rows


def _local(step: LocalStep) -> Json:
    found = asdict(step) | {"name": str(step.name), "knows_small_batches": step.knows_small_batches}
    found["seconds_by_batch"] = {str(b): s for b, s in step.seconds_by_batch.items()}
    return found


def _projection(projections: Projections) -> Json:
    return {
        "global_batch": projections.global_batch,
        "overlap_share": projections.overlap,
        "local_steps": [_local(step) for step in projections.local.values()],
        "interconnects": [asdict(one) for one in projections.interconnects],
        "missing": dict(projections.missing),
        "steps": [step.as_json() for step in projections.steps],
    }


def failures_before(folder: Path) -> list[Failure]:
    """What an earlier scaling.json of the folder says was not measured: reading again does not undo
    it. None where there is no such file or a damaged one, which is about to be made anew."""
    try:
        found = read_json(folder / DOCUMENT)[0]["failures"]
        return [Failure(int(f["ranks"]), int(f["status"]), str(f["words"])) for f in found]
    except (BadInputError, KeyError, TypeError, ValueError):
        return []


def scaling_document(
    analysis: Analysis,
    projections: Projections,
    command: str,
    failures: Sequence[Failure] = (),
) -> Json:
    """Times in s, bandwidths in bytes/s, shares in percent."""
    now = datetime.datetime.now(datetime.timezone.utc)
    context = analysis.context
    return _finite(
        {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "command": command,
            "date": now.isoformat(timespec="seconds"),
            "git_commit": head_commit(PROJECT),
            "device": (context.get("device") or {}).get("name", ""),
            "processes": [one.ranks for one in analysis.results],
            "files": [one.path.name for one in analysis.results],
            "scaling": analysis.results[0].scaling,
            "warnings": list(analysis.warnings),
            "failures": [asdict(failure) for failure in failures],
            "not_measured": dict(analysis.failed),
            "points": [asdict(point) for point in analysis.points],
            "waterfalls": [asdict(one) for one in analysis.waterfalls],
            "fits": [_fit(fit) for fit in analysis.fits],
            "fits_refused": list(analysis.refused),
            "projection_checks": [check.as_json() for check in analysis.checks],
            "projection": _projection(projections),
        }
    )
