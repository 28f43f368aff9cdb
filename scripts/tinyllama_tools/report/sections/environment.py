"""What was measured, on which machine, with which peaks and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.report.document import (
    Cell,
    Column,
    Section,
    Table,
    count_of,
    listed,
    text_column,
)
from tinyllama_tools.report.sources import Kind

if TYPE_CHECKING:
    from tinyllama_tools.data.results import ResultSet
    from tinyllama_tools.report.inputs import ReportInputs

ID, TITLE = "environment", "Environment"
MIB, GIB = 2**20, 2**30
GIGA = 1e9
RESULTS = (
    text_column("result"),
    text_column("architecture"),
    Column("memory", "GiB"),
    Column("last-level cache", "MiB"),
    Column("threads", digits=6),
    text_column("libtorch"),
    Column("rounds", digits=6),
    Column("cases", digits=6),
    Column("skipped", digits=6),
    Column("failed", digits=6),
)
PEAKS = (
    text_column("result"),
    text_column("figure"),
    Column("measured"),
    Column("datasheet"),
    text_column("unit"),
    text_column("measured with"),
)
BANDWIDTHS = {
    "memory_bandwidth": "memory bandwidth",
    "cache_bandwidth": "last-level cache bandwidth",
}


def _commit(context: Mapping[str, Any]) -> str:
    changed = " with changes" if context.get("git_dirty") else ""
    return f"{str(context.get('git_commit') or 'unknown')[:8]}{changed}"


def set_summary(results: ResultSet) -> dict[str, Any]:
    """What the head of the page says of a set."""
    context = results.context
    return {
        "title": results.title,
        "device": (context.get("device") or {}).get("name") or "unknown device",
        "commit": _commit(context),
        "date": str(context.get("date") or "unknown date"),
        "torch": str(context.get("torch_version") or "unknown"),
        "threads": context.get("threads"),
    }


def _result_row(results: ResultSet) -> list[Cell]:
    device, of = results.context.get("device") or {}, set_summary(results)
    failed = sum(case.is_failure for case in results.left_out)
    cache = device.get("last_level_cache_bytes")
    memory = device.get("memory_bytes")
    return [
        of["title"],
        device.get("architecture") or "unknown",
        memory / GIB if memory else None,
        cache / MIB if cache else None,
        of["threads"],
        of["torch"],
        len(results.paths),
        len(results.cases),
        len(results.left_out) - failed,
        failed,
    ]


def _peak_rows(results: ResultSet) -> Iterator[list[Cell]]:
    peaks = results.context.get("peaks") or {}
    datasheet = peaks.get("datasheet") or {}
    for name, peak in (peaks.get("measured") or {}).items():
        source = str(peak.get("source") or "unknown")
        if name in BANDWIDTHS:
            value, unit = peak.get("bytes_per_second"), "GB/s"
            known = datasheet.get("memory_bytes_per_second") if name == "memory_bandwidth" else None
        else:
            value, unit = peak.get("flops_per_second"), "GFLOP/s"
            known = (datasheet.get("flops_per_second") or {}).get(name)
        yield [
            results.title,
            BANDWIDTHS.get(name, f"peak of {name} GEMMs"),
            value / GIGA if value else None,
            known / GIGA if known else None,
            unit,
            source,
        ]


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _settings(results: ResultSet) -> Table:
    settings = results.context.get("settings") or {}
    rows = [[name, str(value)] for name, value in sorted(settings.items())]
    rows += [
        [name, _setting(results.context[name])]
        for name in ("verify", "cold_cache", "seed", "memory_source")
        if name in results.context
    ]
    columns = (text_column("setting"), text_column("value"))
    return Table("settings", f"Settings of {results.title}", columns, rows)


def _sources(inputs: ReportInputs) -> Table:
    rows = [[source.kind.words, shown(source.path)] for source in inputs.sources]
    return Table("sources", "Results taken", (text_column("kind"), text_column("path")), rows)


def _texts(inputs: ReportInputs) -> Iterator[str]:
    main = inputs.main
    if main is not None:
        more = len(inputs.sets) - 1
        beside = f" Beside it under Comparison: {count_of(more, 'result')}." if more else ""
        yield f"The report looks into {main.title}.{beside}"
        against = (main.context.get("peaks") or {}).get("mfu_is_against")
        if against:
            yield f"MFU is against {against}."
    for study in inputs.studies:
        done, planned = (study.description.get(key) for key in ("rounds_done", "rounds"))
        if isinstance(done, int) and isinstance(planned, int) and done < planned:
            why = study.description.get("left_out") or "`scripts/study --resume` goes on with it"
            yield f"The grid study has {done} of {count_of(planned, 'round')}: {why}."
    absent = [kind.words for kind in inputs.absent]
    if absent:
        yield f"Not found: {listed(absent)}."
    for results in inputs.sets:
        yield from results.warnings


def build(inputs: ReportInputs) -> Section:
    """Results, peaks and settings."""
    if not inputs.sets:
        missing = f"no result of the suite was given; make one: {Kind.SUITE.command}"
        return Section(ID, TITLE, tuple(_texts(inputs)), missing, tables=[_sources(inputs)])
    results = Table(
        "results", "Results", RESULTS, [_result_row(s) for s in inputs.sets], is_key=True
    )
    peaks = Table(
        "peaks",
        "Peaks",
        PEAKS,
        [row for results_set in inputs.sets for row in _peak_rows(results_set)],
        "Measured in the same run: the best of large square GEMMs and the model's own shapes; "
        "a triad.",
        is_key=True,
    )
    tables = [results, peaks, _settings(inputs.sets[0]), _sources(inputs)]
    return Section(ID, TITLE, tuple(_texts(inputs)), tables=tables)
