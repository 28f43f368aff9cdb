"""Kernel times that a vendor's profiler wrote, by the component whose range launched the kernel.

docs/vendor_profilers.md has the commands. Columns are those of recorded files and of the tools'
sources: rocprofv3 writes kernel_trace.csv, marker_api_trace.csv, hip_api_trace.csv and
kernel_stats.csv in generateCSV.cpp of ROCm/rocprofiler-sdk, `rocpd convert` the same with a Guid
(amd/HPCTrainingExamples, Rocprofv3/rocpd); rocprof-compute's pmc_perf.csv and its longer form with
a row for each counter are in tests/workloads of ROCm/rocprofiler-compute and ROCm/rocm-systems;
`nsys stats` prints cuda_gpu_kern_sum as cuda_gpu_kern_sum.py of Nsight Systems says, and Nsight
Compute's raw page has a second line of units.
"""

import bisect
import csv
import functools
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tinyllama_tools.core.app import bad_file, decoded, is_number
from tinyllama_tools.core.text import listed

# what --emit-ranges marks, but the phases `forward` and `backward` around them
COMPONENTS = (
    *("data_loading", "optimizer", "evaluation", "embedding", "rms_norm", "residual"),
    *("attention/qkv_proj", "attention/rotary", "attention/core", "attention/o_proj"),
    *("ffn/gate_up_proj", "ffn/swiglu", "ffn/down_proj"),
    *("loss/lm_head", "loss/cross_entropy", "loss/fused"),
)
PAGE = "docs/vendor_profilers.md"
AGAIN = "copy or write it again"


class KernelTime(NamedTuple):
    """`component`: empty for a kernel outside all of ours; `kernel`: empty where the profiler put
    the range in its place."""

    component: str
    kernel: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class KernelProfile:
    """A file of a profiler. `kernels`: one for each component and kernel; at least one takes
    time."""

    path: Path
    tool: str
    kernels: Sequence[KernelTime]

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.kernels)

    def by_component(self) -> dict[str, list[KernelTime]]:
        """Longest first, components and the kernels of each; the kernels outside all come last."""
        found: dict[str, list[KernelTime]] = {}
        for one in sorted(self.kernels, key=lambda kernel: -kernel.seconds):
            found.setdefault(one.component, []).append(one)
        order = sorted(found, key=lambda name: (not name, -sum(k.seconds for k in found[name])))
        return {name: found[name] for name in order}


class Format(NamedTuple):
    """`name`: the column of the kernel; `calls`: empty where a row is one; `times`: of one column
    with nanoseconds (or the units of the first row), or of two with begin and end."""

    tool: str
    name: str
    calls: str
    times: Sequence[str]

    @property
    def columns(self) -> list[str]:
        return [self.name, *filter(None, [self.calls]), *self.times]


