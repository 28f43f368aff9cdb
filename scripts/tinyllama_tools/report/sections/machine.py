"""What was measured on which machine: every case, devices and peaks, several results beside each
other, and what was left out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.core.app import shown_path
from tinyllama_tools.report.analysis import COMPONENTS, name_rank, rank
from tinyllama_tools.report.document import (
    BANDWIDTHS,
    Cell,
    Figure,
    Missing,
    Omission,
    Section,
    Table,
    axis,
    count_of,
    grouped,
    layout,
    listed,
    markers,
)

if TYPE_CHECKING:
    from tinyllama_tools.data.results import MeasuredCase, ResultSet
    from tinyllama_tools.report.inputs import ReportInputs

MILLI, GIGA, MIB, GIB = 1e3, 1e9, 2**20, 2**30
CASE_NOTE = (
    "Time: median over repetitions and rounds, of which the shortest and the longest stand beside "
    "it. Speed-up: over the baseline of the same run. MFU: model FLOPs utilisation, the FLOPs that "
    "the model asks for, over time, of the peak. Bound: what an ideal implementation would wait "
    "for."
)


def ideal_bound(case: MeasuredCase) -> str | None:
    """compute or bandwidth: which of the roofline's two times is the larger; None without one."""
    roof = case.counters.get("roof_percent")
    if not roof:
        return None
    # equal ones may differ in their last digit
    return "bandwidth" if case.counters.get("peak_percent", 0.0) < 0.99999 * roof else "compute"


def cases(page: Section, inputs: ReportInputs) -> None:
    every = sorted(inputs.main_result().cases.values(), key=lambda case: name_rank(case.name))
    rows = [
        [
            *(str(case.name), MILLI * case.median_seconds),
            *(MILLI * end if end else None for end in case.extremes or (None, None)),
            *(case.counters.get(key) for key in ("speedup", "MFU_percent", "roof_percent")),
            ideal_bound(case),
        ]
        for case in every
    ]
    columns = (
        *("case", "time [ms]", "shortest [ms]", "longest [ms]", "speed-up", "MFU [%]"),
        *("of the roofline [%]", "bound"),
    )
    page.tables.append(Table("all_cases", "Every case", columns, rows, CASE_NOTE, is_key=True))


PEAK_NOTE = (
    "Measured in the same run: the best of large square GEMMs and the model's own shapes; a triad."
)


def _result_row(results: ResultSet) -> list[Cell]:
    context = results.context
    device = context.get("device") or {}
    failed = sum(case.is_failure for case in results.left_out)
    cache, memory = device.get("last_level_cache_bytes"), device.get("memory_bytes")
    return [
        results.title,
        device.get("architecture") or "unknown",
        memory / GIB if memory else None,
        cache / MIB if cache else None,
        context.get("threads"),
        str(context.get("torch_version") or "unknown"),
        *(len(results.paths), len(results.cases), len(results.left_out) - failed, failed),
    ]


def _peak_rows(results: ResultSet) -> Iterator[list[Cell]]:
    peaks = results.context.get("peaks") or {}
    datasheet = peaks.get("datasheet") or {}
    for name, peak in (peaks.get("measured") or {}).items():
        if name in BANDWIDTHS:
            value, what, unit = peak.get("bytes_per_second"), BANDWIDTHS[name], "GB/s"
            known = datasheet.get("memory_bytes_per_second") if name == "memory_bandwidth" else None
        else:
            value, what, unit = peak.get("flops_per_second"), f"peak of {name} GEMMs", "GFLOP/s"
            known = (datasheet.get("flops_per_second") or {}).get(name)
        rates = (rate / GIGA if rate else None for rate in (value, known))
        yield [results.title, what, *rates, unit, str(peak.get("source") or "unknown")]


def _said(inputs: ReportInputs) -> Iterator[str]:
    if inputs.main is not None:
        yield f"The report looks into {inputs.main.title}."
        against = (inputs.main.context.get("peaks") or {}).get("mfu_is_against")
        if against:
            yield f"MFU is against {against}."
    for study in inputs.studies:
        done, planned = (study.description.get(key) for key in ("rounds_done", "rounds"))
        if isinstance(done, int) and isinstance(planned, int) and done < planned:
            why = study.description.get("left_out") or "`scripts/study --resume` goes on with it"
            yield f"The grid study has {done} of {count_of(planned, 'round')}: {why}."
    if inputs.absent:
        yield f"Not found: {listed([kind.words for kind in inputs.absent])}."
    for results in inputs.sets:
        yield from results.warnings


