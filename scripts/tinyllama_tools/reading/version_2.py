"""A result file of schema version 2, in the meaning of version 3: nobody else knows the older one.

Version 2 made its rates and shares of `useful_flops`, model_flops less the masked scores that a
variant leaves out, so that MFU was not one measure for all variants; and shares were of the peak
that was known when a row was written, which a later one may have replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tinyllama_tools.reading.case_name import CaseName, parse_case_name
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.json_file import Json
from tinyllama_tools.reading.json_number import is_number
from tinyllama_tools.reading.machine import Machine, product_type
from tinyllama_tools.reading.peaks import (
    LARGEST_SHARE,
    SHARES,
    ProductPeaks,
    product_peaks,
    shares,
)
from tinyllama_tools.reading.product_rates import TERA
from tinyllama_tools.suite_run import UNITS

OLDER = 2
# statistics over a case's repetitions
MEDIAN, DEVIATION, VARIATION = "median", "stddev", "cv"
# what stands in a row of its own: a repetition, and where only statistics were kept the median
COUNTED = (None, MEDIAN)


def _is_rate(value: object) -> bool:
    return is_number(value) and value > 0


def _counted(entries: Sequence[Json]) -> Json | None:
    """A row that says what an iteration costs."""
    rows = (e for e in entries if e.get("aggregate_name") in COUNTED)
    return next((e for e in rows if is_number(e.get("model_flops"))), None)


def _iterations(name: CaseName, entry: Json) -> float:
    """A second; 0 where the row does not say."""
    if name.is_data_parallel:
        # its samples are those of all ranks
        seconds = entry["real_time"] * UNITS[entry["time_unit"]]
        return 1.0 / seconds if _is_rate(seconds) else 0.0
    samples = entry.get("samples_per_second")
    return samples / name.batch if _is_rate(samples) and name.batch else 0.0


def _peaks(name: CaseName, counted: Json, context: Json, machine: Machine) -> ProductPeaks | None:
    """The file's; of a type that it does not name, as in a file put together of several runs, those
    that the row's own shares are of."""
    found = product_peaks(context, machine, product_type(name.dtype))
    rate, mfu, share = (counted.get(key) for key in ("TFLOPS", "MFU_percent", "peak_percent"))
    if found is None and _is_rate(rate) and _is_rate(mfu) and _is_rate(share):
        found = ProductPeaks(100.0 * TERA * rate / share, 100.0 * TERA * rate / mfu)
    return found


def _above_peak(name: CaseName, entries: Sequence[Json], of_one: Mapping[str, float]) -> str:
    """Why the case is too fast for the peaks; empty where it is not."""
    rows = (e for e in entries if e.get("aggregate_name") in COUNTED)
    fastest = max((_iterations(name, entry) for entry in rows), default=0.0)
    for key, of in (("peak_percent", "peak"), ("roof_percent", "roofline")):
        percent = of_one.get(key, 0.0) * fastest
        if percent > LARGEST_SHARE:
            wrong = "the time, the count or the peak is wrong"
            return f"{percent:.0f} % of the measured {of}: {wrong}"
    return ""


def _intensity(counted: Json) -> float | None:
    """hardware_flops, else elementwise ones, over bytes."""
    flops = counted.get("hardware_flops") or counted.get("elementwise_flops")
    moved = counted.get("bytes")
    return flops / moved if is_number(flops) and _is_rate(moved) else None


def _case(
    name: CaseName, entries: Sequence[Json], context: Json, machine: Machine | None
) -> Iterator[Json]:
    """The rows of a case anew."""
    counted = _counted(entries)
    if counted is None:
        yield from entries
        return
    rate, old_rate = _iterations(name, counted), counted.get("TFLOPS")
    grows_by = counted["model_flops"] * rate / TERA / old_rate if _is_rate(old_rate) else 1.0
    of_one: Mapping[str, float] = {}
    # the suite's own rows have shares, a peer's or a rank's none
    if machine is not None and "roof_percent" in counted:
        costs = {key: value for key, value in counted.items() if is_number(value)}
        of_one = shares(costs, 1.0, _peaks(name, counted, context, machine), machine)
    reason = _above_peak(name, entries, of_one)
    for entry in entries:
        new = {k: v for k, v in entry.items() if k != "useful_flops" and k not in SHARES}
        statistic = entry.get("aggregate_name")
        if is_number(new.get("TFLOPS")) and statistic != VARIATION:
            new["TFLOPS"] *= grows_by
        if "flop_per_byte" in new and statistic not in (DEVIATION, VARIATION):
            new["flop_per_byte"] = _intensity(counted) or new["flop_per_byte"]
        samples = new.get("samples_per_second")
        if reason:
            new["above_peak"] = reason
        elif is_number(samples):
            # a coefficient of variation is the same of all that is in proportion to the rate
            is_variation = statistic == VARIATION
            for key, share in of_one.items():
                new[key] = samples if is_variation else share * samples / name.batch
        yield new


def _rows(document: Json) -> Iterator[Json]:
    context = document["context"]
    try:
        machine = Machine.from_context(context)
    except BadInputError:
        machine = None
    by_name: dict[str, list[Json]] = {}
    for entry in document["benchmarks"]:
        by_name.setdefault(entry["run_name"], []).append(entry)
    for run_name, entries in by_name.items():
        name = parse_case_name(run_name)
        yield from entries if name is None else _case(name, entries, context, machine)


def from_version_2(document: Json, version: int) -> Json:
    """The document as `version` 3 of the format says it; its rows have been checked so far that
    they can be told apart. Shares stay out where the file's peaks cannot be used."""
    context = {**document["context"], "schema_version": version}
    if context.get("peaks"):
        context["peaks"] = {k: v for k, v in context["peaks"].items() if k != "superseded"}
    return {**document, "context": context, "benchmarks": list(_rows(document))}
