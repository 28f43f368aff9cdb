"""What the sections show, held to the published study's own rows; Markdown and figures of merit."""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored import (
    CHECK_STEP,
    DEVICE,
    MIB,
    OWN_SHAPE,
    ROUNDS,
    SMALL_STEP,
    TINY_STEP,
    cell,
    change,
    document,
    figure,
    median_ms,
    peak,
    read,
    rows_of,
    section,
    table,
    write,
    write_result,
    write_study,
    write_training,
)

from tinyllama_tools.core.app import PROJECT, Json, problem_sizes
from tinyllama_tools.data.machine import SHARES
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.results import ResultSet
from tinyllama_tools.models.roofline import roofline_of
from tinyllama_tools.models.speed_of_light import step_products
from tinyllama_tools.report import analysis, command
from tinyllama_tools.report.analysis import lacks_parts, main_step
from tinyllama_tools.report.command import SECTIONS, build_document, laws
from tinyllama_tools.report.document import Document, Figure, Table, compact, number_text
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.output import figures_of_merit, markdown_of, plain

FFN = "ffn/forward_backward/baseline/tiny/f32"
MEDIUM = "medium, 4 x 512"
PEAK = peak("f32", "flops_per_second")


def missing_of(built: Document) -> dict[str, str]:
    return {one.id: one.missing for one in built.sections if one.missing}


def main_of(inputs: ReportInputs) -> ResultSet:
    assert inputs.main is not None
    return inputs.main


def test_figures_are_those_of_the_files(built: Document) -> None:
    (case, *_), of_case = rows_of(SMALL_STEP), median_ms(SMALL_STEP)
    every = [row["real_time"] for row in rows_of(SMALL_STEP)]
    flops, share = case["model_flops"], 1e5 * case["model_flops"] / PEAK / of_case
    of_part = {
        part: count * median_ms(f"{part}/forward_backward/baseline/small/f32/batch:8/seq:256")
        for part, count in (("ffn", 8), ("rms_norm", 17))
    }
    phases = [
        median_ms(f"model/{of}/baseline/small/f32/batch:8/seq:256")
        for of in ("forward_loss", "forward_backward")
    ]
    check, *_ = rows_of(CHECK_STEP, ("check.json",))
    norm, *_ = rows_of("rms_norm/forward_backward/baseline/tiny/f32/batch:1/seq:64")
    apart = 100 * (norm["peak_memory_MiB"] / norm["predicted_memory_MiB"] - 1)
    gemm = "peak/gemm/f32/128x256x1024"
    teraflops = max(row["TFLOPS"] for row in rows_of(gemm, ("products.json",)))
    point = document("frontier.json")["sequences"][50]
    lookup = document("costs.json")["cases"][0]
    context = document(ROUNDS[0])["context"]
    tables = {
        ("cases", "all_cases", SMALL_STEP): {
            **{"time": of_case, "shortest": min(every), "longest": max(every), "MFU": share},
            **{"of the roofline": share, "bound": "compute", "speed-up": None},
        },
        ("environment", "results", DEVICE): {
            **{"memory": context["device"]["memory_bytes"] / 2**30, "rounds": 3, "cases": 352},
            "last-level cache": context["device"]["last_level_cache_bytes"] / MIB,
        },
        ("roofline", "roofline_points", SMALL_STEP): {
            **{"intensity": flops / case["bytes"], "rate": flops / of_case / 1e6},
            **{"attainable": PEAK / 1e9, "of the attainable": share, "bound": "compute"},
            "GEMMs at the peak": 1e3 * flops / PEAK,
        },
        # small enough for the cache
        ("roofline", "roofline_points", lookup["name"]): {
            "traffic": 1e3 * lookup["bytes"] / peak("cache_bandwidth"),
        },
        ("roofline", "product_points", gemm): {"rate": 1e3 * teraflops},
        ("time", "parts", "ffn"): {
            **{"count": 8, "measured": of_part["ffn"]},
            "of the step": 100 * of_part["ffn"] / of_case,
        },
        ("time", "parts", "rms_norm"): {"count": 17, "measured": of_part["rms_norm"]},
        ("time", "parts", "step"): {"measured": of_case},
        ("time", "steps", "small"): {"measured": of_case, "forward": phases[0]},
        ("memory", "memory_agreement", "rms_norm"): {
            **{"cases": 32, "median": pytest.approx(apart, rel=1e-2)}
        },
        ("frontier", "frontier_batch", "medium, optimized"): {
            **{"dtype": "f32", "batch": point["batch"], "longest sequence": point["longest_seq"]},
            "it needs": point["predicted_bytes"] / MIB,
        },
        ("predictions", "predicted_steps", MEDIUM): {
            "measured time": median_ms(CHECK_STEP, ("check.json",)) / 1e3,
            "peak memory": pytest.approx(check["peak_memory_MiB"] / 1024),
            "parameters": check["parameters"] / 1e6,
            **{"memory off by": pytest.approx(0, abs=1e-3), "kind": "prediction, checked"},
        },
    }
    for (part, identity, row), figures in tables.items():
        for column, expected in figures.items():
            found = cell(table(section(built, part), identity), row, column)
            wanted = pytest.approx(expected) if isinstance(expected, float) else expected
            assert found == wanted, (identity, row, column)


