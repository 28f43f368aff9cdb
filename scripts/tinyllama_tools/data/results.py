"""Reads result files: one file, and several rounds of a run.

results/schema.json describes a file of the suite, and a test compares this reader with it; checking
the whole schema here would take seconds for thousands of cases. docs/training_files.md explains the
keys of a training summary."""

import contextlib
import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    SUITE_FILE,
    BadInputError,
    Json,
    bad_file,
    is_number,
    read_json,
    schema_problem,
)
from tinyllama_tools.core.installation import typed
from tinyllama_tools.core.text import listed, value_at
from tinyllama_tools.data.machine import (
    ITERATIONS,
    ROOF,
    SAME_RUN,
    ProductRate,
    best_products,
    first_difference,
    merged_peaks,
    product_rate,
    restated,
)
from tinyllama_tools.data.names import (
    BASELINE,
    ITERATION,
    OWN_KEYS,
    TIMED_BY,
    UNITS,
    CaseName,
    StoredCase,
    StoredRun,
    parse_case_name,
)
from tinyllama_tools.data.other_benchmarks import read_other_rows
from tinyllama_tools.data.profiles import SUMMARY, is_training_summary, read_training
from tinyllama_tools.data.studies import SCHEMAS, is_result
from tinyllama_tools.stats.rank_tests import (
    WANTED_CONFIDENCE,
    Ends,
    Interval,
    Median,
    Quotient,
    ends_of_median,
    quotient_of_medians,
)

SCHEMA_VERSION = 4
# An earlier version that is still read. It has no bandwidth curve, only memory's bandwidth and one
# for all that fits into a cache; its times are means, with the median beside, which is used here.
WITHOUT_CURVE = 3
NO_ROOFLINE = (
    f"schema_version {WITHOUT_CURVE}: without a bandwidth curve, so there is no roofline; "
    f"{MEASURE_AGAIN}"
)
# begins the name of a row that measures the machine
PEAKS = "peak/"
NO_REASON = "no reason given"
# A time outside of these was not measured: a damaged file has it.
SHORTEST_SECONDS, LONGEST_SECONDS = 1e-24, 1e10
# begins the counters of a speedup over the baseline of the same file, and of its interval's ends
SPEEDUP = "speedup"


def _is_row(row: object) -> bool:
    """Whether an entry has the keys of a row. For thousands of rows this takes milliseconds, and a
    check by the schema seconds."""
    return (
        isinstance(row, dict)
        and isinstance(row.get("run_name"), str)
        and isinstance(row.get("run_type"), str)
        and "real_time" in row
        and row.get("time_unit") in list(UNITS)
    )


def _check(document: Json, path: Path) -> None:
    """Checks the version and the form of the rows; BadInputError as of read_rows()."""
    version = document["context"].get("schema_version")
    if version is None:
        what = "its context has no schema_version, so it is of another benchmark"
        raise bad_file(path, what, f"only {typed('compare')} reads such files")
    if version not in (SCHEMA_VERSION, WITHOUT_CURVE):
        what = f"schema_version is {version!r}, must be {SCHEMA_VERSION} or {WITHOUT_CURVE}"
        raise bad_file(path, what, "measure again with this version of the suite")
    rows = document["benchmarks"]
    if isinstance(rows, list) and all(map(_is_row, rows)):
        document = document | {"benchmarks": []}
    if problem := schema_problem(document, SCHEMAS["suite"]):
        raise bad_file(path, problem, MEASURE_AGAIN)


def _seconds(entry: Json, path: Path) -> float:
    time, unit = entry["real_time"], entry["time_unit"]
    seconds = time * UNITS[unit] if is_number(time) else 0.0
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        limits = f"{SHORTEST_SECONDS:g} s to {LONGEST_SECONDS:g} s"
        what = f"real_time {time} {unit}, must be a positive, finite number, {limits}"
        raise bad_file(path, f"{entry['run_name']}: {what}", MEASURE_AGAIN)
    return seconds


def _counters(repetitions: Sequence[Json], path: Path) -> tuple[dict[str, float], frozenset[str]]:
    """The medians of the counters, and the names of those that differ between repetitions."""
    first, others = repetitions[0], repetitions[1:]
    found, varying = {}, set()
    for name, value in first.items():
        if name in OWN_KEYS or type(value) not in (int, float):
            continue
        values = [value, *(entry.get(name, value) for entry in others)]
        if not all(map(is_number, values)):
            bad = next(v for v in values if not is_number(v))
            what = f"{first['run_name']}: counter {name} is {bad!r}, must be a finite number"
            raise bad_file(path, what, MEASURE_AGAIN)
        found[name] = value
        if values.count(value) != len(values):
            found[name] = statistics.median(values)
            varying.add(name)
    return found, frozenset(varying)


