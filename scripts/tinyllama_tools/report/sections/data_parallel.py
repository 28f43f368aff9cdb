"""Data-parallel runs: what each added rank gives, where the rest went, and projections."""

from __future__ import annotations

from collections.abc import Iterator

from tinyllama_tools.report.data_parallel_figures import (
    bandwidth_figure,
    loss_figure,
    projection_figure,
    speedup_figure,
)
from tinyllama_tools.report.data_parallel_tables import (
    check_table,
    efficiency_table,
    fit_table,
    link_table,
    local_table,
    loss_table,
    projection_table,
)
from tinyllama_tools.report.document import Figure, Omission, Section, Table
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.kinds import Kind
from tinyllama_tools.report.scaling_file import ScalingRun
from tinyllama_tools.report.wording import listed
from tinyllama_tools.scaling.files import DOCUMENT
from tinyllama_tools.scaling.tables import collective_notes
from tinyllama_tools.scaling.weak_strong import STRONG, WEAK

ID, TITLE = "data_parallel", "Data-parallel scaling"
MISSING = f"no data-parallel run was given; {Kind.SCALING.command} makes one"
NO_PROJECTION = "no scaling.json is beside the results; scripts/scaling --from FOLDER makes it"
SAME_NAMES = "an earlier run has steps of the same names: --format fom prints its figures only"
METHOD = (
    "Efficiency is one rank's time alone over that of the data-parallel step, in the same round; "
    "the communication's share is what the step takes longer than the same ranks without it."
)


def _what(run: ScalingRun) -> str:
    context, of = run.analysis.context, run.analysis.results[-1].distributed
    device = (context.get("device") or {}).get("name") or "unknown device"
    return f"{run.title}, on {device} over {of['backend']}, buckets of {of['bucket_MiB']:g} MiB."


def _texts(run: ScalingRun) -> Iterator[str]:
    analysis = run.analysis
    yield _what(run)
    for warning in analysis.warnings:
        yield f"Not alike: {warning}."
    yield from collective_notes(analysis)
    # the main way of a step comes first among those of as many ranks
    main = {p.ranks: p for p in reversed(analysis.points) if p.ranks > 1}
    for ranks, point in sorted(main.items()):
        if point.efficiency is not None:
            mode = point.mode.replace("_", " ")
            yield f"{ranks} ranks reach an efficiency of {point.efficiency.text()} % ({mode})."
    missing = (run.projection or {}).get("missing") or {}
    if missing:
        reasons = listed(list(dict.fromkeys(str(reason) for reason in missing.values())))
        yield f"Without a projection: {listed(list(missing))}: {reasons}."


def _figures(run: ScalingRun, mark: str) -> list[Figure]:
    analysis = run.analysis
    figures = []
    if any(point.speedup is not None for point in analysis.points):
        figures.append(speedup_figure(f"speedup{mark}", analysis))
    if any(not one.refusal for one in analysis.waterfalls):
        figures.append(loss_figure(f"scaling_loss{mark}", analysis))
    for ranks in sorted({row.name.ranks for row in analysis.collectives}):
        figures.append(bandwidth_figure(f"collectives_{ranks}{mark}", analysis, ranks))
    name = next((one.name for one in analysis.results if one.name is not None), None)
    for scaling in (WEAK, STRONG):
        if name is not None and any(
            (step.size, step.scaling) == (name.size, scaling) for step in run.projections
        ):
            identity = f"projection_{scaling}{mark}"
            figures.append(projection_figure(identity, run.projections, name.size, scaling))
    return figures


def _tables(run: ScalingRun, mark: str) -> list[Table]:
    analysis = run.analysis
    tables = [
        efficiency_table(f"parallel_efficiency{mark}", analysis),
        loss_table(f"scaling_losses{mark}", analysis),
        fit_table(f"collective_fits{mark}", analysis),
        check_table(f"projection_checks{mark}", analysis),
        local_table(f"local_steps{mark}", run.local_steps),
        projection_table(f"projections{mark}", run.projections),
        link_table(f"projection_links{mark}", run),
    ]
    return [table for table in tables if table.rows]


def _omissions(run: ScalingRun) -> Iterator[Omission]:
    for failure in run.failures:
        # a program's last words may be several lines
        words = " ".join(failure.words.split())
        yield Omission("ranks", f"{run.title}, {failure.ranks} ranks", words, is_error=True)
    for name, reason in run.analysis.failed.items():
        yield Omission("case", name, reason, is_error=True)
    for refusal in run.analysis.refused:
        what, _, reason = refusal.partition(": ")
        yield Omission("latency and bandwidth", what, reason)
    for one in run.analysis.waterfalls:
        if one.refusal:
            yield Omission("loss of a step", f"{run.title}, {one.ranks} ranks", one.refusal)
    if run.refusal:
        yield Omission("projection", f"{run.title}, {DOCUMENT}", run.refusal, is_error=True)
    elif run.projection is None:
        yield Omission("projection", run.title, NO_PROJECTION)


def build(inputs: ReportInputs) -> Section:
    """Of every data-parallel run that was given."""
    if not inputs.scalings:
        return Section(ID, TITLE, missing=MISSING)
    texts, figures, tables, omissions = [METHOD], [], [], []
    named: set[str] = set()
    for number, run in enumerate(inputs.scalings):
        names = {str(row.name) for result in run.analysis.results for row in result.steps.values()}
        if names & named:
            omissions.append(Omission("figures of merit", run.title, SAME_NAMES))
        named |= names
        mark = f"_{number + 1}" if number else ""
        texts += list(_texts(run))
        figures += _figures(run, mark)
        tables += _tables(run, mark)
        omissions += list(_omissions(run))
    return Section(ID, TITLE, texts, figures=figures, tables=tables, omissions=omissions)