def test_the_report_is_whole_with_own_ids_and_plain_json(built: Document) -> None:
    assert [one.id for one in built.sections] == [*(name for name, *_ in SECTIONS), "left_out"]
    assert missing_of(built) == {} and built.omissions == []
    assert built.title == f"Tiny LLaMA on {DEVICE} · 4ad35a02 · 2026-11-22"
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
    # names from files are no markup
    drawn = Figure("f", "F", [{"name": "<b>", "x": [1], "y": [1]}], {}).as_json()
    assert drawn["traces"][0]["name"] == "&lt;b>"


def test_a_training_run_alone_names_what_is_missing(tmp_path: Path) -> None:
    built = build_document(read(write_training(tmp_path / "run")))
    found = missing_of(built)
    assert set(found) == {name for name, *_ in SECTIONS} - {"memory", "training"}
    assert all("scripts/" in reason for reason in found.values())
    assert [table.id for table in section(built, "environment").tables] == ["sources"]
    assert [one.id for one in section(built, "memory").figures] == ["memory_at_peak"]
    assert (built.facts, built.title) == ([], "Tiny LLaMA on performance_summary.json")


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


def test_what_a_result_lacks_or_got_wrong_is_named(tmp_path: Path) -> None:
    reason = "107 % of the measured f32 peak: the time, the count or the peak is wrong"

    def spoil(content: Json) -> None:
        rows = content["benchmarks"]
        rows[0] |= {"error_occurred": True, "error_message": "wrong result"}
        rows[1] |= {"skipped": True, "skip_message": "does not fit"}
        (entry,) = (row for row in rows if row["run_name"].startswith(TINY_STEP))
        for share in SHARES:
            entry.pop(share, None)
        entry["above_peak"] = reason

    found = read(change(write_result(tmp_path / "a.json"), spoil))
    built = build_document(found)
    # one size alone supports no law
    assert "1 size: 3 coefficients" in missing_of(built)["scaling"]
    cases = {one.reason: one.is_error for one in built.omissions if one.kind == "case"}
    assert cases == {"wrong result": True, "does not fit": False}
    rows = section(built, "left_out").tables[0].rows
    names = [name for row in rows for name in row[1].split("; ")]
    assert sorted(names) == sorted(one.name for one in built.omissions)
    # what went wrong first
    assert [row[3] for row in rows] == ["yes", "yes", "", ""]
    # a row above its peak is shown with its time, without shares
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
    # without peaks there is no roofline
    path = change(tmp_path / "a.json", lambda of: of["context"].update(peaks={"measured": {}}))
    built = build_document(read(path))
    assert "peaks" not in [table.id for table in section(built, "environment").tables]
    assert "cache_bandwidth" in missing_of(built)["roofline"]
    assert {"time", "memory"}.isdisjoint(missing_of(built))
    # its parts have times, and no speed of light
    assert cell(table(section(built, "time"), "parts"), "ffn", "speed of light") is None
    assert "cache_bandwidth" in cell(table(section(built, "time"), "steps"), "tiny", "missing")