def _stored_ends(entries: Sequence[Json], path: Path) -> tuple[float, float] | None:
    """In seconds, of the interval that the row of the median has."""
    for entry in entries:
        match entry.get("interval_ns"):
            case None:
                continue
            case [low, high] if is_number(low) and is_number(high):
                return low * 1e-9, high * 1e-9
            case other:
                what = f"interval_ns is {other!r}, must be two finite numbers"
                raise bad_file(path, f"{entry['run_name']}: {what}", MEASURE_AGAIN)
    return None


def _refuse_twice(name: str, repetitions: Sequence[Json], path: Path) -> None:
    # as text, since a bad file may have anything there
    indices = Counter(repr(entry.get("repetition_index", "unknown")) for entry in repetitions)
    for index, count in indices.items():
        if count > 1:
            raise bad_file(
                path,
                f"{name}: repetition {index} is there {count} times, but a file has a case once",
                "give two runs as two files: --base A.json B.json",
            )


def _suite_case(name: str, entries: Sequence[Json], path: Path, *, is_peak: bool) -> StoredCase:
    """The case of these rows: the median over its repetitions; for a peak the best repetition,
    since a peak is the best that the machine does."""
    repetitions = [entry for entry in entries if entry["run_type"] == ITERATION]
    _refuse_twice(name, repetitions, path)
    for entry in repetitions:
        if entry.get("error_occurred"):
            return StoredCase(failed=str(entry.get("error_message") or NO_REASON))
    for entry in repetitions:
        if entry.get("skipped"):
            return StoredCase(skipped=str(entry.get("skip_message") or NO_REASON))
    count = len(repetitions)
    if is_peak and repetitions:
        entries = repetitions = [max(repetitions, key=_peak_rate)]
    if not repetitions:
        # --benchmark_report_aggregates_only leaves only their median
        repetitions = [entry for entry in entries if entry.get("aggregate_name") == "median"]
        if not repetitions:
            raise bad_file(path, f"{name}: neither a repetition nor a median", MEASURE_AGAIN)
        iterations = repetitions[0].get("iterations")
        count = iterations if type(iterations) is int else 0
    counters, varying = _counters(repetitions, path)
    times = [_seconds(entry, path) for entry in repetitions]
    cpu = [
        e["cpu_time"] * UNITS[e["time_unit"]] for e in repetitions if is_number(e.get("cpu_time"))
    ]
    return StoredCase(
        statistics.median(times),
        count,
        counters,
        varying,
        label=str(entries[0].get("label", "")),
        above_peak=str(repetitions[0].get("above_peak", "")),
        each=tuple(times) if repetitions[0]["run_type"] == ITERATION else (),
        cpu_seconds=statistics.median(cpu) if cpu else None,
        ends=_stored_ends(entries, path),
    )


def _peak_rate(entry: Json) -> float:
    rates = (entry.get(name) for name in ("TFLOPS", "GB_per_second"))
    return next((rate for rate in rates if type(rate) in (int, float)), 0.0)


def _without(content: Json, key: str) -> Json:
    return {name: value for name, value in content.items() if name != key}


def _without_roofline(context: Json) -> Json:
    """The context of a file of WITHOUT_CURVE, with its peaks of GEMMs and of memory alone."""
    if not (measured := value_at(context, "peaks.measured")):
        return context
    kept = _without(measured, "cache_bandwidth")
    return context | {"peaks": context["peaks"] | {"measured": kept}}


def _timed_by_median(row: Json) -> Json:
    """A row of WITHOUT_CURVE with the median of its samples as its time, if it has one."""
    if not (median := row.get("median_ns")):
        return row
    return row | {"real_time": median * 1e-9 / UNITS[row["time_unit"]]}


