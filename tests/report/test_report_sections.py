"""What the sections show, held to the made-up machine's own formulas; Markdown and figures of
merit."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played_grid import (
    BANDWIDTH,
    DEVICE,
    MEDIUM,
    MIB,
    PEAK,
    PRODUCT_RATE,
    RATE,
    SMALL,
    Grid,
    Json,
    costs_of,
    frontier_head,
    frontier_point,
    largest_batch,
    round_document,
    step_costs,
    true_seconds,
)
from played_study import cell, change, read, table, write, write_result, write_study, write_training

from tinyllama_tools.core.app import PROJECT, problem_sizes
from tinyllama_tools.data.machine import SHARES
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.results import ResultSet
from tinyllama_tools.models.roofline import roofline_of
from tinyllama_tools.models.speed_of_light import step_products
from tinyllama_tools.report import command
from tinyllama_tools.report.analysis import (
    SeriesFit,
    headline_steps,
    lacks_parts,
    main_step,
)
from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import Document, Figure, Section, Table, compact, number_text
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.output import figures_of_merit, markdown_of, plain
from tinyllama_tools.report.sections import SECTIONS, laws, step
from tinyllama_tools.stats.laws import GridPoint, HeldOutCell, fit_time_law

SMALL_STEP = "full_step/train/baseline/small/f32/batch:8/seq:256"
TINY_STEP = "full_step/train/baseline/tiny/f32/batch:8/seq:128"
FFN = "ffn/forward_backward/baseline/tiny/f32"


def section(of: Document | ReportInputs, identity: str) -> Section:
    """Of a report, or made of its inputs alone."""
    if isinstance(of, Document):
        return next(one for one in of.sections if one.id == identity)
    page = Section(identity, identity)
    next(fill for name, _, fill in SECTIONS if name == identity)(page, of)
    return page


def figure(of: Section, identity: str) -> Figure:
    return next(one for one in of.figures if one.id == identity)


def missing_of(built: Document) -> dict[str, str]:
    return {one.id: one.missing for one in built.sections if one.missing}


def main_of(inputs: ReportInputs) -> ResultSet:
    assert inputs.main is not None
    return inputs.main


def test_the_report_is_whole_with_own_ids_and_plain_json(built: Document) -> None:
    assert [one.id for one in built.sections] == [*(name for name, *_ in SECTIONS), "left_out"]
    assert missing_of(built) == {} and built.omissions == []
    assert built.title == "Tiny LLaMA on Played CPU · cccccccc · 2026-03-04"
    figures = [one for part in built.sections for one in part.figures]
    for things in (figures, [one for part in built.sections for one in part.tables]):
        assert len({one.id for one in things}) == len(things) > 10
    for one in figures:
        found = json.loads(json.dumps(compact(one.as_json()), allow_nan=False))
        assert sum(len(trace["y"]) for trace in found["traces"]) == one.points > 0
        assert None not in [y for trace in found["traces"] for y in trace["y"]], one.id


def test_values_of_a_document() -> None:
    found = compact({"a": [1.23456789, math.nan, -0.0, math.inf], "n": 123456789, "t": True})
    assert found == {"a": [1.2346, None, 0, None], "n": 123456789, "t": True}
    with pytest.raises(ValueError, match="t: 1 cells under 2 headings"):
        Table("t", "T", ["a", "b"], [[1]])
    numbers = {
        **{0.0: "0", 71.2345: "71.23", 0.0123456: "0.01235", 9.99996: "10.00", 12345.6: "12,346"},
        **{-3.5: "-3.500", 0.00001234: "1.234e-05", 2.5e20: "2.500e+20", 2873600: "2,873,600"},
    }
    assert {value: number_text(value) for value in numbers} == numbers


def test_roles_have_colours_and_series_have_their_own() -> None:
    def trace(name: str, **more: Any) -> Json:  # noqa: ANN401
        return {"name": name, "x": [1], "y": [1], **more}

    roles = ("measured", "measured", "fit", "fit", "roof", "roof", "light")
    groups = ("a", "b", "a", "b", None, None, None)
    given = [
        trace("<b>", role=role, **({"legendgroup": group} if group else {}))
        for role, group in zip(roles, groups, strict=True)
    ]
    axes = {"xaxis": {"type": "log"}, "yaxis": {"type": "log", "tickvals": [1]}}
    wide = [trace("w", mode="lines") | {"x": [1, 300], "y": [1, 1e5]}]
    found = Figure("f", "F", [*given, *wide], axes).as_json()
    colours = [one["line"]["color"] for one in found["traces"]]
    assert colours[0] == colours[2] != colours[1] == colours[3]
    assert colours[4] == colours[5] and colours[6] not in colours[:6]
    # names from files are no markup
    assert found["traces"][0]["name"] == "&lt;b>"
    # steps of 1, 2, 5 over two decades; ticks that were given stay
    assert found["layout"]["xaxis"]["dtick"] == "D2" and "dtick" not in found["layout"]["yaxis"]


def test_a_training_run_alone_names_what_is_missing(tmp_path: Path) -> None:
    built = build_document(read(write_training(tmp_path / "run")))
    found = missing_of(built)
    assert set(found) == {name for name, *_ in SECTIONS} - {"memory", "training"}
    assert all("scripts/" in reason for reason in found.values())
    assert [table.id for table in section(built, "environment").tables] == ["sources"]
    assert [one.id for one in section(built, "memory").figures] == ["memory_at_peak"]
    assert (built.facts, built.title) == ([], "Tiny LLaMA on performance_summary.json")
    assert build_document(ReportInputs(), "Mine").title == "Mine"


def test_a_fault_in_one_part_leaves_the_others(
    inputs: ReportInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("nothing here")

    of_sections = (("roofline", "Roofline", broken), *command.SECTIONS[1:])
    monkeypatch.setattr(command, "SECTIONS", of_sections)
    monkeypatch.setattr(command, "SUMMARY", (("the machine", broken), *command.SUMMARY[1:]))
    built = build_document(inputs)
    reason = "not foreseen: KeyError: 'nothing here'"
    assert missing_of(built) == {"roofline": reason}
    assert built.facts[0].what == "training step"
    found = [(one.kind, one.reason) for one in built.omissions if one.is_error]
    assert found == [("summary", reason), ("section", reason)] and built.errors == 2


def test_without_peaks_there_is_no_roofline_and_failures_are_named(tmp_path: Path) -> None:
    def spoil(content: Json) -> None:
        content["context"] |= {"peaks": {"measured": {}}}
        rows = content["benchmarks"]
        rows[0] |= {"error_occurred": True, "error_message": "wrong result"}
        rows[1] |= {"skipped": True, "skip_message": "does not fit"}

    built = build_document(read(change(write_result(tmp_path / "a.json", SMALL), spoil)))
    found = section(built, "environment")
    assert "peaks" not in [table.id for table in found.tables]
    assert "cache_bandwidth" in missing_of(built)["roofline"]
    # one size alone supports no law
    assert "1 size: 3 coefficients" in missing_of(built)["scaling"]
    assert {"time", "memory"}.isdisjoint(missing_of(built))
    cases = {one.reason: one.is_error for one in built.omissions if one.kind == "case"}
    assert cases == {"wrong result": True, "does not fit": False}
    assert len(section(built, "left_out").tables[0].rows) == len(built.omissions)


def test_a_size_without_a_name_has_laws_but_no_parts(tmp_path: Path) -> None:
    text = json.dumps(round_document(Grid(sizes=("tiny",)))).replace("/tiny/", "/custom/")
    built = build_document(read(write(tmp_path / "a.json", json.loads(text))))
    assert "size 'custom' are not known" in missing_of(built)["time"]
    assert "scaling" not in missing_of(built) and built.errors == 0
    # of one round
    for identity in ("held_out_time", "held_out_time_series", "time_laws"):
        note = table(section(built, "scaling"), identity).note
        assert "how much rounds differ is not known" in note and "95 %" not in note


def test_every_case_is_in_the_first_table_and_peaks_in_the_second(
    inputs: ReportInputs, built: Document
) -> None:
    (found,) = section(built, "cases").tables
    rows, main = {row[0]: row for row in found.rows}, main_of(inputs)
    assert set(rows) == set(main.cases)
    for name, case in main.cases.items():
        _, time, low, high, _, mfu, roof, bound = rows[name]
        assert time == pytest.approx(1e3 * case.median_seconds)
        assert (low, high) == (1e3 * min(case.seconds), 1e3 * max(case.seconds))
        assert mfu == case.counters.get("MFU_percent")
        peak, roof_share = (case.counters.get(key) for key in ("peak_percent", "roof_percent"))
        assert roof == roof_share is not None
        assert bound == ("compute" if peak == pytest.approx(roof) else "bandwidth"), name
    assert {row[7] for row in found.rows} == {"compute", "bandwidth"}
    environment = section(built, "environment")
    peaks = {(row[0], row[1]): row[2:] for row in table(environment, "peaks").rows}
    device = next(title for title, _ in peaks if title.startswith(DEVICE))
    expected = [PEAK / 1e9, None, "GFLOP/s", "product, 1024x1024x1024"]
    assert peaks[device, "peak of f32 GEMMs"] == expected
    begun = inputs.studies[0]._replace(description={"rounds_done": 1, "rounds": 3})
    said = "The grid study has 1 of 3 rounds: `scripts/study --resume` goes on with it."
    assert said in section(replace(inputs, studies=(begun,)), "environment").text


def test_the_comparison_has_every_case_and_geometric_means(built: Document) -> None:
    first, second = (one["seconds"] for one in built.comparison["sets"])
    names = built.comparison["cases"]
    assert len(names) == len(first) == len(second)
    assert first[names.index(TINY_STEP)] / second[names.index(TINY_STEP)] == pytest.approx(
        1.5, rel=0.05
    )
    (found,) = section(built, "comparison").tables
    for _, component, mean, count in found.rows:
        ratios = [
            one / other
            for name, one, other in zip(names, first, second, strict=True)
            if name.startswith(f"{component}/")
        ]
        assert (mean, count) == (pytest.approx(statistics.geometric_mean(ratios)), len(ratios))


def test_training_shows_phases_and_losses(inputs: ReportInputs) -> None:
    (run,) = inputs.trainings
    phases, losses = section(inputs, "training").figures
    total = sum(of["seconds"] for of in run.summary["summary"]["breakdown"].values())
    assert sum(trace["x"][0] for trace in phases.traces) == pytest.approx(1e3 * total)
    assert losses.traces[0]["y"] == [step["loss"] for step in run.summary["steps"]]


def test_the_ablation_is_the_files(inputs: ReportInputs) -> None:
    found = section(inputs, "ablation")
    (read_again,) = inputs.ablations
    point = read_again.study.main.points()[0]
    rows = {row[0]: row for row in table(found, "ablation_1").rows}
    seconds = [read_again.study.main.get(n, point).seconds for n in ("baseline", "optimized")]
    assert rows["optimized"][1] == pytest.approx(1e3 * seconds[1])
    # the median of ratios is near that of medians
    assert rows["optimized"][2] == pytest.approx(seconds[0] / seconds[1], rel=0.1)
    (trace,) = figure(found, "ablation_plot_1").traces
    assert trace["x"][trace["y"].index("optimized")] == rows["optimized"][2]
    _, _, ratio, low, high, *_ = rows["optimized"]
    place = trace["y"].index("optimized")
    for end, length in (("array", high - ratio), ("arrayminus", ratio - low)):
        assert trace["error_x"][end][place] == pytest.approx(length)


def test_roofline_shows_every_case_and_product(inputs: ReportInputs) -> None:
    found, main = section(inputs, "roofline"), main_of(inputs)
    traces = (trace for trace in found.figures[0].traces if trace.get("role") != "roof")
    assert sum(len(trace["x"]) for trace in traces) == len(main.cases) + len(main.products)
    points = table(found, "roofline_points")
    costs = step_costs("small", 8, 256)
    assert len(points.rows) == len(main.cases)
    assert cell(points, SMALL_STEP, "bound") == "compute"
    assert cell(points, SMALL_STEP, "intensity") == pytest.approx(costs.model_flops / costs.bytes)
    rates = [row[2] for row in table(found, "product_points").rows]
    assert rates == pytest.approx([PRODUCT_RATE / 1e9] * len(rates))
    launch = figure(found, "launch_bound")
    (region,) = launch.layout["shapes"]
    start = roofline_of(main).launch
    assert start is not None
    assert region["x0"] < region["x1"] == pytest.approx(PEAK * start.seconds)
    roof = dict(zip(launch.traces[0]["x"], launch.traces[0]["y"], strict=True))
    assert roof[region["x1"]] == pytest.approx(PEAK / 1e9)
    # at most as much as that for each operator, but of the case that it was inferred from
    for row in points.rows:
        starts = 1e3 * main.cases[row[0]].counters["operators"] * start.seconds
        assert row[8] == (None if row[0] == start.source else pytest.approx(starts))


def test_of_many_cases_those_that_lose_most_are_listed(
    inputs: ReportInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = table(section(inputs, "roofline"), "roofline_points").rows
    monkeypatch.setattr(step, "ALL_ROWS", 50)
    monkeypatch.setattr(step, "MOST_ROWS", 40)
    seconds = {name: case.median_seconds for name, case in main_of(inputs).cases.items()}
    # name, intensity, rate, attainable
    lost = {row[0]: seconds[row[0]] * (1 - row[2] / row[3]) for row in everything}
    other = replace(main_of(inputs).products[0], type_name="bf16")
    changed = replace(main_of(inputs), products=(*main_of(inputs).products, other))
    found = section(replace(inputs, sets=(changed,)), "roofline")
    points = table(found, "roofline_points")
    assert [row[0] for row in points.rows] == sorted(lost, key=lost.__getitem__)[:-41:-1]
    assert "The 40 of 264 cases" in points.note
    reasons = [(o.name, "no peak of bf16" in o.reason) for o in found.omissions]
    assert reasons == [(other.name, True)]


def test_a_row_above_its_peak_is_shown_with_its_time_and_the_reason(tmp_path: Path) -> None:
    reason = "107 % of the measured f32 peak: the time, the count or the peak is wrong"

    def spoil(content: Json) -> None:
        (entry,) = (e for e in content["benchmarks"] if e["run_name"].startswith(TINY_STEP))
        for share in SHARES:
            entry.pop(share, None)
        entry["above_peak"] = reason

    found = read(change(write_result(tmp_path / "a.json", SMALL), spoil))
    built = build_document(found)
    (fact,) = [fact for fact in built.facts if fact.what == "training step"]
    assert fact.note.endswith(reason)
    assert f"{TINY_STEP}: {reason}" in section(built, "environment").text
    roofline = section(built, "roofline")
    (shown,) = (row for row in roofline.tables[0].rows if row[0] == TINY_STEP)
    assert shown[4] is None and shown[2] > 0
    assert [(o.name, o.reason) for o in roofline.omissions] == [(TINY_STEP, reason)]
    lines = figures_of_merit(found, 0)
    assert f"{TINY_STEP}/time " in lines and f"{TINY_STEP}/TFLOPS " in lines
    assert not [share for share in SHARES if f"{TINY_STEP}/{share} " in lines]


def test_speed_of_light_of_the_step(inputs: ReportInputs) -> None:
    found = section(inputs, "speed_of_light")
    parts = table(found, "speed_of_light_parts")
    costs = step_costs("small", 8, 256)
    truth = 1e3 * true_seconds("full_step", costs)
    assert cell(parts, "step", "measured") == pytest.approx(truth, rel=0.03)
    of = step_products(problem_sizes()["small"], 8, 256)
    scores = sum(product.flops for product in of if product.layer in ("scores", "values"))
    # scores at the peak, 257 of 512 of them not masked
    light = (costs.model_flops - scores) / PRODUCT_RATE + scores * 257 / 512 / PEAK
    assert cell(parts, "step", "GEMMs") == pytest.approx(1e3 * light)
    for row in parts.rows:
        _, _, measured, least, lost, _, _, share = row
        assert lost == pytest.approx(measured - least)
        if share is not None:
            assert share == pytest.approx(100 * least / measured)
    steps = table(found, "speed_of_light_steps")
    assert [row[0].split(",")[0] for row in steps.rows] == ["tiny", "small"]
    assert all(0 < row[3] < 100 for row in steps.rows)


def test_without_a_bound_there_is_no_share(inputs: ReportInputs) -> None:
    cases = {
        name: replace(case, seconds=(1e-9,)) if case.name.component == "loss" else case
        for name, case in main_of(inputs).cases.items()
    }
    spoilt = replace(inputs, sets=(replace(main_of(inputs), cases=cases),))
    found = section(spoilt, "speed_of_light")
    assert [o.name for o in found.omissions if o.is_error and o.reason.startswith("loss:")]
    assert cell(table(found, "speed_of_light_parts"), "step", "share") is None
    assert all(row[3] is None for row in table(found, "speed_of_light_steps").rows)
    # nothing is drawn of what is not known
    assert figure(section(spoilt, "time"), "products_plot").points == 0


def test_parts_phases_and_products_add_up_to_the_step(tmp_path: Path, inputs: ReportInputs) -> None:
    found = section(inputs, "time")
    (trace,) = figure(found, "waterfall_plot").traces
    assert trace["measure"] == ["relative"] * (len(trace["x"]) - 1) + ["total"]
    assert sum(trace["y"][:-1]) == pytest.approx(trace["y"][-1])
    by_step: Counter[str] = Counter()
    for of, _, _, share, _ in table(found, "phases").rows:
        by_step[of] += share
    assert dict(by_step) == pytest.approx(dict.fromkeys(by_step, 100.0)) and len(by_step) == 2
    for identity in ("phases_plot", "products_plot"):
        for place in range(2):
            shares = [trace["x"][place] for trace in figure(found, identity).traces]
            assert sum(shares) == pytest.approx(100)
    lost = [row[1] for row in table(found, "most_lost").rows]
    assert len(lost) == 5 and lost == sorted(lost, reverse=True)
    # a profile of the same step on the same device shows what GEMMs took
    (run,) = read(write_training(tmp_path)).trainings
    here = run.summary["context"] | {"threads": 2, "device": main_of(inputs).context["device"]}
    same = run._replace(summary={**run.summary, "context": here})
    for one, is_shown in ((run, False), (same, True)):
        of_run = section(replace(inputs, trainings=(one,)), "time")
        bars = {
            trace["name"]: dict(zip(trace["y"], trace["x"], strict=True))
            for trace in figure(of_run, "products_plot").traces
        }
        measured = run.summary["operators"]["matrix_product_percent"]
        shown = bars.get("GEMMs, profiled", {})
        assert shown == ({f"{run.name} (profiled)": measured} if is_shown else {})


def test_the_main_step_has_parts_and_is_optimized_before_it_is_large(
    tmp_path: Path, inputs: ReportInputs
) -> None:
    assert str(main_step(main_of(inputs)).name) == SMALL_STEP
    headlines = [str(step.name) for step in headline_steps(main_of(inputs))]
    assert headlines == [TINY_STEP, SMALL_STEP]
    whole = round_document(replace(SMALL, variants=("baseline", "optimized")))
    bare = Grid(sizes=("small",), batches=(8,), seqs=(256,), components=("full_step",))
    rows = [*round_document(bare)["benchmarks"], *whole["benchmarks"]]
    (both,) = read(write(tmp_path / "a.json", whole | {"benchmarks": rows})).sets
    name = main_step(both).name
    assert (name.size, name.variant, lacks_parts(both, name)) == ("tiny", "optimized", False)
    (alone,) = read(write_result(tmp_path / "b.json", bare)).sets
    assert main_step(alone).name.size == "small" and lacks_parts(alone, main_step(alone).name)


def test_laws_are_those_of_the_machine(inputs: ReportInputs) -> None:
    found = section(inputs, "scaling")
    of_laws = table(found, "time_laws")
    one, two = (costs_of("ffn", "tiny", batch, 1) for batch in (1, 2))
    a_token = (two.model_flops - one.model_flops) / RATE + (two.bytes - one.bytes) / BANDWIDTH
    assert cell(of_laws, FFN, "per token") == pytest.approx(1e9 * a_token, rel=0.02)
    # an FFN does nothing that grows with the square of the sequence
    assert cell(of_laws, FFN, "per token and token") is None
    assert "quadratic: " in cell(of_laws, FFN, "remarks")
    exponents = table(found, "time_exponents")
    of_step = SMALL_STEP.partition("/batch")[0]
    assert 0.8 < cell(exponents, of_step, "batch ^") < 1
    assert 0.8 < cell(exponents, of_step, "sequence ^") < 1.2
    summary = table(found, "held_out_time")
    for name in ("tiny", "small"):
        assert cell(summary, name, "held-out cells") == 33
        assert cell(summary, name, "median error") < 3
        assert cell(summary, name, "which is") == "within 15 %"
        assert cell(summary, name, "covered") > 90
    assert {row[1] for row in table(found, "held_out_time_series").rows} == {3}
    drawn = figure(found, f"time_{re.sub(chr(47), '_', of_step)}")
    points = Counter(dict.fromkeys(("measured", "held_out"), 0))
    for trace in drawn.traces:
        points[trace["role"]] += len(trace["y"])
    assert (points["measured"], points["held_out"]) == (12, 3)
    assert drawn.note.startswith("time = ") and drawn.note.endswith("Bars: 95 % interval.")


@pytest.mark.parametrize("lost", [(3,), (2, 3)])
def test_a_cell_that_lacks_a_round_is_left_out_of_its_law_and_named(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    folder = write_study(tmp_path / "study", Grid(sizes=("tiny",), components=("ffn", "loss")))
    name = f"{FFN}/batch:4/seq:128"

    def without(content: Json) -> None:
        rows = content["benchmarks"]
        content["benchmarks"] = [row for row in rows if not row["run_name"].startswith(name)]

    for number in lost:
        change(folder / f"round_{number}.json", without)
    found = section(read(folder), "scaling")
    of_laws = table(found, "time_laws")
    assert cell(of_laws, FFN, "sizes") == 11
    assert cell(of_laws, FFN.replace("ffn", "loss"), "sizes") == 12
    (omission,) = found.omissions
    assert (omission.name, omission.kind) == (name, "time law")
    assert "not measured in the 3 rounds of the other sizes" in omission.reason


def test_held_out_cells_are_counted_and_a_goal_that_is_missed_is_said() -> None:
    points = [GridPoint(b, s, (1e-3 * b * s,)) for b in (1, 2, 4) for s in (64, 128, 256)]
    law = fit_time_law(points)
    name = CaseName("ffn", "forward_backward", "baseline", "tiny", "f32", 4, 256)
    predicted = HeldOutCell(GridPoint(4, 256, (1.0,)), 1.2, 1.1, 1.3)
    fit = SeriesFit(name, law.points, law=law, held_out=(predicted,))
    for goal, verdict in ((15.0, "above 15 %"), (20.0, "within 20 %")):
        summary, of_series = laws.held_out_tables([fit], laws.TIME._replace(goal=goal))
        assert cell(summary, "tiny", "which is") == verdict
        assert cell(summary, "tiny", "covered") == cell(of_series, fit.series, "covered") == 0
        assert cell(summary, "tiny", "median width") == pytest.approx(100 * 0.2 / 1.2)
        assert cell(of_series, fit.series, "largest error") == pytest.approx(20)


def test_a_law_without_a_check_and_one_too_many_are_named(
    tmp_path: Path, inputs: ReportInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of four cells three are held out
    grid = Grid(sizes=("tiny",), batches=(1, 2), seqs=(64, 128), components=("ffn",))
    (omission,) = section(read(write_study(tmp_path / "study", grid)), "scaling").omissions
    assert omission.kind == "held-out check of a time law"
    monkeypatch.setattr(laws, "TIME", laws.TIME._replace(most_figures=3))
    found = section(inputs, "scaling")
    assert len(found.figures) == 3
    shown = laws.shown_fits(inputs.time_fits)
    named = [("figure of time", fit.series) for fit in shown[3:]]
    assert [(one.kind, one.name) for one in found.omissions] == named


def test_memory_is_stacked_to_the_measured_peak_and_has_misfits(inputs: ReportInputs) -> None:
    found = section(inputs, "memory")
    traces = figure(found, "memory_parts").traces
    place = traces[0]["x"].index("8 x 256")
    costs = step_costs("small", 8, 256)
    assert sum(trace["y"][place] for trace in traces) == pytest.approx(costs.memory / MIB)
    weights = next(trace for trace in traces if trace["name"] == "weights")
    assert weights["y"][place] == pytest.approx(4 * costs.parameters / MIB)
    sizes = figure(found, "memory_of_sizes").traces
    assert len(sizes[0]["x"]) == 5
    assert sum(trace["y"][4] for trace in sizes) == pytest.approx(100)
    assert all(row[2] == pytest.approx(0) for row in table(found, "memory_agreement").rows)
    for name in ("tiny", "small"):
        assert cell(table(found, "held_out_memory"), name, "median error") < 5
    for one in (table(found, "held_out_memory"), table(found, "memory_laws")):
        assert "misfit" in one.note and "95 %" not in one.note


PARAMETERS = 2_873_600.0


def test_gradients_are_a_part_where_the_update_is_the_peak() -> None:
    def parts(peak: float, variant: str = "baseline") -> Any:  # noqa: ANN401
        name = CaseName("full_step", "train", variant, "tiny", "f32", 1, 64)
        return laws.memory_parts(name, PARAMETERS, peak)

    of = problem_sizes()["tiny"]
    hidden, heads = of["hidden_dim"], of["n_heads"]
    largest = hidden * max(of["vocab_size"], of["intermediate_dim"])
    tokens = 4 * (2 * 64 * hidden // heads + heads // of["n_kv_heads"] * 64**2) + 16 * 64
    update = 16 * PARAMETERS + 4 * largest + tokens
    found = parts(update)
    assert found[laws.GRADIENTS] == found[laws.WEIGHTS] == 4 * PARAMETERS
    assert sum(found.values()) == pytest.approx(update)
    # 1 % above it the backward pass is the peak, and how many gradients there are is not known
    backward = parts(1.01 * update)
    assert (laws.GRADIENTS in backward, laws.REST in backward) == (False, True)
    # another update needs another scratch, which no count tells
    assert laws.GRADIENTS not in parts(update, "optimized")
    assert parts(11 * PARAMETERS) == {}


def test_the_frontier_is_the_files(tmp_path: Path, inputs: ReportInputs) -> None:
    found = section(inputs, "frontier")
    rows = {(row[0], row[3]): row[4] for row in table(found, "frontier_seq").rows}
    assert rows["tiny", 128] == largest_batch("tiny", 128)
    nothing = [row for row in table(found, "frontier_seq").rows if row[4] == 0]
    assert nothing and all(row[-1] == "not even 1 fits" for row in nothing)
    assert found.figures[0].points == len(rows) - len(nothing)
    note = table(found, "frontier_seq").note
    assert "none: made up" in note and f"{DEVICE}, commit cccccccc, 2026-03-04" in note
    tried = {"confirmed": "880 ran, 881 did not", "confirmed_seq": 880, "apart_percent": 2.3}
    point = frontier_point(batch=4, longest_seq=900, **tried)
    over_batches = frontier_head(1 << 30, "--memory-limit") | {"sequences": [point]}
    others = read(write(tmp_path / "f.json", over_batches)).frontiers
    both = section(replace(inputs, frontiers=(*others, *inputs.frontiers)), "frontier")
    assert [one.id for one in both.tables] == ["frontier_seq", "frontier_batch"]
    assert table(both, "frontier_batch").rows[0][4:8] == [900, 1024, 880, 2.3]
    facts = {of.what: of for of in build_document(replace(inputs, frontiers=others)).facts}
    longest = facts["longest sequence in 1 GiB"]
    assert (longest.value, longest.note) == ("900", "tiny, baseline, f32, at batch 4")


@pytest.mark.parametrize(
    ("day", "ids"), [(5, ("", "_not_tried")), (3, ("_tried", ""))], ids=["newer", "older"]
)
def test_what_was_tried_within_a_smaller_limit_stands_beside_what_fits(
    tmp_path: Path, inputs: ReportInputs, day: int, ids: tuple[str, str]
) -> None:
    tried = {"confirmed": "30, as predicted", "confirmed_batch": 30, "apart_percent": 0.0}
    points = [frontier_point(seq=128, largest_batch=30, **tried)]
    head = frontier_head(1 << 30, "--memory-limit") | {"date": f"2026-03-0{day}T00:00:00+00:00"}
    others = read(write(tmp_path / "frontier.json", head | {"points": points})).frontiers
    both = replace(inputs, frontiers=(*inputs.frontiers, *others))
    found = section(both, "frontier")
    of_tries, whole = (table(found, f"frontier_seq{end}") for end in ids)
    assert of_tries.rows[0][4:8] == [30, 1024, 30, 0]
    assert len(whole.rows) > 5
    assert len({one.id for one in found.figures}) == len(found.figures) == 2
    # the largest limit is what there is
    assert [of.what for of in build_document(both).facts if "batch in" in of.what] == [
        "largest batch in 24 GiB"
    ]


@pytest.mark.parametrize(
    ("date", "device", "is_taken"),
    [
        ("2099-01-01T00:00:00+00:00", DEVICE, True),
        ("2001-01-01T00:00:00+00:00", DEVICE, False),
        ("2099-01-01T00:00:00+00:00", "Another CPU", False),
        ("2099-01-01T00:00:00+00:00", "", True),
        ("", DEVICE, False),
    ],
)
def test_a_studys_frontier_stays_unless_a_newer_one_is_of_its_device(
    tmp_path: Path, inputs: ReportInputs, date: str, device: str, *, is_taken: bool
) -> None:
    head = frontier_head() | {"date": date, "device": device}
    points = [frontier_point(seq=128, largest_batch=7)]
    (other,) = read(write(tmp_path / "frontier.json", head | {"points": points})).frontiers
    found = section(replace(inputs, frontiers=(other, *inputs.frontiers)), "frontier")
    assert (len(table(found, "frontier_seq").rows) == 1) == is_taken
    alone = section(replace(inputs, frontiers=(other,)), "frontier")
    assert table(alone, "frontier_seq").rows[0][4] == 7


MEDIUM_STEP = CaseName("full_step", "train", "baseline", "medium", "f32", 16, 512)


def test_predictions_hold_what_the_machine_would_take(tmp_path: Path, inputs: ReportInputs) -> None:
    steps = inputs.predictions.steps
    assert [one.cost.name.size for one in steps] == list(problem_sizes())
    kinds = ["calibrated on this size"] * 2 + ["prediction"] * 3
    assert [one.kind for one in steps] == kinds
    for one in steps:
        of = one.cost.name
        truth = true_seconds("full_step", step_costs(of.size, of.batch, of.seq))
        assert one.prediction.low <= truth <= one.prediction.high, of.size
    rows = table(section(inputs, "predictions"), "predicted_steps")
    assert cell(rows, "medium", "from and to") == "95 % interval"
    low, middle, high = (
        cell(rows, "medium", name) for name in ("memory from", "peak memory", "memory to")
    )
    assert middle == pytest.approx(step_costs("medium", 16, 512).memory / 2**30)
    assert low < middle < high
    alone = read(write_study(tmp_path / "s", Grid(sizes=("tiny",))))
    of_one = table(section(alone, "predictions"), "predicted_steps")
    assert {row[6] for row in of_one.rows} == {"assumed range"}


@pytest.mark.parametrize(
    ("device", "slower", "is_inside"),
    [(MEDIUM.device, 1.0, "yes"), (MEDIUM.device, 9.0, "no"), ("Another CPU", 1.0, "")],
)
def test_a_step_that_was_run_elsewhere_on_the_machine_checks_its_prediction(
    tmp_path: Path, inputs: ReportInputs, device: str, slower: float, is_inside: str
) -> None:
    def spoil(content: Json) -> None:
        content["benchmarks"][0]["peak_memory_MiB"] *= 1.25 if slower > 1 else 1.0

    path = write_result(tmp_path / "m.json", replace(MEDIUM, device=device, speed=1 / slower))
    other = read(change(path, spoil)).sets
    both = replace(inputs, sets=(*inputs.sets, *other))
    rows = table(section(both, "predictions"), "predicted_steps")
    checked = [row for row in rows.rows if row[-1] == "prediction, checked"]
    assert [row[0] for row in checked] == ["medium"] * (device == MEDIUM.device)
    assert cell(rows, "medium", "inside the range") == is_inside
    assert cell(rows, "medium", "inside its range") == is_inside
    if is_inside:
        (case,) = other[0].cases.values()
        assert cell(rows, "medium", "measured time") == case.median_seconds
        off = 100 * (cell(rows, "medium", "predicted time") / case.median_seconds - 1)
        assert cell(rows, "medium", "off by") == pytest.approx(off)
        assert cell(rows, "medium", "memory off by") == pytest.approx(-20 if slower > 1 else 0)


def test_the_summary_has_the_figures_of_the_sections(built: Document, tmp_path: Path) -> None:
    facts = {of.what: of for of in built.facts}
    assert facts["f32 GEMMs"].value == "300 GFLOP/s"
    assert facts["memory bandwidth"].value == "40 GB/s"
    assert facts["last-level cache bandwidth"].value == "200 GB/s"
    step = facts["training step"]
    parts = table(section(built, "speed_of_light"), "speed_of_light_parts")
    assert step.value == f"{cell(parts, 'step', 'measured') / 1e3:.4g} s"
    assert step.note.startswith("small, baseline, f32, 8 x 256, ")
    share = cell(parts, "step", "share")
    assert facts["of its speed of light"].value == f"{share:.1f} %"
    part, lost, of_step, *_ = table(section(built, "time"), "most_lost").rows[0]
    assert facts[f"lost in {part}"].value == f"{lost:.4g} ms"
    assert f"({of_step:.1f} %)" in facts[f"lost in {part}"].note
    assert facts["a step of batch B, sequence S"].value.startswith("time = ")
    assert "3 of 3 inside the 95 % interval" in facts["held-out cells, median"].note
    assert facts["largest batch in 24 GiB"].note.startswith("medium, baseline, f32, at sequence")
    assert "a step of medium" in facts and "a step of tiny" not in facts
    alone = write_result(tmp_path / "a.json", replace(SMALL, components=("full_step",)))
    assert "training step" in {of.what for of in build_document(read(alone)).facts}


def test_markdown_has_the_summary_and_key_tables_and_names_what_is_missing(
    built: Document, tmp_path: Path
) -> None:
    text = markdown_of(built)
    lines = text.splitlines()
    assert lines[0] == f"# {built.title}"
    assert all(f"| {of.what} " in text and f"| {of.value} " in text for of in built.facts)
    key = [table.title for one in built.sections for table in one.tables if table.is_key]
    assert [line[4:] for line in lines if line.startswith("### ")] == key
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    text = markdown_of(build_document(read(write_result(tmp_path / "a", SMALL))))
    assert re.search(r"^Not measured: Scaling, .*Training runs, .*\.$", text, re.MULTILINE)
    assert "- time law full_step/train/baseline/tiny/f32, " in text
    assert plain("`<time>` of <x>\n y") == "`<time>` of &lt;x> y"
    assert plain("one ` only <x>") == "one ' only &lt;x>"


def test_figures_of_merit_have_one_form_and_are_documented(inputs: ReportInputs) -> None:
    *lines, last = figures_of_merit(inputs, errors=0).splitlines()
    assert last == f"SUCCESS: {len(lines)} figures"
    found = {}
    for line in lines:
        mark, name, equals, value, unit = line.split(" ")
        assert (mark, equals) == ("FOM", "=")
        found[name] = (float(value), unit)
    assert len(found) == len(lines)
    peaks = {"gemm/f32/TFLOPS": (0.3, "TFLOP/s"), "memory_bandwidth": (40.0, "GB/s")}
    peaks |= {"cache_bandwidth": (200.0, "GB/s")}
    assert list(found.items())[:3] == [(f"peak/{name}", of) for name, of in peaks.items()]
    step = main_of(inputs).cases[TINY_STEP]
    expected = {
        "time": (step.median_seconds, "s"),
        "samples_per_second": (step.counters["samples_per_second"], "samples/s"),
        "TFLOPS": (step.counters["TFLOPS"], "TFLOP/s"),
        "peak_memory": (step_costs("tiny", 8, 128).memory / MIB, "MiB"),
    }
    for name, (value, unit) in expected.items():
        assert found[f"{TINY_STEP}/{name}"] == (pytest.approx(value, rel=1e-5), unit)
    assert 0 < found[f"{TINY_STEP}/speed_of_light_percent"][0] < 100
    assert found["held_out/time/tiny/median_error_percent"][0] < 15
    assert found["held_out/memory/tiny/covered_percent"][0] > 90
    medium = f"{MEDIUM_STEP}/predicted_time"
    assert found[f"{medium}_low"][0] < found[medium][0] < found[f"{medium}_high"][0]
    # every step over several ranks, the efficiency of the first run
    (run,) = inputs.scalings
    point = next(p for p in run.analysis.points if p.ranks > 1 and p.efficiency is not None)
    (name,) = [n for n in found if f"/ranks:{point.ranks}/{point.mode}/weak_efficiency" in n]
    assert found[name] == (pytest.approx(point.efficiency.median, rel=1e-5), "%")
    page = (PROJECT / "integrations/README.md").read_text(encoding="utf-8")
    for name, (_, unit) in found.items():
        kind = name.rpartition("/")[2]
        assert f"`{kind}`" in page or f"/{kind}`" in page, name
        assert f"| {unit} |" in page, unit
    # what is no number is no figure, and errors fail
    peaks = {"measured": {"f32": {"flops_per_second": math.nan}}}
    spoilt = replace(main_of(inputs), context={**main_of(inputs).context, "peaks": peaks})
    text = figures_of_merit(replace(inputs, sets=(spoilt,)), errors=1)
    assert "nan" not in text and text.splitlines()[-1].startswith("FAILED: 1 error, ")
    assert figures_of_merit(ReportInputs(), errors=0) == "FAILED: no figure\n"