def test_a_size_without_a_name_has_laws_but_no_parts(tmp_path: Path) -> None:
    text = json.dumps(document(ROUNDS[0], "/tiny/")).replace("/tiny/", "/custom/")
    built = build_document(read(write(tmp_path / "a.json", json.loads(text))))
    assert "size 'custom' are not known" in missing_of(built)["time"]
    assert "scaling" not in missing_of(built) and built.errors == 0
    # of one round
    for identity in ("held_out_time", "time_laws"):
        note = table(section(built, "scaling"), identity).note
        assert "Of one round it is of the scatter of its sizes alone" in note


def test_every_case_is_shown_and_peaks_are_the_best_of_the_files(
    inputs: ReportInputs, built: Document
) -> None:
    (found,), main = section(built, "cases").tables, main_of(inputs)
    assert {row[0] for row in found.rows} == set(main.cases)
    for name, _, _, _, _, _, roof, bound in found.rows:
        counters = main.cases[name].counters
        assert roof == counters.get("roof_percent")
        is_compute = counters.get("peak_percent") == pytest.approx(roof)
        assert bound == ("compute" if is_compute else "bandwidth"), name
    environment = section(built, "environment")
    peaks = [row[1:3] for row in table(environment, "peaks").rows if row[0].startswith(DEVICE)]
    expected = [PEAK, peak("memory_bandwidth"), peak("cache_bandwidth")]
    assert [row[1] for row in peaks] == pytest.approx([value / 1e9 for value in expected])
    begun = inputs.studies[0]._replace(description={"rounds_done": 1, "rounds": 3})
    said = "The grid study has 1 of 3 rounds: `scripts/study --resume` goes on with it."
    assert said in section(replace(inputs, studies=(begun,)), "environment").text


def test_the_comparison_has_every_case_and_geometric_means(
    inputs: ReportInputs, built: Document
) -> None:
    first, second = inputs.sets
    ratios = {
        name: case.median_seconds / second.cases[name].median_seconds
        for name, case in first.cases.items()
    }
    step_ratio = 1.5 * median_ms(TINY_STEP) / median_ms(TINY_STEP, ROUNDS[:1])
    assert ratios[TINY_STEP] == pytest.approx(step_ratio)
    found = section(built, "comparison")
    means = {row[1]: row[2:] for row in table(found, "speed_ups").rows}
    for component, (mean, count) in means.items():
        own = [ratio for name, ratio in ratios.items() if name.startswith(f"{component}/")]
        assert (mean, count) == (pytest.approx(statistics.geometric_mean(own)), len(own))
    shown = {row[1]: row[4] for row in table(found, "case_changes").rows}
    ordered = sorted(ratios, key=lambda name: -max(ratios[name], 1 / ratios[name]))
    assert list(shown.items()) == [(name, pytest.approx(ratios[name])) for name in ordered]
    assert list(figure(found, "changes").traces[0]["text"]) == ordered


def test_training_and_ablation_are_the_files(inputs: ReportInputs) -> None:
    (run,) = inputs.trainings
    phases, losses = section(inputs, "training").figures
    total = sum(of["seconds"] for of in run.summary["summary"]["breakdown"].values())
    assert sum(trace["x"][0] for trace in phases.traces) == pytest.approx(1e3 * total)
    assert losses.traces[0]["y"] == [step["loss"] for step in run.summary["steps"]]
    found, main = section(inputs, "ablation"), inputs.ablations[0].study.main
    point = main.points()[0]
    seconds = [main.get(name, point).seconds for name in ("baseline", "optimized")]
    (row,) = (row for row in table(found, "ablation_1").rows if row[0] == "optimized")
    _, milliseconds, ratio, low, high, *_ = row
    assert milliseconds == pytest.approx(1e3 * seconds[1])
    # the median of ratios is near that of medians
    assert ratio == pytest.approx(seconds[0] / seconds[1], rel=0.1)
    (trace,) = figure(found, "ablation_plot_1").traces
    place = trace["y"].index("optimized")
    assert trace["x"][place] == ratio
    for end, length in (("array", high - ratio), ("arrayminus", ratio - low)):
        assert trace["error_x"][end][place] == pytest.approx(length)