def _by_name(rows: Sequence[Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for entry in rows:
        found.setdefault(entry["run_name"].removesuffix(TIMED_BY), []).append(entry)
    return found


def _read_other(document: Json, path: Path) -> StoredRun:
    """A run of another Google Benchmark program. Keys of its context that mean something else than
    ours, as in AddCustomContext("device", "gpu0"), are left out."""
    rows, warnings = read_other_rows(document, path)
    cases = {n: _suite_case(n, own, path, is_peak=False) for n, own in _by_name(rows).items()}
    context = {
        key: value
        for key, value in document["context"].items()
        if not schema_problem({"context": {key: value}}, SCHEMAS["suite"])
    }
    return StoredRun(path, context, cases, warnings=warnings)


def read_rows(document: Json, path: Path) -> StoredRun:
    """The cases and peaks of a result file, which may have none of either.

    BadInputError, with file, case and value, for a wrong schema_version, another program's file, an
    unknown unit, a time or counter that is not finite, a time of 0 or less, and a case that is
    there twice.
    """
    _check(document, path)
    context, rows = document["context"], document["benchmarks"]
    if context["schema_version"] == WITHOUT_CURVE:
        context = _without_roofline(context)
        rows = [_timed_by_median(_without(row, ROOF)) for row in rows]
    cases: dict[str, StoredCase] = {}
    peaks: dict[str, StoredCase] = {}
    named = _by_name(rows)
    for name, entries in named.items():
        is_peak = name.startswith(PEAKS)
        found = peaks if is_peak else cases
        found[name] = _suite_case(name, entries, path, is_peak=is_peak)
    return StoredRun(path, context, cases, peaks, order=tuple(named))


@dataclass(frozen=True)
class MeasuredCase:
    """`seconds` of an iteration: one a file, the median over its repetitions. `counters`: medians
    over the files. `label`: what `optimized` stands for, and remarks. `rounds`: which file each of
    the `seconds` is from, the first of the set is 1. `above_peak`: why some file has it without
    shares of peaks. `each`: of every repetition of all files. `disturbances`: why the time of a
    file is doubtful, one for each file where it is. `baseline`: the case that its speed-up is over;
    None for the baseline itself, and where that was not measured.

    A 95 % interval of a time is over the repetitions' medians, or where there are several files
    over the files' medians (docs/counters.md). That of a speed-up comes from the intervals of both
    times, unless the program wrote one."""

    name: CaseName
    seconds: tuple[float, ...]
    counters: Mapping[str, float]
    label: str = ""
    rounds: tuple[int, ...] = ()
    above_peak: str = ""
    each: tuple[float, ...] = ()
    disturbances: tuple[str, ...] = ()
    baseline: "MeasuredCase | None" = None

    @cached_property
    def median_seconds(self) -> float:
        """The median over the files."""
        return statistics.median(self.seconds)

    @cached_property
    def ends(self) -> Ends | None:
        """Of the time's interval, in seconds; None after a single repetition."""
        times = self.seconds if len(self.seconds) > 1 else self.each
        return ends_of_median(times) if len(times) > 1 else None

    @property
    def milliseconds(self) -> Median:
        """The median with its interval."""
        ends = self.ends and Interval(*(1e3 * end for end in self.ends), WANTED_CONFIDENCE)
        return Median(1e3 * self.median_seconds, ends)

    @property
    def half_width_percent(self) -> float | None:
        """Half the width of the interval, of the time."""
        return self.ends and 50 * (self.ends[1] - self.ends[0]) / self.median_seconds

    @cached_property
    def speedup(self) -> Quotient | None:
        """Over the baseline."""
        if self.baseline is None:
            return None
        value, *own = (self.counters.get(f"{SPEEDUP}{end}") for end in ("", "_low", "_high"))
        if value is not None and None not in own:
            return Quotient(value, Interval(*own, WANTED_CONFIDENCE))
        return self.baseline.over(self)

    def over(self, other: "MeasuredCase") -> Quotient:
        """Its time over the other's."""
        return quotient_of_medians(self.median_seconds, self.ends, other.median_seconds, other.ends)

    @property
    def disturbance(self) -> str:
        """Why its time is doubtful, in words; empty where nothing was found."""
        reasons = "; ".join(dict.fromkeys(self.disturbances))
        if not reasons or len(self.seconds) == 1:
            return reasons
        return f"{len(self.disturbances)} of {len(self.seconds)} rounds: {reasons}"

    @property
    def mark(self) -> str:
        """`!` where it was disturbed."""
        return "!" if self.disturbance else ""

    @property
    def marked_disturbance(self) -> str:
        """`! 1 of 3 rounds: mean 1.37 ms, median 0.80 ms: ...`; empty where nothing was found."""
        return f"! {self.disturbance}" if self.disturbance else ""


@dataclass(frozen=True)
class ResultSet:
    """Rounds of one run. `cases` by name; `left_out`: those that were not measured. `paths`: of the
    rounds. `context`: of the first file, with the best peaks of all; the files agree in SAME_RUN.
    `warnings`: doubtful values, and cases that some round lacks."""

    paths: tuple[Path, ...]
    context: Mapping[str, Any]
    cases: Mapping[str, MeasuredCase]
    left_out: Mapping[str, StoredCase] = field(default_factory=dict)
    products: tuple[ProductRate, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """title_of() its context."""
        return title_of(self.context)


def commit_text(context: Mapping[str, Any]) -> str:
    """`0a1b2c3d with changes`."""
    changed = " with changes" if context.get("git_dirty") else ""
    return f"{str(context.get('git_commit') or 'unknown')[:8]}{changed}"


def title_of(context: Mapping[str, Any]) -> str:
    """Device, commit and day of a result, to tell it from others."""
    device = value_at(context, "device.name") or "unknown device"
    return f"{device} · {commit_text(context)} · {str(context.get('date') or 'unknown date')[:10]}"


def refuse_other_run(
    first: Mapping[str, Any], first_path: Path, other: Mapping[str, Any], path: Path
) -> None:
    """BadInputError where a file's context differs from the first file's in SAME_RUN."""
    if found := first_difference(first, other, SAME_RUN):
        name, here, there = found
        raise BadInputError(
            f"{path}: {name} is {there!r}, in {first_path.name} it is {here!r}; "
            "files of one set must be of one run: name them as results of their own"
        )


def _median_counters(rows: Sequence[StoredCase]) -> Mapping[str, float]:
    if len(rows) == 1:
        return rows[0].counters
    names = dict.fromkeys(name for row in rows for name in row.counters)
    return {n: statistics.median(r.counters[n] for r in rows if n in r.counters) for n in names}


def _measured_case(name: CaseName, rows: Mapping[int, StoredCase]) -> MeasuredCase | StoredCase:
    """A case over its rounds. It failed if it failed in any; rounds that skipped it do not
    count."""
    measured = {number: row for number, row in rows.items() if row.seconds is not None}
    if failed := [row for row in rows.values() if row.failed]:
        return failed[0]
    if not measured:
        return next(iter(rows.values()))
    found = list(measured.values())
    return MeasuredCase(
        name,
        tuple(row.seconds for row in found),
        _median_counters(found),
        found[-1].label,
        tuple(measured),
        next((row.above_peak for row in found if row.above_peak), ""),
        tuple(seconds for row in found for seconds in row.each),
        tuple(filter(None, (row.disturbance for row in found))),
    )


def _products(runs: Sequence[StoredRun]) -> tuple[tuple[ProductRate, ...], dict[str, StoredCase]]:
    """The best rate of each GEMM; and the peaks' rows that no file has a value for."""
    rows = [(name, row) for run in runs for name, row in run.peaks.items()]
    products = [found for name, row in rows if (found := product_rate(name, row)) is not None]
    measured = {name for name, row in rows if row.seconds is not None}
    left_out = {name.partition(ITERATIONS)[0]: row for name, row in rows if name not in measured}
    return best_products(products), left_out


def _hosts(runs: Sequence[StoredRun]) -> list[str]:
    """A warning where the files are of several hosts, whose times differ though their devices are
    alike."""
    hosts = dict.fromkeys(str(run.context.get("host_name")) for run in runs)
    several = f"measured on {len(hosts)} hosts: {listed(list(hosts), 3)}; medians mix them"
    return [several] if len(hosts) > 1 else []


def combine(runs: Sequence[StoredRun]) -> ResultSet:
    """The set of these rounds; BadInputError where they are of different runs. A file without cases
    adds its GEMMs and peaks, and does not count as a round."""
    first, rounds = runs[0], [run for run in runs if run.cases]
    for run in runs[1:]:
        refuse_other_run(first.context, first.path, run.context, run.path)
    rows: dict[str, dict[int, StoredCase]] = {}
    for number, run in enumerate(rounds, start=1):
        for name, row in run.cases.items():
            rows.setdefault(name, {})[number] = row
    cases: dict[str, MeasuredCase] = {}
    left_out: dict[str, StoredCase] = {}
    warnings = _hosts(runs)
    for text, found in rows.items():
        name = parse_case_name(text)
        if name is None or name.is_data_parallel:
            # data-parallel steps and collectives are for read_scaling_run()
            warnings.append(f"not a case of one process of this suite: {text}")
        elif isinstance(case := _measured_case(name, found), StoredCase):
            left_out[text] = case
        else:
            cases[text] = case
    products, without_figure = _products(runs)
    left_out |= without_figure
    warnings += [f"{text}: {case.above_peak}" for text, case in cases.items() if case.above_peak]
    if lacking := [text for text, case in cases.items() if len(case.seconds) < len(rounds)]:
        warnings.append(f"not measured in every round: {listed(lacking, 3)}")
    if any(run.context.get("schema_version") == WITHOUT_CURVE for run in runs):
        warnings.append(NO_ROOFLINE)
    context, odd = merged_peaks([run.context for run in runs], products)
    counters = restated([(case.name, case.counters) for case in cases.values()], context)
    for text, found in zip(cases, counters, strict=True):
        # no speedup over a baseline that failed in another round
        baseline = str(replace(cases[text].name, variant=BASELINE))
        own = {n: v for n, v in found.items() if not n.startswith(SPEEDUP) or baseline in cases}
        cases[text] = replace(cases[text], counters=own)
    for text, case in cases.items():
        if case.name.variant != BASELINE:
            baseline = cases.get(str(replace(case.name, variant=BASELINE)))
            cases[text] = replace(case, baseline=baseline)
    paths, told = tuple(run.path for run in rounds or runs), tuple(dict.fromkeys((*warnings, *odd)))
    return ResultSet(paths, context, cases, left_out, products, told)


def _foreign(path: Path, document: Json, programs: str) -> BadInputError:
    keys = ", ".join(list(document)[:5]) or "none"
    return bad_file(path, f"is no result of {programs}: its keys are {keys}", MEASURE_AGAIN)


def read_result_set(paths: Sequence[Path]) -> ResultSet:
    """The set of result files of tiny_llama_bench: rounds of one run, and files of the same run
    with GEMMs and peaks alone.

    BadInputError for a file that cannot be used, for files that differ in SAME_RUN, and where no
    file holds a case or a GEMM.
    """
    runs = []
    for path in paths:
        document, _ = read_json(path)
        if not is_result(document):
            raise _foreign(path, document, "the suite")
        runs.append(read_rows(document, path))
    if not any(run.cases or run.peaks for run in runs):
        names = ", ".join(map(str, paths)) or "no file"
        raise BadInputError(f"{names}: no case was measured; {MEASURE_AGAIN}")
    return combine(runs)


NAME_A_RESULT = f"name a result of {typed('bench')}, {typed('study')} --grid or {typed('scaling')}"


def result_in(folder: Path, names: Sequence[str]) -> Path:
    """The first of these files that a folder holds; else the one result of the suite that was put
    there under a name of its own, as --benchmark_out does. BadInputError where there is none."""
    if inside := [folder / name for name in names if (folder / name).exists()]:
        return inside[0]
    found = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(BadInputError):
            found += [path] if is_result(read_json(path)[0]) else []
    if len(found) == 1:
        return found[0]
    several = f"holds {len(found)} results ({listed([path.name for path in found], 3)}); name one"
    known = f"{', '.join(names)}, or one result of tiny_llama_bench"
    none = f"holds none of {known}; {NAME_A_RESULT}"
    raise BadInputError(f"{folder}: {several if found else none}")


def read_stored(path: Path) -> StoredRun:
    """A run of the suite, of another Google Benchmark program or of the training program, told by
    its content, or that of a folder; BadInputError, too, for one without cases."""
    if path.is_dir():
        path = result_in(path, (SUITE_FILE, SUMMARY))
    document, data = read_json(path)
    if is_training_summary(document):
        run = read_training(document, path)
    elif is_result(document) and "schema_version" in document["context"]:
        run = read_rows(document, path)
    elif is_result(document):
        run = _read_other(document, path)
    else:
        raise _foreign(path, document, "a Google Benchmark program or of tiny_llama_train")
    if not run.cases:
        raise bad_file(path, "holds no case", MEASURE_AGAIN)
    return replace(run, digest=hashlib.sha256(data).hexdigest())
