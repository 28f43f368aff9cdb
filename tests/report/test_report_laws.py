"""Laws and memory: they find what the machine was made up with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from played_costs import PlayedSize
from played_grid import (
    BANDWIDTH,
    MIB,
    RATE,
    Grid,
)
from played_study import write_result, write_study
from report_tables import cell, table

from tinyllama_tools.data.names import CaseName
from tinyllama_tools.report.inputs import Foretold, ReportInputs, Series, SeriesFit, read_inputs
from tinyllama_tools.report.law_parts import held_out_summary
from tinyllama_tools.report.sections import (
    memory,
    scaling,
)
from tinyllama_tools.report.sources import source_of
from tinyllama_tools.stats.law_fits import fit_time_law
from tinyllama_tools.stats.laws import GridPoint

STEP = "full_step/train/baseline/small/f32/batch:8/seq:256"


def test_laws_are_those_of_the_machine(inputs: ReportInputs) -> None:
    laws = table(scaling.build(inputs), "time_laws")
    name = "ffn/forward_backward/baseline/tiny/f32"
    one = PlayedSize("tiny", 1, 1).part("ffn")
    two = PlayedSize("tiny", 2, 1).part("ffn")
    a_token = (two.model_flops - one.model_flops) / RATE + (two.bytes - one.bytes) / BANDWIDTH
    assert cell(laws, name, "per token") == pytest.approx(1e9 * a_token, rel=0.02)
    # an FFN does nothing that grows with the square of the sequence
    assert cell(laws, name, "per token and token") is None
    assert "quadratic: " in str(cell(laws, name, "remarks"))


def test_held_out_cells_are_met(inputs: ReportInputs) -> None:
    found = scaling.build(inputs)
    for name in ("tiny", "small"):
        summary = table(found, "held_out_time")
        assert cell(summary, name, "held-out cells") == 33
        assert cell(summary, name, "median error") < 3
        assert cell(summary, name, "which is") == "within 15 %"
        assert cell(summary, name, "covered") > 90
    by_series = table(found, "held_out_time_series")
    counts = {row[1] for row in by_series.rows}
    assert counts == {3}


def test_a_scaling_figure_has_every_point_and_the_held_out(inputs: ReportInputs) -> None:
    figures = {figure.id: figure for figure in scaling.build(inputs).figures}
    figure = figures["time_full_step_train_baseline_small_f32"]
    by_role: dict[str, int] = {}
    for trace in figure.traces:
        by_role[trace["role"]] = by_role.get(trace["role"], 0) + len(trace["y"])
    assert by_role["measured"] == 12
    assert by_role["held_out"] == 3
    assert figure.note.startswith("time = ")
    assert figure.note.endswith("Bars: 95 % interval.")


def test_memory_is_stacked_to_the_measured_peak(inputs: ReportInputs) -> None:
    found = memory.build(inputs)
    stack = next(figure for figure in found.figures if figure.id == "memory_parts")
    labels = stack.traces[0]["x"]
    place = labels.index("8 x 256")
    total = sum(trace["y"][place] for trace in stack.traces)
    costs = PlayedSize("small", 8, 256).case("full_step", "train")
    assert total == pytest.approx(costs.memory / MIB)
    weights = next(trace for trace in stack.traces if trace["name"] == "weights")
    assert weights["y"][place] == pytest.approx(4 * costs.parameters / MIB)
    sizes = next(figure for figure in found.figures if figure.id == "memory_of_sizes")
    assert len(sizes.traces[0]["x"]) == 5
    assert sum(trace["y"][4] for trace in sizes.traces) == pytest.approx(100)
    agreement = table(found, "memory_agreement")
    assert all(row[2] == pytest.approx(0) for row in agreement.rows)


def test_memory_of_a_training_run_is_its_profilers(inputs: ReportInputs) -> None:
    found = memory.build(dataclasses.replace(inputs, sets=(), studies=()))
    assert [figure.id for figure in found.figures] == ["memory_at_peak"]


def test_ranges_of_memory_are_misfits_and_no_intervals(inputs: ReportInputs) -> None:
    found = memory.build(inputs)
    for one in (table(found, "held_out_memory"), table(found, "memory_laws")):
        assert "misfit" in one.note or "without any one of the sizes" in one.note
        assert "95 %" not in one.note
    laws = [figure for figure in found.figures if "memory_full_step" in figure.id]
    assert laws
    assert all("95 %" not in figure.note for figure in laws)
    assert any(figure.note.endswith("Bars: largest misfit.") for figure in laws)
    summary = table(found, "held_out_memory")
    for size in ("tiny", "small"):
        assert cell(summary, size, "median error") < 5


def test_exponents_are_said_to_be_averages(inputs: ReportInputs) -> None:
    note = table(scaling.build(inputs), "time_exponents").note
    assert "hold only as far as the series is a power law" in note


def test_one_round_claims_nothing_of_others(tmp_path: Path) -> None:
    path = write_result(tmp_path / "one.json", Grid(sizes=("tiny",)))
    found = scaling.build(read_inputs([source_of(path)]))
    for identity in ("held_out_time", "held_out_time_series", "time_laws"):
        note = table(found, identity).note
        assert "how much rounds differ is not known" in note
        assert "95 %" not in note


@pytest.mark.parametrize("lost", [(3,), (2, 3)])
def test_a_cell_that_lacks_a_round_is_left_out_of_its_law_and_named(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    folder = write_study(tmp_path / "study", Grid(sizes=("tiny",), components=("ffn", "loss")))
    name = "ffn/forward_backward/baseline/tiny/f32/batch:4/seq:128"
    for number in lost:
        path = folder / f"round_{number}.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = document["benchmarks"]
        kept = [row for row in rows if not row["run_name"].startswith(name)]
        assert len(kept) == len(rows) - 1
        path.write_text(json.dumps({**document, "benchmarks": kept}), encoding="utf-8")
    found = scaling.build(read_inputs([source_of(folder)]))
    laws = table(found, "time_laws")
    assert cell(laws, "ffn/forward_backward/baseline/tiny/f32", "sizes") == 11
    assert cell(laws, "loss/forward_backward/baseline/tiny/f32", "sizes") == 12
    (omission,) = found.omissions
    assert omission.name == name
    assert omission.kind == "time law"
    assert "not measured in the 3 rounds of the other sizes" in omission.reason


def test_a_goal_that_is_missed_is_said() -> None:
    law = fit_time_law(
        [GridPoint(b, s, (1e-3 * b * s,)) for b in (1, 2, 4) for s in (64, 128, 256)]
    )
    name = CaseName("ffn", "forward_backward", "baseline", "tiny", "f32", 4, 256)
    foretold = Foretold(GridPoint(4, 256, (1.0,)), 1.2, 1.1, 1.3, 20.0)
    fit = SeriesFit(Series(name, ()), law.points, law, held_out=(foretold,))
    for goal, verdict in ((15.0, "above 15 %"), (20.0, "within 20 %")):
        summary = held_out_summary("t", "T", [fit], goal)
        assert cell(summary, "tiny", "which is") == verdict
        assert cell(summary, "tiny", "covered") == 0


def test_a_law_without_a_check_is_named(tmp_path: Path) -> None:
    # of four cells three are held out
    grid = Grid(sizes=("tiny",), batches=(1, 2), seqs=(64, 128), components=("ffn",))
    found = scaling.build(read_inputs([source_of(write_study(tmp_path / "study", grid))]))
    (omission,) = found.omissions
    assert omission.kind == "held-out check of a time law"
    assert "sizes that are not held out" in omission.reason


def test_figures_beyond_the_most_are_named(inputs: ReportInputs) -> None:
    fits = scaling.shown_fits(inputs.time_fits)
    figures, omissions = scaling.drawn(fits, scaling.TIME, 3)
    assert len(figures) == 3
    assert [one.name for one in omissions] == [str(fit.series) for fit in fits[3:]]
    assert omissions[0].kind == "figure of time"