def test_runs_of_one_shape_and_results_of_one_day_have_names_of_their_own(tmp_path: Path) -> None:
    runs = read(*(write_training(tmp_path / name / "run") for name in "ab"))
    names = [run.name for run in runs.trainings]
    assert len(set(names)) == 2 and all("performance_summary.json" in name for name in names)
    phases, losses = section(runs, "training").figures
    assert [trace["y"] for trace in phases.traces] == [names] * len(phases.traces)
    assert len({trace["name"] for trace in losses.traces}) == len(losses.traces)
    assert figure(section(runs, "memory"), "memory_at_peak").traces[0]["x"] == names
    sets = read(*(write_result(tmp_path / name / "run" / "results.json") for name in "ab")).sets
    assert len({of.title for of in sets}) == 2


def test_roofline_shows_every_case_and_product(inputs: ReportInputs) -> None:
    found, main = section(inputs, "roofline"), main_of(inputs)
    traces = (trace for trace in found.figures[0].traces if trace["mode"] == "markers")
    assert sum(len(trace["x"]) for trace in traces) == len(main.cases) + len(main.products)
    points = table(found, "roofline_points").rows
    assert len(points) == len(main.cases)
    start = roofline_of(main).launch
    # at most as much as that for each operator, but of the case that it was inferred from
    for row in points:
        starts = 1e3 * main.cases[row[0]].counters["operators"] * start.seconds
        assert row[8] == (None if row[0] == start.source else pytest.approx(starts))
    other = replace(main.products[0], type_name="bf16")
    changed = replace(main, products=(*main.products, other))
    found = section(replace(inputs, sets=(changed,)), "roofline")
    reasons = [(o.name, "no peak of bf16" in o.reason) for o in found.omissions]
    assert reasons == [(other.name, True)]


def test_parts_of_the_step_beside_their_speed_of_light(inputs: ReportInputs) -> None:
    # every product at one rate
    main, rate = main_of(inputs), 0.9 * PEAK
    products = tuple(replace(one, flops_per_second=rate) for one in main.products)
    found = section(replace(inputs, sets=(replace(main, products=products),)), "time")
    parts = table(found, "parts")
    of = step_products(problem_sizes()["small"], 8, 256)
    scores = sum(product.flops for product in of if product.layer in ("scores", "values"))
    flops = rows_of(SMALL_STEP)[0]["model_flops"]
    # scores at the peak, 257 of 512 of them not masked
    light = (flops - scores) / rate + scores * 257 / 512 / PEAK
    assert cell(parts, "step", "GEMMs") == pytest.approx(1e3 * light)
    for _, _, measured, _, least, lost, _, _, share, _ in parts.rows:
        assert lost == pytest.approx(measured - least)
        assert share is None or share == pytest.approx(100 * least / measured)
    for column in range(2, 8):
        *each, whole = (row[column] for row in parts.rows)
        assert sum(each) == pytest.approx(whole)
    for row in table(found, "steps").rows:
        _, measured, least, share, at_best, lost, _, *phases, _ = row
        assert (share, 100 - lost) == pytest.approx((100 * least / measured,) * 2)
        assert 0 < at_best < share and sum(phases) == pytest.approx(measured)
    assert [row[0].split(",")[0] for row in table(found, "steps").rows] == ["small", "tiny"]
    for place in range(2):
        shares = [trace["x"][place] for trace in figure(found, "phases_plot").traces]
        assert sum(shares) == pytest.approx(100)
    # without a bound there is no share
    cases = {
        name: replace(case, seconds=(1e-9,)) if case.name.component == "loss" else case
        for name, case in main.cases.items()
    }
    found = section(replace(inputs, sets=(replace(main, cases=cases),)), "time")
    assert [o.name for o in found.omissions if o.is_error and o.reason.startswith("loss:")]
    assert cell(table(found, "parts"), "step", "share") is None
    assert all(row[3] is None for row in table(found, "steps").rows)
    # a profile of the same step on the same device shows what GEMMs took
    (run,) = inputs.trainings
    same = run._replace(summary={**run.summary, "context": main.context})
    accumulates = {**run.summary["configuration"], "gradient_accumulation_steps": 2}
    other = same._replace(summary={**same.summary, "configuration": accumulates})
    measured = run.summary["operators"]["matrix_product_percent"]
    for one, expected in ((run, None), (same, measured), (other, None)):
        of_run = table(section(replace(inputs, trainings=(one,)), "time"), "steps")
        assert cell(of_run, run.name, "GEMMs, profiled") == expected