LAUNCHES = Format("rocprofv3", "Kernel_Name", "", ("Start_Timestamp", "End_Timestamp"))
STATS = Format("rocprofv3", "Name", "Calls", ("TotalDurationNs",))
NSYS = Format("Nsight Systems", "Name", "Instances", ("Total Time (ns)",))
NCU = Format("Nsight Compute", "Kernel Name", "", ("gpu__time_duration.sum",))
# headings that name the tool better
TOOLS = {"Dispatch_ID": "rocprof-compute", "Guid": "rocpd"}
FORMATS = (LAUNCHES, STATS, NSYS, NCU)
# reports of nsys that name ranges, and why their times cannot be added up
OTHER_REPORTS = {
    "Total Proj Time (ns)": "the gaps between kernels count, and a nested range counts again",
    "NVTX Range": "a kernel counts in every range around it",
}
# as old and new versions of Nsight Compute write them
UNITS = {
    **{"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
    **{"nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0},
}

Record = tuple[int, list[str]]
Row = Mapping[str, str]


def _records(path: Path) -> Iterator[Record]:
    """The number of each line that is not empty, and its cells."""
    try:
        text = decoded(path.read_bytes())
    except OSError as error:
        raise bad_file(path, f"cannot be read: {error.strerror}", "name a CSV file") from error
    except ValueError as error:
        raise bad_file(path, f"is no text: {error}", "name a CSV file") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        yield from ((reader.line_num, record) for record in reader if record)
    except csv.Error as error:
        what = f"line {reader.line_num} cannot be read, as of a file that was cut off: {error}"
        raise bad_file(path, what, AGAIN) from error


def _opened(path: Path, formats: Sequence[Sequence[str]]) -> tuple[list[str], Iterator[Record]]:
    """The headings, which have all columns of a format and may come after lines that a tool prints
    first; and the records below."""
    records = _records(path)
    best: tuple[float, list[str], list[str]] = (0.0, [], [])
    read = 0
    for _, header in records:
        for columns in formats:
            missing = [one for one in columns if one not in header]
            if not missing:
                return header, records
            best = max(best, (1 - len(missing) / len(columns), missing, header))
        for column, why in OTHER_REPORTS.items():
            if column in header:
                what = f"column {column!r}: its times cannot be added up: {why}"
                report = "nsys stats --report cuda_gpu_kern_sum:nvtx-name --format csv"
                raise bad_file(path, what, f"run `{report}` on the same .nsys-rep")
        read += 1
    if not read:
        raise bad_file(path, "is empty", AGAIN)
    share, missing, header = best
    if not share:
        known = listed([" + ".join(columns) for columns in formats], 9)
        raise bad_file(path, f"has no line with the columns {known}", f"see {PAGE}")
    names = listed(header, 12)
    what = f"has no column {', '.join(missing)}; its columns are {names}"
    raise bad_file(path, what, f"it is of another version or report of the tool; see {PAGE}")


def _rows(path: Path, header: list[str], records: Iterable[Record]) -> Iterator[tuple[int, Row]]:
    for line, record in records:
        if len(record) != len(header):
            what = f"line {line} has {len(record)} cells, the headings are {len(header)}"
            raise bad_file(path, what, f"cut off, or more than one table: {AGAIN}")
        yield line, dict(zip(header, record, strict=True))


def _number(path: Path, line: int, row: Row, column: str) -> int | float:
    """Whole where it is written so: a clock's nanoseconds have more digits than a float."""
    text = row[column].replace(",", "")
    try:
        found = int(text) if text.isdecimal() else float(text)
    except ValueError:
        found = -1
    if not is_number(found) or found < 0:
        what = f"line {line}, {column}: {row[column]!r} is no number of 0 or more"
        raise bad_file(path, what, AGAIN)
    return found


@functools.cache
def _attributed(name: str) -> tuple[str, str]:
    """Component and kernel: a name is that of the range (rocprofv3), or has it in front of a slash
    (Nsight)."""
    if name in COMPONENTS:
        return name, ""
    ranges = (one for one in COMPONENTS if name.startswith(f"{one}/"))
    component = next(ranges, "")
    return component, name[len(component) + 1 :] if component else name


# ---- rocprofv3 without renamed kernels: a kernel has the correlation id of its launch (a HIP call;
# from ROCm 7 on of the range, where HIP calls were not traced), which is in a thread's range


def _changes(ranges: Iterable[tuple[int, int, str]]) -> tuple[list[int], list[str]]:
    """When the innermost component of a thread changes, and to which; ranges of a thread nest."""
    times, names = [0], [""]
    still_open: list[tuple[int, str]] = []

    def close(until: float) -> None:
        while still_open and still_open[-1][0] <= until:
            times.append(still_open.pop()[0])
            names.append(still_open[-1][1] if still_open else "")

    for start, end, name in sorted(ranges, key=lambda one: (one[0], -one[1])):
        close(start)
        still_open.append((end, name))
        times.append(start)
        names.append(name)
    close(float("inf"))
    return times, names


def _launches(trace: Path) -> dict[tuple[str, str], str]:
    """By process and correlation id, the component around the launch, from the files that rocprofv3
    wrote beside a trace; empty without them."""
    start = trace.name.removesuffix("kernel_trace.csv")
    columns = ("Function", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp")
    called: dict[tuple[str, str], tuple[tuple[str, str], int]] = {}
    ranges: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for kind in ("marker_api", "hip_api"):
        path = trace.with_name(f"{start}{kind}_trace.csv")
        if start == trace.name or not path.exists():
            continue
        for line, row in _rows(path, *_opened(path, [columns])):
            begin, end = (int(_number(path, line, row, column)) for column in columns[3:])
            process = row.get("Guid", "")
            thread = (process, row["Thread_Id"])
            called[process, row["Correlation_Id"]] = (thread, begin)
            if kind == "marker_api" and row["Function"] in COMPONENTS:
                ranges.setdefault(thread, []).append((begin, end, row["Function"]))
    changes = {thread: _changes(own) for thread, own in ranges.items()}
    found = {}
    for key, (thread, begin) in called.items():
        if thread in changes:
            times, names = changes[thread]
            found[key] = names[bisect.bisect_right(times, begin) - 1]
    return found


def _kernel_times(path: Path, header: list[str], rows: Iterable[Record]) -> Iterator[KernelTime]:
    """One for each row; of a table with a row for each counter one for each launch."""
    kind = next(one for one in FORMATS if all(column in header for column in one.columns))
    launches = _launches(path) if kind is LAUNCHES else {}
    seen: set[tuple[str, ...]] = set()
    unit = 1e-9
    for line, row in _rows(path, header, rows):
        name = row[kind.name]
        if kind is NCU and not name:
            if (text := row[kind.times[0]]) not in UNITS:
                what = f"line {line}, {kind.times[0]}: its unit is {text!r}"
                raise bad_file(path, what, f"must be one of {', '.join(UNITS)}: {AGAIN}")
            unit = UNITS[text]
            continue
        if "Counter_Name" in header:
            launch = (name, *(row[column] for column in kind.times))
            if launch in seen:
                continue
            seen.add(launch)
        calls = _number(path, line, row, kind.calls) if kind.calls else 1
        *begin, end = (_number(path, line, row, column) for column in kind.times)
        if begin and end < begin[0]:
            what = f"line {line}: it ends ({end}) before it begins ({begin[0]})"
            raise bad_file(path, what, AGAIN)
        component, kernel = _attributed(name)
        key = (row.get("Guid", ""), row.get("Correlation_Id", ""))
        component = component or launches.get(key, "")
        yield KernelTime(component, kernel, int(calls), unit * (end - sum(begin)))


def read_kernel_profile(path: Path) -> KernelProfile:
    """BadInputError for a file that is no table of kernel times, lacks a column, was cut off, or
    has a cell that is no number."""
    header, records = _opened(path, [one.columns for one in FORMATS])
    kind = next(one for one in FORMATS if all(column in header for column in one.columns))
    if kind is STATS and not path.name.endswith("kernel_stats.csv"):
        what = "is not named ...kernel_stats.csv, and other tables of rocprofv3 look the same"
        raise bad_file(path, what, "name that file, or give it its own name again")
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for one in _kernel_times(path, header, records):
        calls, seconds = found.get(one[:2], (0, 0.0))
        found[one[:2]] = (calls + one.calls, seconds + one.seconds)
    profile = KernelProfile(
        path,
        next((tool for heading, tool in TOOLS.items() if heading in header), kind.tool),
        [KernelTime(*name, *amount) for name, amount in found.items()],
    )
    if not profile.seconds:
        raise bad_file(path, "no kernel in it takes time", "profile again, on a GPU")
    return profile
