"""Reads result files of other Google Benchmark programs: times, counters, repetitions.

They have no FLOPs, peaks or memory, but verdicts about times hold for them too.
"""

from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import MEASURE_AGAIN, Json, bad_file, is_number
from tinyllama_tools.core.text import listed
from tinyllama_tools.data.names import ITERATION, OWN_KEYS, UNITS

# aggregates of a fit of complexity over several sizes, which are not times of a case
FITS = ("BigO", "RMS")


def _row(row: object, path: Path) -> Json:
    """The row with keys that Google Benchmark before 1.5 does not write, and without counters that
    are no numbers."""
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise bad_file(path, "a row of its benchmarks has no name", MEASURE_AGAIN)
    aggregate = row.get("aggregate_name")
    kind = "aggregate" if aggregate else ITERATION
    name = row["name"].removesuffix(f"_{aggregate}") if aggregate else row["name"]
    whole = {"run_name": name, "run_type": kind, "time_unit": "ns", **row}
    if not isinstance(whole["run_name"], str):
        raise bad_file(path, f"{name}: its run_name is no text", MEASURE_AGAIN)
    if whole["time_unit"] not in list(UNITS):
        unit = f"time_unit {whole['time_unit']!r}, must be one of {', '.join(UNITS)}"
        raise bad_file(path, f"{name}: {unit}", MEASURE_AGAIN)
    counters = {key for key, value in whole.items() if type(value) in (int, float)} - OWN_KEYS
    return {k: v for k, v in whole.items() if k not in counters or is_number(v)}


def read_other_rows(document: Json, path: Path) -> tuple[Sequence[Json], tuple[str, ...]]:
    """Every case that has a time, failed or was skipped, in the form of the suite's own rows; and
    warnings that name what is left out: cases whose time is 0, those with aggregates but no median,
    and fits of complexity.

    BadInputError for a row without a name, or with an unknown unit of time.
    """
    rows = document["benchmarks"]
    if not isinstance(rows, list):
        raise bad_file(path, "its benchmarks are no list of rows", MEASURE_AGAIN)
    found: dict[str, list[Json]] = {}
    fits: dict[str, None] = {}
    for row in (_row(row, path) for row in rows):
        if row.get("aggregate_name") in FITS:
            fits[row["run_name"]] = None
            continue
        found.setdefault(row["run_name"], []).append(row)
    kept: list[Json] = []
    timeless = []
    for name, own in found.items():
        repetitions = [row for row in own if row["run_type"] == ITERATION]
        if not any("repetition_index" in row for row in repetitions):
            repetitions = [{**row, "repetition_index": i} for i, row in enumerate(repetitions)]
        medians = [row for row in own if row.get("aggregate_name") == "median"]
        rows_of_case = repetitions or medians
        is_stopped = any(row.get("error_occurred") or row.get("skipped") for row in rows_of_case)
        times = [row.get("real_time") for row in rows_of_case]
        if is_stopped or (times and all(is_number(time) and time > 0 for time in times)):
            kept += rows_of_case
        else:
            timeless.append(name)
    warnings = []
    if timeless:
        warnings.append(f"{path}: without a time or a median, left out: {listed(timeless, 3)}")
    if fits:
        warnings.append(f"{path}: fits of complexity, which are no times: {listed(list(fits), 3)}")
    return kept, tuple(warnings)