def test_the_main_step_has_parts_and_is_optimized_before_it_is_large(
    tmp_path: Path, inputs: ReportInputs
) -> None:
    assert str(main_step(main_of(inputs)).name) == SMALL_STEP
    whole = document(ROUNDS[0], OWN_SHAPE)
    bare = document(ROUNDS[0], SMALL_STEP)["benchmarks"]
    faster = json.loads(json.dumps(whole["benchmarks"]).replace("/baseline/", "/optimized/"))
    for names, rows in (("ab", [*bare, *whole["benchmarks"], *faster]), ("b", bare)):
        (found,) = read(write(tmp_path / f"{names}.json", whole | {"benchmarks": rows})).sets
        name = main_step(found).name
        expected = ("tiny", "optimized", False) if names == "ab" else ("small", "baseline", True)
        assert (name.size, name.variant, lacks_parts(found, name)) == expected


def test_laws_are_those_of_the_machine(tmp_path: Path) -> None:
    """Of a machine that takes 40 us and 30 ns a token, a round 1 % more than the one before."""
    folder = write_study(tmp_path / "study", "^(ffn|loss)/.*/tiny/")
    for number in (1, 2, 3):

        def play(content: Json, factor: float = 1 + (number - 2) / 100) -> None:
            for row in content["benchmarks"]:
                batch, seq = map(int, re.search(r"batch:(\d+)/seq:(\d+)", row["run_name"]).groups())
                row |= {"time_unit": "us", "real_time": factor * (40 + 0.03 * batch * seq)}

        change(folder / f"round_{number}.json", play)
    found = section(read(folder), "scaling")
    of_laws = table(found, "time_laws")
    for column, expected in {"launch": 40, "per token": 30, "sizes": 16}.items():
        assert cell(of_laws, FFN, column) == pytest.approx(expected, rel=1e-3)
    assert cell(of_laws, FFN, "per token and token") == pytest.approx(0, abs=1)
    assert (cell(of_laws, FFN, "held out"), cell(of_laws, FFN, "covered")) == (3, 3)
    summary = table(found, "held_out_time")
    assert cell(summary, "tiny", "held-out cells") == 6
    assert cell(summary, "tiny", "median error") < 1
    assert cell(summary, "tiny", "covered") == 100
    assert cell(summary, "tiny", "which is") == "within 15 %"
    drawn = figure(found, f"time_{FFN.replace('/', '_')}")
    marks = [trace for trace in drawn.traces if trace["mode"] == "markers"]
    assert [len(trace["y"]) for trace in marks] == [4, 4, 4, 4, 3]
    assert drawn.note.startswith("time = ") and drawn.note.endswith("Bars: the law's range.")
    # a cell that lacks a round is no part of its law
    name = f"{FFN}/batch:4/seq:128"

    def without(content: Json) -> None:
        rows = content["benchmarks"]
        content["benchmarks"] = [row for row in rows if not row["run_name"].startswith(name)]

    change(folder / "round_3.json", without)
    found = section(read(folder), "scaling")
    of_laws = table(found, "time_laws")
    assert cell(of_laws, FFN, "sizes") == 15
    assert cell(of_laws, FFN.replace("ffn", "loss"), "sizes") == 16
    (omission,) = found.omissions
    assert (omission.name, omission.kind) == (name, "time law")
    assert "not measured in the 3 rounds of the other sizes" in omission.reason


