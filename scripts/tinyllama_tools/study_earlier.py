"""Sizes that studies before this one measured: they join its table, or predict its time."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import Json
from tinyllama_tools.data.profiles import BadProfileError, read_profile
from tinyllama_tools.data.programs import problem_sizes
from tinyllama_tools.size_predictions import Prediction
from tinyllama_tools.study_plan import Rate, Settings
from tinyllama_tools.study_run import CONFIG, PROFILES, SUMMARY, SizeResult

# Of a folder's name: 20251014_123456.
TIME_LENGTH = 15


def read_earlier(folder: Path) -> SizeResult | None:
    """A finished size of an earlier study; None where the folder is not one."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        summary = read_profile(
            folder if (folder / SUMMARY).is_file() else folder / PROFILES
        ).summary
        if not is_finished(summary):
            return None
        return SizeResult(config["problem_size"], folder, summary, config=config, is_earlier=True)
    except (OSError, ValueError, KeyError, TypeError, BadProfileError):
        return None


def is_finished(summary: Json) -> bool:
    """All steps were made, and the last loss is a number."""
    means, wanted = summary["summary"], summary["configuration"]["num_steps"]
    return means["steps_completed"] == wanted and means["final_loss"] is not None


def has_same_settings(result: SizeResult, like: SizeResult) -> bool:
    """Same device, threads and libtorch, dtype, variant and profilers."""
    a, b = result.summary, like.summary
    if a is None or b is None:
        return False

    def key(config: Json, summary: Json) -> tuple[object, ...]:
        context = summary["context"]
        names = (config.get(name) for name in ("dtype", "variant", "profilers_enabled"))
        device = context["device"]["name"]
        return (*names, device, context.get("threads"), context.get("torch_version"))

    return key(result.config, a) == key(like.config, b)


def with_earlier(found: Sequence[SizeResult], results: Path) -> list[SizeResult]:
    """The results and the newest earlier ones of other sizes with the same settings, by size."""
    measured = [result for result in found if result.is_measured]
    all_sizes = list(problem_sizes())
    by_size = {result.size: result for result in found}
    if measured:
        for folder in newest_first(results):
            earlier = read_earlier(folder)
            if earlier and earlier.size not in by_size and has_same_settings(earlier, measured[0]):
                by_size[earlier.size] = earlier
    return sorted(by_size.values(), key=lambda result: all_sizes.index(result.size))


def newest_first(results: Path) -> list[Path]:
    """The folders of all studies."""
    folders = results.glob("performance_results_*")
    return sorted(folders, key=lambda path: path.name[-TIME_LENGTH:], reverse=True)


def earlier_rate(results: Path, settings: Settings, prediction: Prediction) -> Rate | None:
    """Of the newest earlier run of that dtype and variant, the nearest in size; None of none.

    It may be of another device: its name stands in the source.
    """
    found: dict[str, SizeResult] = {}
    for folder in newest_first(results):
        run = read_earlier(folder)
        # a run of one step has no average
        if not run or not (run.summary or {})["summary"]["average_step_seconds"]:
            continue
        if [run.config.get(k) for k in ("dtype", "variant")] == [
            settings.dtype,
            settings.variant,
        ]:
            found.setdefault(run.size, run)

    def distance(run: SizeResult) -> float:
        flops = (run.summary or {})["model"]["flops_per_step"]
        return abs(math.log(flops / prediction.step_flops))

    nearest = min(found.values(), key=distance, default=None)
    if nearest is None or nearest.summary is None or nearest.folder is None:
        return None
    seconds = nearest.summary["summary"]["average_step_seconds"]
    rate = nearest.summary["model"]["flops_per_step"] / seconds
    device = nearest.summary["context"]["device"]["name"]
    source = f"{rate / 1e9:,.1f} GFLOP/s attained in {nearest.folder.name}, on {device}"
    return Rate(rate, source)
