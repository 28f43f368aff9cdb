"""Roofline, speed of light and time: their numbers are those of the made-up machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from played_grid import (
    PEAK,
    PRODUCT_RATE,
    SMALL,
    Grid,
    round_document,
    step_costs,
    true_seconds,
)
from played_study import cell, read, table, write, write_result, write_training

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.results import ResultSet
from tinyllama_tools.models.roofline import roofline_of
from tinyllama_tools.models.speed_of_light import step_products
from tinyllama_tools.report.analysis import headline_steps, main_step, missing_parts
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.sections import roofline, speed_of_light
from tinyllama_tools.report.sections import time as time_section

STEP = "full_step/train/baseline/small/f32/batch:8/seq:256"


@pytest.fixture
def main(inputs: ReportInputs) -> ResultSet:
    assert inputs.main is not None
    return inputs.main


def test_roofline_shows_every_case_and_product(inputs: ReportInputs, main: ResultSet) -> None:
    found = roofline.build(inputs)
    traces = (trace for trace in found.figures[0].traces if trace.get("role") != "roof")
    assert sum(len(trace["x"]) for trace in traces) == len(main.cases) + len(main.products)
    points = table(found, "roofline_points")
    assert len(points.rows) == len(main.cases)
    assert cell(points, STEP, "bound") == "compute"
    costs = step_costs("small", 8, 256)
    assert cell(points, STEP, "intensity") == pytest.approx(costs.model_flops / costs.bytes)
    rates = [row[2] for row in table(found, "product_points").rows]
    assert rates == pytest.approx([PRODUCT_RATE / 1e9] * len(rates))


def test_the_launch_bound_region_ends_at_its_ridge(inputs: ReportInputs, main: ResultSet) -> None:
    found = roofline.build(inputs)
    (launch,) = [one for one in found.figures if one.id == "launch_bound"]
    (region,) = launch.layout["shapes"]
    start = roofline_of(main).launch
    assert start is not None
    assert region["x0"] < region["x1"] == pytest.approx(PEAK * start.seconds)
    roof = dict(zip(launch.traces[0]["x"], launch.traces[0]["y"], strict=True))
    assert roof[region["x1"]] == pytest.approx(PEAK / 1e9)
    (text,) = [text for text in found.text if text.startswith("Starting an operator")]
    assert "at most" in text and "inferred from this data, not measured" in text
    # at most as much as that for each operator, but of the case that it was inferred from
    for row in table(found, "roofline_points").rows:
        operators = main.cases[row[0]].counters["operators"]
        expected = (
            None if row[0] == start.source else pytest.approx(1e3 * operators * start.seconds)
        )
        assert row[8] == expected


def test_of_many_cases_those_that_lose_most_are_listed(
    inputs: ReportInputs, main: ResultSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = table(roofline.build(inputs), "roofline_points").rows
    monkeypatch.setattr(roofline, "ALL_ROWS", 20)
    monkeypatch.setattr(roofline, "MOST_ROWS", 3)
    seconds = {name: case.median_seconds for name, case in main.cases.items()}
    # name, intensity, rate, attainable
    lost = {row[0]: seconds[row[0]] * (1 - row[2] / row[3]) for row in everything}
    points = table(roofline.build(inputs), "roofline_points")
    assert [row[0] for row in points.rows] == sorted(lost, key=lost.__getitem__)[:-4:-1]
    assert "The 3 of 264 cases" in points.note


def test_products_without_a_peak_are_named(inputs: ReportInputs, main: ResultSet) -> None:
    other = replace(main.products[0], type_name="bf16")
    changed = replace(main, products=(*main.products, other))
    found = roofline.build(replace(inputs, sets=(changed,)))
    reasons = [(o.name, o.reason) for o in found.omissions]
    assert reasons == [(other.name, "no peak of bf16 products was measured")]


def test_speed_of_light_of_the_step(inputs: ReportInputs) -> None:
    found = speed_of_light.build(inputs)
    parts = table(found, "speed_of_light_parts")
    costs = step_costs("small", 8, 256)
    truth = 1e3 * true_seconds("full_step", costs)
    assert cell(parts, "step", "measured") == pytest.approx(truth, rel=0.03)
    of = step_products(problem_sizes()["small"], 8, 256)
    scores = sum(product.flops for product in of if product.layer in ("scores", "values"))
    # scores at the peak, 257 of 512 of them not masked
    light = (costs.model_flops - scores) / PRODUCT_RATE + scores * 257 / 512 / PEAK
    assert cell(parts, "step", "products") == pytest.approx(1e3 * light)
    steps = table(found, "speed_of_light_steps")
    assert [row[0].split(",")[0] for row in steps.rows] == ["tiny", "small"]
    assert all(0 < row[3] < 100 for row in steps.rows)


def test_without_a_bound_there_is_no_share(inputs: ReportInputs, main: ResultSet) -> None:
    cases = {
        name: replace(case, seconds=(1e-9,)) if case.name.component == "loss" else case
        for name, case in main.cases.items()
    }
    spoilt = replace(inputs, sets=(replace(main, cases=cases),))
    found = speed_of_light.build(spoilt)
    assert any("There is no share" in text for text in found.text)
    assert [o.name for o in found.omissions if o.is_error and o.reason.startswith("loss:")]
    assert cell(table(found, "speed_of_light_parts"), "step", "share") is None
    assert all(row[3] is None for row in table(found, "speed_of_light_steps").rows)
    # nothing is drawn of what is not known
    assert "products_plot" not in [figure.id for figure in time_section.build(spoilt).figures]


def products_plot(inputs: ReportInputs) -> dict[str, dict[str, float]]:
    """Percents by bar and by segment."""
    (figure,) = [one for one in time_section.build(inputs).figures if one.id == "products_plot"]
    found: dict[str, dict[str, float]] = {}
    for trace in figure.traces:
        for label, share in zip(trace["y"], trace["x"], strict=True):
            found.setdefault(label, {})[trace["name"]] = share
    return found


def test_products_against_everything_else_are_at_their_best(inputs: ReportInputs) -> None:
    light, _ = inputs.light
    assert light is not None and light.total.measured_seconds is not None
    shares = products_plot(inputs)["small, baseline, f32, 8 x 256"]
    best = 100 * light.products_seconds / light.total.measured_seconds
    assert shares["GEMMs at their best"] == pytest.approx(best)
    assert light.share_percent == pytest.approx(100 - shares["lost against it"])
    assert sum(shares.values()) == pytest.approx(100) and len(shares) == 3


def test_a_profile_of_the_step_shows_what_products_took(
    inputs: ReportInputs, main: ResultSet, tmp_path: Path
) -> None:
    (run,) = read(write_training(tmp_path)).trainings
    here = run.summary["context"] | {"threads": 2, "device": main.context["device"]}
    same = replace(run, summary={**run.summary, "context": here})
    label = f"{run.name.replace('batch ', '').replace('sequence ', '')} (profiled)"
    assert label not in products_plot(replace(inputs, trainings=(run,)))
    measured = run.summary["operators"]["matrix_product_percent"]
    assert products_plot(replace(inputs, trainings=(same,)))[label] == {
        "GEMMs, profiled": pytest.approx(measured),
        "everything else, profiled": pytest.approx(100 - measured),
    }


def test_the_waterfall_adds_up_to_the_step(inputs: ReportInputs) -> None:
    found = time_section.build(inputs)
    (trace,) = found.figures[0].traces
    assert trace["measure"] == ["relative"] * (len(trace["x"]) - 1) + ["total"]
    assert sum(trace["y"][:-1]) == pytest.approx(trace["y"][-1])
    phases = table(found, "phases")
    assert [row[0] for row in phases.rows] == ["forward", "backward", "optimizer", "other"]
    assert sum(row[2] for row in phases.rows) == pytest.approx(100)
    assert [figure.id for figure in found.figures[1:]] == ["phases_plot", "products_plot"]
    for figure in found.figures[1:]:
        for place, size in enumerate(("tiny", "small")):
            assert all(trace["y"][place].startswith(size) for trace in figure.traces)
            assert sum(trace["x"][place] for trace in figure.traces) == pytest.approx(100)
    lost = [row[1] for row in table(found, "most_lost").rows]
    assert len(lost) == 5 and lost == sorted(lost, reverse=True)


def test_the_main_step_is_the_largest_with_parts_at_its_own_shape(main: ResultSet) -> None:
    assert str(main_step(main).name) == STEP
    assert [str(step.name).split("/")[3:] for step in headline_steps(main)] == [
        ["tiny", "f32", "batch:8", "seq:128"],
        ["small", "f32", "batch:8", "seq:256"],
    ]


def test_parts_come_before_size_and_optimized_before_baseline(tmp_path: Path) -> None:
    whole = round_document(replace(SMALL, variants=("baseline", "optimized")))
    bare = Grid(sizes=("small",), batches=(8,), seqs=(256,), components=("full_step",))
    rows = [*round_document(bare)["benchmarks"], *whole["benchmarks"]]
    (both,) = read(write(tmp_path / "a.json", whole | {"benchmarks": rows})).sets
    step = main_step(both)
    assert step is not None and (step.name.size, step.name.variant) == ("tiny", "optimized")
    assert missing_parts(both, step.name) == ()
    (alone,) = read(write_result(tmp_path / "b.json", bare)).sets
    assert main_step(alone).name.size == "small" and missing_parts(alone, main_step(alone).name)