def test_a_law_without_a_check_and_one_too_many_are_named(
    tmp_path: Path, inputs: ReportInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of four cells three are held out
    few = write_study(tmp_path / "study", r"^ffn/.*/tiny/.*batch:[12]/seq:(64|128)/")
    (omission,) = section(read(few), "scaling").omissions
    assert omission.kind == "held-out check of a time law"
    monkeypatch.setattr(analysis, "MOST_LAWS", 3)
    found = section(replace(inputs), "scaling")
    assert len(table(found, "time_laws").rows) == 3
    assert {one.reason for one in found.omissions} == {analysis.TOO_MANY}


def test_memory_is_stacked_to_the_measured_peak(inputs: ReportInputs) -> None:
    found = section(inputs, "memory")
    for size, name, shape in (("small", SMALL_STEP, "8 x 256"), ("tiny", TINY_STEP, "8 x 128")):
        traces = figure(found, f"memory_parts_{size}").traces
        place, case = traces[0]["x"].index(shape), rows_of(name)[0]
        assert sum(trace["y"][place] for trace in traces) == pytest.approx(case["peak_memory_MiB"])
        weights = next(trace for trace in traces if trace["name"] == "weights")
        assert weights["y"][place] == pytest.approx(4 * case["parameters"] / MIB)
    sizes = figure(found, "memory_of_sizes").traces
    assert len(sizes[0]["x"]) == 5
    assert sum(trace["y"][4] for trace in sizes) == pytest.approx(100)
    # less than what is alive throughout is wrong
    name = CaseName("full_step", "train", "baseline", "tiny", "bf16", 1, 64)
    assert laws.memory_parts(name, 100.0, 599.0) == {}
    assert list(laws.memory_parts(name, 100.0, 640.0).values()) == [200, 400, 40]


def frontier(**changes: Any) -> Json:  # noqa: ANN401
    """Of one point of tiny at sequence 128."""
    found = document("frontier.json")
    del found["sequences"]
    point = {**found["points"][0], "seq": 128, **changes.pop("point", {})}
    return {**found, "points": [point], **changes}


def test_every_frontier_is_shown(tmp_path: Path, inputs: ReportInputs) -> None:
    point = {"largest_batch": 30, "predicted_bytes": 1 << 30, "remark": "no larger one"}
    mine = frontier(limit_bytes=1 << 30, point=point)
    others = read(write(tmp_path / "frontier.json", mine)).frontiers
    both = replace(inputs, frontiers=(*others, *inputs.frontiers))
    found = section(both, "frontier")
    one, whole, longest = found.tables
    assert [of.id for of in found.tables] == ["frontier_seq", "frontier_seq_2", "frontier_batch"]
    assert one.rows[0][4:] == [30, 1024, "no larger one"]
    assert "--find-limit batch --confirm` tries it" in one.note
    assert (len(whole.rows), len(longest.rows)) == (100, 100)
    none = [row for row in whole.rows if row[4] == 0]
    assert none and all(row[-1] == "not even 1 fits" for row in none)
    drawn = sum(one.points for one in found.figures if one.id.startswith(whole.id))
    assert drawn == 100 - len(none)
    # the largest limit is what there is
    largest = [of.what for of in build_document(both).facts if "batch in" in of.what]
    assert largest == ["largest batch in 20.55 GiB"]


@pytest.mark.parametrize(
    ("device", "slower", "larger"),
    [(DEVICE, 1.0, 1.25), (DEVICE, 9.0, 1.0), ("Another CPU", 1.0, 1.0)],
)
def test_a_check_of_the_same_machine_says_what_its_prediction_is_off_by(
    tmp_path: Path, inputs: ReportInputs, device: str, slower: float, larger: float
) -> None:
    content = document("check.json")
    content["context"]["device"]["name"] = device
    for row in content["benchmarks"]:
        row["real_time"] *= slower
        row["peak_memory_MiB"] *= larger
    (check,), (study,) = read(write(tmp_path / "m.json", content)).sets, inputs.studies
    checked = replace(inputs, studies=(study._replace(check=check),))
    rows = table(section(checked, "predictions"), "predicted_steps")
    checked = [row[:2] for row in rows.rows if row[-1] == "prediction, checked"]
    assert checked == [["medium", "4 x 512"]] * (device == DEVICE)
    assert {row[6] for row in rows.rows} == {"95 % interval"}
    if checked:
        assert cell(rows, MEDIUM, "inside the range") == ("yes" if slower == 1 else "no")
        measured = slower * median_ms(CHECK_STEP, ("check.json",)) / 1e3
        off = 100 * (cell(rows, MEDIUM, "predicted time") / measured - 1)
        assert cell(rows, MEDIUM, "off by") == pytest.approx(off, abs=1e-3)
        expected = pytest.approx(100 / larger - 100, abs=1e-3)
        assert cell(rows, MEDIUM, "memory off by") == expected


def test_the_summary_has_the_figures_of_the_sections(built: Document, tmp_path: Path) -> None:
    facts = {of.what: of for of in built.facts}
    assert facts["f32 GEMMs"].value == f"{PEAK / 1e9:.4g} GFLOP/s"
    assert facts["memory bandwidth"].value == f"{peak('memory_bandwidth') / 1e9:.4g} GB/s"
    step = facts["training step"]
    assert step.value == f"{median_ms(SMALL_STEP) / 1e3:.4g} s"
    assert step.note.startswith("small, baseline, f32, 8 x 256, ")
    parts = table(section(built, "time"), "parts")
    assert facts["of its speed of light"].value == f"{cell(parts, 'step', 'share'):.1f} %"
    (part, lost), *_ = sorted(((row[0], row[5]) for row in parts.rows[:-1]), key=lambda of: -of[1])
    assert facts[f"lost in {part}"].value == f"{lost:.4g} ms"
    share = 100 * lost / median_ms(SMALL_STEP)
    assert facts[f"lost in {part}"].note.endswith(f"{share:.1f} % of the step")
    assert facts["a step of batch B, sequence S"].value.startswith("time = ")
    assert "3 of 3 inside the law's range" in facts["held-out cells, median"].note
    assert facts["largest batch in 20.55 GiB"].note.startswith("large, baseline, f32, at sequence")
    assert "a step of medium" in facts and "a step of tiny" not in facts
    alone = write_result(tmp_path / "a.json", TINY_STEP)
    assert "training step" in {of.what for of in build_document(read(alone)).facts}


def test_markdown_has_the_summary_and_key_tables_and_names_what_is_missing(
    built: Document, tmp_path: Path
) -> None:
    text = markdown_of(built)
    assert text.splitlines()[0] == f"# {built.title}"
    assert all(f"| {of.what} " in text and f"| {of.value} " in text for of in built.facts)
    key = [table.title for one in built.sections for table in one.tables if table.is_key]
    assert [line[4:] for line in text.splitlines() if line.startswith("### ")] == key
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    text = markdown_of(build_document(read(write_result(tmp_path / "a"))))
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
    (run,), seconds, case = inputs.scalings, median_ms(TINY_STEP) / 1e3, rows_of(TINY_STEP)[0]
    point = next(p for p in run.analysis.points if p.ranks > 1 and p.efficiency is not None)
    # every step over several ranks, the efficiency of the first run
    (ranks,) = [n for n in found if f"/ranks:{point.ranks}/{point.mode}/weak_efficiency" in n]
    expected = {
        "peak/gemm/f32/TFLOPS": (PEAK / 1e12, "TFLOP/s"),
        "peak/memory_bandwidth": (peak("memory_bandwidth") / 1e9, "GB/s"),
        "peak/cache_bandwidth": (peak("cache_bandwidth") / 1e9, "GB/s"),
        f"{TINY_STEP}/time": (seconds, "s"),
        f"{TINY_STEP}/samples_per_second": (8 / seconds, "samples/s"),
        f"{TINY_STEP}/TFLOPS": (case["model_flops"] / seconds / 1e12, "TFLOP/s"),
        f"{TINY_STEP}/peak_memory": (case["peak_memory_MiB"], "MiB"),
        ranks: (point.efficiency.median, "%"),
    }
    assert list(found)[:3] == list(expected)[:3]
    for name, (value, unit) in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-5), unit), name
    assert 0 < found[f"{TINY_STEP}/speed_of_light_percent"][0] < 100
    assert found["held_out/time/tiny/median_error_percent"][0] < 15
    assert found["held_out/time/tiny/covered_percent"][0] > 90
    medium = f"{CHECK_STEP}/predicted_time"
    assert found[f"{medium}_low"][0] < found[medium][0] < found[f"{medium}_high"][0]
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