def environment(page: Section, inputs: ReportInputs) -> None:
    page.text += _said(inputs)
    taken = [[source.kind.words, shown_path(source.path)] for source in inputs.sources]
    page.tables.append(Table("sources", "Results taken", ("kind", "path"), taken))
    context = inputs.main_result().context
    columns = (
        *("result", "architecture", "memory [GiB]", "last-level cache [MiB]", "threads"),
        *("libtorch", "rounds", "cases", "skipped", "failed"),
    )
    rows = [_result_row(results) for results in inputs.sets]
    peaks = [row for results in inputs.sets for row in _peak_rows(results)]
    of_peaks = ("result", "figure", "measured", "datasheet", "unit", "measured with")
    settings = [[name, str(of)] for name, of in sorted((context.get("settings") or {}).items())]
    more = ("verify", "cold_cache", "seed", "memory_source")
    settings += [[name, str(context[name])] for name in more if name in context]
    page.tables[:0] = [
        Table("results", "Results", columns, rows, is_key=True),
        Table("peaks", "Peaks", of_peaks, peaks, PEAK_NOTE, is_key=True),
        Table("settings", f"Settings of {inputs.sets[0].title}", ("setting", "value"), settings),
    ]


NO_VERDICT = (
    "Differences, without a verdict: results measured one after the other differ by the machine's "
    "day too. `scripts/compare run` measures two builds by turns and states its error rates."
)
ONE_RESULT = "one result was given, and a comparison takes two: scripts/report RESULT RESULT"


def comparison(page: Section, inputs: ReportInputs) -> None:
    """The first result against each other one: by component, and case by case."""
    base, others = inputs.main_result(), inputs.sets[1:]
    if not others:
        raise Missing(ONE_RESULT)
    means: list[list[Cell]] = []
    cases: list[tuple[str, str, float, float, float]] = []
    for results in others:
        logs: dict[str, list[float]] = {}
        for name, case in base.cases.items():
            if name in results.cases:
                times = [of.median_seconds for of in (case, results.cases[name])]
                ratio = times[0] / times[1]
                logs.setdefault(case.name.component, []).append(math.log(ratio))
                cases.append((results.title, name, *(MILLI * of for of in times), ratio))
        for component in sorted(logs, key=lambda name: rank(name, COMPONENTS)):
            found = logs[component]
            means.append([results.title, component, math.exp(statistics.fmean(found)), len(found)])
        if not logs:
            means.append([results.title, "no case in common", None, 0])
    cases.sort(key=lambda of: -abs(math.log(of[-1])))
    traces = []
    for title in dict.fromkeys(of[0] for of in cases):
        _, names, times, _, ratios = zip(*(of for of in cases if of[0] == title), strict=True)
        traces.append(markers(title, times, ratios, text=names))
    axes = layout(axis("time", "ms", log=True), axis("speed-up", "x", log=True))
    note = f"{base.title}'s time over the other's; above 1 is faster. {NO_VERDICT}"
    page.figures.append(Figure("changes", "Case by case", traces, axes, note))
    columns = ("result", "component", "speed-up [x]", "cases")
    means_note = f"Geometric mean of {note}"
    of_cases = ("result", "case", "this result [ms]", "the other [ms]", "speed-up [x]")
    changes = "Case by case, the largest changes first"
    page.tables += [
        Table("speed_ups", "By component", columns, means, means_note, is_key=True),
        Table("case_changes", changes, of_cases, cases, note),
    ]


def case_omissions(inputs: ReportInputs) -> Iterator[Omission]:
    """Cases that were skipped or failed, of every result."""
    for results in inputs.sets:
        place = f" ({results.title})" if len(inputs.sets) > 1 else ""
        for case in results.left_out:
            yield Omission("case", f"{case.name}{place}", case.reason, case.is_failure)


def left_out(page: Section, omissions: Sequence[Omission]) -> None:
    """What went wrong first; names that share a reason stand together."""
    errors = sum(omission.is_error for omission in omissions)
    page.text.append(f"{len(omissions):,} left out; {count_of(errors, 'error')}.")
    every = sorted(omissions, key=lambda omission: not omission.is_error)
    found = grouped(every)
    rows = [[o.kind, "; ".join(n), o.reason, "yes" if o.is_error else ""] for o, n in found]
    columns = ("kind", "name", "reason", "error")
    page.tables.append(Table("omissions", page.title, columns, rows))
