"""What a report shows, held to the published study's own rows; Markdown and figures of merit; the
page, what it does in a browser, and pictures; and the page that is published beside that study."""

import csv
import gzip
import io
import json
import math
import re
import sys
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from stored import (
    CHECK_STEP,
    CONTEXT,
    CUT_OFF,
    DEVICE,
    MEDIUM_STEP,
    MIB,
    OWN_SHAPE,
    ROUNDS,
    SMALL_STEP,
    TINY_STEP,
    cell,
    change,
    document,
    median_ms,
    part,
    peak,
    read,
    rows_of,
    section,
    write_everything,
    write_result,
    write_study,
)

import tools
from built_programs import write_json
from chromium import OpenPage, PageOpener
from published import DATA_FILES, MOST_BYTES, MOST_PICTURE_BYTES, PAGE, PICTURE, STUDY
from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.core.installation import ROOT
from tinyllama_tools.data.machine import Machine
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.report import command, output
from tinyllama_tools.report.command import SECTIONS, build_document
from tinyllama_tools.report.document import Document, Fact, Figure, Section, Table, axis, bars
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.output import figures_of_merit, markdown_of, page_of, write_pngs
from tinyllama_tools.report.sections.growth import memory_parts

FFN = "ffn/forward_backward/baseline/tiny/f32"
MEDIUM = "medium, 2 x 512"
PEAK = peak("f32", "flops_per_second")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    """The published grid study with its check, and a data-parallel run."""
    grid, _, ranks = write_everything(tmp_path_factory.mktemp("results"))
    write_json(grid / "check.json", document("check.json"))
    return read(grid, ranks)


@pytest.fixture(scope="module")
def built(inputs: ReportInputs) -> Document:
    return build_document(inputs)


@pytest.fixture(scope="module")
def page(built: Document, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of everything."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page_of(built), encoding="utf-8")
    return file


HOSTILE = "</script><script>alert(1)</script>"
CASES = "#table-all_cases"
PACKED = re.compile(r'<script type="application/gzip" id="(packed-\w+)">([^<]*)</script>')
# of each plot the points that plotly has given a place
POINTS = """() => Object.fromEntries([...document.querySelectorAll("[data-figure]")]
  .map((card) => [card.dataset.figure, card.querySelector(".plot").calcdata
    .reduce((sum, points) => sum + points.filter((p) => p.x !== undefined).length, 0)]))"""


# texts of the first cells of every row
NAMES = """() => [...document.querySelectorAll("#table-all_cases tbody tr")]
  .map((row) => [...row.cells].slice(0, 7).map((cell) => cell.textContent).join(""))"""


def points_of(opened: OpenPage) -> dict[str, int]:
    """With every plot drawn, also those that are not in view."""
    opened.page.evaluate("reportDraw()")
    return opened.page.evaluate(POINTS)


def hostile_document() -> Document:
    """Every text that may come from a file has markup."""
    axes = ({"title": {"text": HOSTILE}}, {"title": {"text": "y"}})
    traces = [{"name": HOSTILE, "x": [HOSTILE, "not finite"], "y": [1, float("nan")]}]
    figure = Figure("f", HOSTILE, traces, *axes, HOSTILE)
    table = Table("t", HOSTILE, [{f"{HOSTILE} [ms]": float("nan"), "b": HOSTILE}], HOSTILE)
    whole = Section("a", HOSTILE, [HOSTILE], figures=[figure], tables=[table])
    missing = Section("b", "B", missing=f"no {HOSTILE}; `scripts/a` makes one")
    facts = [Fact(HOSTILE, HOSTILE, HOSTILE)]
    return Document(HOSTILE, "2026-11-22", facts, [whole, missing], [])


def report_of(path: Path) -> Document:
    return build_document(read(path))


def missing_of(built: Document) -> dict[str, str]:
    return {one.id: one.missing for one in built.sections if one.missing}


def test_figures_are_those_of_the_files(inputs: ReportInputs, built: Document) -> None:
    (case, *_), of_case = rows_of(SMALL_STEP), median_ms(SMALL_STEP)
    every = np.log([row["real_time"] for row in rows_of(SMALL_STEP)])
    low, high = np.exp(stats.t.interval(0.95, 2, every.mean(), stats.sem(every)))
    flops, share = case["model_flops"], 1e5 * case["model_flops"] / PEAK / of_case
    of_part = {
        part: count * median_ms(f"{part}/forward_backward/baseline/small/f32/batch:8/seq:256")
        for part, count in (("ffn", 8), ("rms_norm", 17))
    }
    phases = [
        median_ms(f"model/{pass_name}/baseline/small/f32/batch:8/seq:256")
        for pass_name in ("forward_loss", "forward_backward")
    ]
    check, *_ = rows_of(CHECK_STEP, ("check.json",))
    norm, *_ = rows_of("rms_norm/forward_backward/baseline/tiny/f32/batch:1/seq:64")
    apart = 100 * (norm["peak_memory_MiB"] / norm["predicted_memory_MiB"] - 1)
    gemm = "peak/gemm/f32/128x256x1024"
    teraflops = max(row["TFLOPS"] for row in rows_of(gemm, ("products.json",)))
    wanted = {"size": "medium", "variant": "optimized", "dtype": "f32"}
    sequences = document("frontier.json")["sequences"]
    point = next(one for one in sequences if wanted.items() <= one.items())
    lookup = document("costs.json")["cases"][0]
    context = document(ROUNDS[0])["context"]
    machine = Machine.from_context(inputs.main.context)
    size, of_size = machine.curve[-1]
    tables = {
        ("all_cases", SMALL_STEP): {
            **{"time": of_case, "+-": 50 * (high - low) / of_case, "MFU": share},
            **{"of the roofline": share, "speed-up": None, "rate": 8e3 * 256 / of_case},
        },
        ("results", DEVICE): {
            **{"memory": context["device"]["memory_bytes"] / 2**30, "rounds": 3, "cases": 352},
            "last-level cache": context["device"]["last_level_cache_bytes"] / MIB,
        },
        ("roofline_points", SMALL_STEP): {
            **{"intensity": flops / case["bytes"], "rate": flops / of_case / 1e6},
            **{"attainable": PEAK / 1e9, "attained": share, "bound": "compute"},
            "GEMMs": 1e3 * flops / PEAK,
        },
        # small enough for the cache
        ("roofline_points", lookup["name"]): {
            "traffic": 1e3 * lookup["bytes"] / machine.attainable_bandwidth(lookup["bytes"])
        },
        ("gemm_points", gemm): {"rate": 1e3 * teraflops},
        ("peaks", "f32 GEMMs"): {"measured": PEAK / 1e9},
        ("peaks", "memory"): {"measured": peak("memory_bandwidth") / 1e9},
        ("peaks", f"bandwidth, {size / MIB:g} MiB"): {"measured": of_size / 1e9},
        ("parts", "ffn"): {
            **{"count": 8, "measured": of_part["ffn"]},
            "of the step": 100 * of_part["ffn"] / of_case,
        },
        ("parts", "rms_norm"): {"count": 17, "measured": of_part["rms_norm"]},
        ("parts", "step"): {"measured": of_case},
        ("steps", "small"): {"measured": of_case, "forward": phases[0]},
        ("memory_agreement", "rms_norm"): {
            **{"cases": 32, "median": pytest.approx(apart, rel=1e-2)}
        },
        ("frontier_batch", "medium, optimized"): {
            **{"dtype": "f32", "batch": point["batch"], "longest sequence": point["longest_seq"]},
            "it needs": point["predicted_bytes"] / MIB,
        },
        ("predicted_steps", MEDIUM): {
            "measured time": median_ms(CHECK_STEP, ("check.json",)) / 1e3,
            "peak memory": pytest.approx(check["peak_memory_MiB"] / 1024),
            "parameters": check["parameters"] / 1e6,
            **{"memory off by": pytest.approx(0, abs=1e-3), "kind": "prediction, checked"},
            "inside the range": "yes",
        },
    }
    for (identity, row), figures in tables.items():
        for column, expected in figures.items():
            found = cell(part(built, identity), row, column)
            wanted = pytest.approx(expected) if isinstance(expected, float) else expected
            assert found == wanted, (identity, row, column)
    steps = part(built, "predicted_steps")
    times = [cell(steps, MEDIUM, f"{what} time") for what in ("predicted", "measured")]
    assert cell(steps, MEDIUM, "off by") == pytest.approx(100 * (times[0] / times[1] - 1), abs=1e-3)


def test_the_report_is_whole_with_own_ids(built: Document) -> None:
    assert list(missing_of(built)) == ["variants"]
    # series that are too noisy for a law; ranks of one thread, beside a study of two
    assert {one.kind for one in built.omissions} == {"time law", "steps over ranks"}
    commit, date = CONTEXT["git_commit"][:8], CONTEXT["date"][:10]
    assert built.title == f"Tiny LLaMA on {DEVICE} · {commit} · {date}"
    figures = [one for page in built.sections for one in page.figures]
    for things in (figures, [one for page in built.sections for one in page.tables]):
        assert len({one.id for one in things}) == len(things) > 10
    every = [trace for one in figures for trace in one.traces]
    values = [value for t in every for value in t["x" if "orientation" in t else "y"]]
    assert None not in values and all(map(math.isfinite, values))
    # the roofline has every case and GEMM
    marks = [t for t in part(built, "roofline_plot").traces if t["mode"] == "markers"]
    count = len(part(built, "roofline_points").rows) + len(part(built, "gemm_points").rows)
    assert sum(len(t["x"]) for t in marks) == count > 352


def test_a_fault_in_one_part_leaves_the_others(
    inputs: ReportInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "SECTIONS", [("a", "A", lambda *_: {}["nothing"]), SECTIONS[0]])
    built = build_document(inputs)
    reason = "not foreseen: KeyError: 'nothing'"
    assert missing_of(built) == {"a": reason} and section(built, "time").tables
    assert [one.reason for one in built.omissions if one.is_error] == [reason]


def test_what_a_result_lacks_or_got_wrong_is_named(tmp_path: Path) -> None:
    reason = "107 % of the measured f32 peak: the time, the count or the peak is wrong"

    def spoil(content: Json) -> None:
        rows = content["benchmarks"]
        rows[0] |= {"error_occurred": True, "error_message": "wrong result"}
        rows[1] |= {"skipped": True, "skip_message": "does not fit"}
        (entry,) = (row for row in rows if row["run_name"].startswith(TINY_STEP))
        entry.pop("peak_percent")
        entry["above_peak"] = reason

    found = read(change(write_result(tmp_path / "a.json"), spoil))
    built = build_document(found)
    # one size alone supports no law
    assert missing_of(built)["scaling"].startswith("no law of time: only 1 cell of batch and seq")
    cases = {one.reason: one.is_error for one in built.omissions if one.kind == "case"}
    assert cases == {"wrong result": True, "does not fit": False}
    # what went wrong first
    rows = section(built, "left_out").tables[0].rows
    assert [row[3] for row in rows] == ["yes", "yes", "", ""]
    # a row above its peak is shown with its time, without shares
    environment = section(built, "environment")
    assert f"{TINY_STEP}: {reason}" in environment.text
    (result,) = environment.tables[0].records
    assert (result["failed"], result["skipped"]) == (1, 1)
    roofline = section(built, "roofline")
    attained, rate = (cell(roofline.tables[0], TINY_STEP, name) for name in ("attained", "rate"))
    assert attained is None and rate > 0
    assert [(o.name, o.reason) for o in roofline.omissions] == [(TINY_STEP, reason)]
    assert f"{TINY_STEP}/peak_percent " not in figures_of_merit(found)
    # without peaks there is no roofline
    path = change(tmp_path / "a.json", lambda it: it["context"].update(peaks={"measured": {}}))
    built = report_of(path)
    assert "bandwidth_curve" in missing_of(built)["roofline"] and "time" not in missing_of(built)
    assert cell(part(built, "parts"), "ffn", "speed of light") is None
    # a size without a name has laws, but no parts
    text = json.dumps(document(ROUNDS[0], "/tiny/")).replace("/tiny/", "/custom/")
    built = report_of(write_json(tmp_path / "a.json", json.loads(text)))
    assert "of a size in fixtures/problem_sizes.json" in missing_of(built)["time"]
    assert "scaling" not in missing_of(built) and built.errors == 0


def test_parts_of_the_step_beside_their_speed_of_light(inputs: ReportInputs) -> None:
    main, found = inputs.main, section(inputs, "time")
    parts = part(found, "parts")
    for _, _, measured, _, least, lost, _, _, share, _ in parts.rows:
        assert lost == pytest.approx(measured - least)
        assert share is None or share == pytest.approx(100 * least / measured)
    for column in range(2, 8):
        *each, whole = (row[column] for row in parts.rows)
        assert sum(each) == pytest.approx(whole)
    for row in part(found, "steps").rows:
        _, measured, least, share, at_best, lost, *phases, _ = row
        assert (share, 100 - lost) == pytest.approx((100 * least / measured,) * 2)
        assert 0 < at_best < share and sum(phases) == pytest.approx(measured)
    for shares in zip(*(t["x"] for t in part(found, "phases_plot").traces), strict=True):
        assert sum(shares) == pytest.approx(100)
    # parts that were measured apart and are longer than the step: a sentence, and no shares
    slow = {
        name: replace(case, seconds=(9.0,)) if "model/forward_b" in name else case
        for name, case in main.cases.items()
    }
    beyond = section(replace(inputs, main=replace(main, cases=slow)), "time")
    assert "phases_plot" not in [figure.id for figure in beyond.figures]
    said = [text for text in beyond.text if "do not add up" in text]
    assert len(said) == 2 and said[0].endswith(
        "no shares of it are drawn (the step takes 3.173 s, backward 7.945 s, other below 0)."
    )
    # a part faster than its bound: then there is no share
    cases = {
        name: replace(case, seconds=(1e-9,)) if case.name.component == "loss" else case
        for name, case in main.cases.items()
    }
    found = section(replace(inputs, main=replace(main, cases=cases)), "time")
    assert [o.name for o in found.omissions if o.is_error and o.reason.startswith("loss:")]
    assert cell(part(found, "parts"), "step", "share") is None
    assert {*(value for row in part(found, "steps").rows for value in row[3:6])} == {None}


@pytest.mark.parametrize("component", ["rms_norm", "ffn"])
def test_every_roof_is_in_view_however_few_cases_there_are(tmp_path: Path, component: str) -> None:
    path = write_result(tmp_path / "a.json", f"^{component}/.*{OWN_SHAPE}")
    machine = Machine.from_context(read(path).main.context)
    roofs = part(report_of(path), "roofline_plot").traces
    (points,) = [t for t in roofs if t["mode"] == "markers"]
    (peak,) = machine.peak_flops.values()
    (roof,) = [t for t in roofs if t["name"] == "f32 GEMMs, memory"]
    # beside the few cases there are the slope and the flat part, with the corner between them
    assert roof["x"][0] < min(points["x"]) and roof["x"][-1] > max(points["x"])
    ridge = peak / machine.memory_bandwidth
    assert roof["x"][0] < ridge < roof["x"][-1] and max(roof["y"]) == pytest.approx(peak / 1e9)
    assert roof["y"][roof["x"].index(ridge)] == pytest.approx(peak / 1e9)
    # and the slopes of caches up to it
    slopes = [t for t in roofs if t["name"].startswith("traffic of")]
    assert slopes and all(max(t["y"]) == pytest.approx(peak / 1e9) for t in slopes)

    # without a peak of GEMMs there are the slopes
    def without(content: Json) -> None:
        del content["context"]["peaks"]["measured"]["f32"]

    if component == "rms_norm":
        roofs = part(report_of(change(path, without)), "roofline_plot").traces
        names = [t["name"] for t in roofs if t["mode"] == "lines"]
        assert names[0] == "memory" and names[1].startswith("traffic of")


def test_bound_is_compute_or_bandwidth_and_launches_have_words_of_their_own(
    built: Document,
) -> None:
    roofline = section(built, "roofline")
    rows = part(roofline, "roofline_points").records
    assert {row["bound"] for row in rows} == {"compute", "bandwidth"}
    for row in rows:
        assert (row["GEMMs [ms]"] > row["traffic [ms]"]) == (row["bound"] == "compute")
    counts = [sum(row["bound"] == bound for row in rows) for bound in ("compute", "bandwidth")]
    bounds, launches = roofline.text
    assert bounds.startswith("Bound: {} cases by compute, {} cases by bandwidth.".format(*counts))
    assert "Launches can explain most of the time of " in launches and "bound" not in launches


def test_the_main_step_has_parts_and_is_optimized_before_it_is_large(tmp_path: Path) -> None:
    whole = document(ROUNDS[0], OWN_SHAPE)
    rows = document(ROUNDS[0], SMALL_STEP)["benchmarks"]
    for expected in (("small", "baseline"), ("tiny", "baseline"), ("tiny", "optimized")):
        name = read(write_json(tmp_path / "a.json", whole | {"benchmarks": rows})).steps[0].step
        assert (name.size, name.variant) == expected
        rows = [*rows, *whole["benchmarks"]]
        whole = json.loads(json.dumps(whole).replace("/baseline/", "/optimized/"))


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
    of_laws = part(found, "time_laws")
    for column, expected in {"launch": 40, "per token": 30, "cells": 16}.items():
        assert cell(of_laws, FFN, column) == pytest.approx(expected, rel=1e-3)
    assert cell(of_laws, FFN, "per token and token") == pytest.approx(0, abs=1)
    assert (cell(of_laws, FFN, "held out"), cell(of_laws, FFN, "covered")) == (3, 3)
    assert cell(part(found, "held_out_time"), "tiny", "held-out cells") == 6
    # a cell that lacks a round is no part of its law
    name = f"{FFN}/batch:4/seq:128"

    def without(content: Json) -> None:
        rows = content["benchmarks"]
        content["benchmarks"] = [row for row in rows if not row["run_name"].startswith(name)]

    change(folder / "round_3.json", without)
    found = section(read(folder), "scaling")
    assert cell(part(found, "time_laws"), FFN, "cells") == 15
    (omission,) = found.omissions
    assert omission.name == name and "not measured in the 3 rounds" in omission.reason


def test_memory_is_stacked_to_the_measured_peak(inputs: ReportInputs) -> None:
    found = section(inputs, "memory")
    for size, name, shape in (("small", SMALL_STEP, "8 x 256"), ("tiny", TINY_STEP, "8 x 128")):
        traces = part(found, f"memory_parts_{size}").traces
        place, case = traces[0]["x"].index(shape), rows_of(name)[0]
        assert sum(trace["y"][place] for trace in traces) == pytest.approx(case["peak_memory_MiB"])
        weights = next(trace for trace in traces if trace["name"] == "weights")
        assert weights["y"][place] == pytest.approx(4 * case["parameters"] / MIB)
    # less than what is alive throughout is wrong
    name = CaseName("full_step", "train", "baseline", "tiny", "bf16", 1, 64)
    assert memory_parts(name, 100.0, 599.0) == {}
    assert list(memory_parts(name, 100.0, 640.0).values()) == [200, 400, 40]


def test_markdown_has_the_summary_and_key_tables_and_names_what_is_missing(
    built: Document, tmp_path: Path
) -> None:
    text = markdown_of(built)
    assert all(f"| {fact.what} " in text and f"| {fact.value} " in text for fact in built.facts)
    facts, parts = {fact.what: fact for fact in built.facts}, part(built, "parts")
    assert facts["f32 GEMMs"].value == f"{PEAK / 1e9:.4g} GFLOP/s"
    assert facts["training step"].value == f"{median_ms(SMALL_STEP) / 1e3:.4g} s"
    assert f", {8e3 / median_ms(SMALL_STEP):,.4g} samples/s" in facts["training step"].note
    assert facts["of its speed of light"].value == f"{cell(parts, 'step', 'share'):.1f} %"
    lost, name = max((row[5], row[0]) for row in parts.rows[:-1])
    assert facts[f"lost in {name}"].value == f"{lost:.4g} ms"
    text = markdown_of(report_of(write_result(tmp_path / "a")))
    assert re.search(r"^Not measured: Variants, Scaling, .*Predictions\. ", text, re.MULTILINE)
    assert HOSTILE not in markdown_of(hostile_document())


def test_figures_of_merit_have_one_form_and_are_documented(inputs: ReportInputs) -> None:
    *lines, last = figures_of_merit(inputs, errors=0).splitlines()
    assert last == f"SUCCESS: {len(lines)} figures"
    found = {}
    for line in lines:
        mark, name, equals, value, unit = line.split(" ")
        assert (mark, equals) == ("FOM", "=")
        found[name] = (float(value), unit)
    assert len(found) == len(lines)
    seconds, case = median_ms(TINY_STEP) / 1e3, rows_of(TINY_STEP)[0]
    (cost,) = (one for one in document("costs.json")["cases"] if one["name"] == MEDIUM_STEP)
    # those of several ranks: tests/distributed/test_scaling.py
    expected = {
        "peak/gemm/f32/TFLOPS": (PEAK / 1e12, "TFLOP/s"),
        "peak/memory_bandwidth": (peak("memory_bandwidth") / 1e9, "GB/s"),
        f"{TINY_STEP}/time": (seconds, "s"),
        f"{TINY_STEP}/samples_per_second": (8 / seconds, "samples/s"),
        f"{TINY_STEP}/TFLOPS": (case["model_flops"] / seconds / 1e12, "TFLOP/s"),
        f"{TINY_STEP}/peak_memory": (case["peak_memory_MiB"], "MiB"),
        f"{MEDIUM_STEP}/predicted_memory": (cost["predicted_memory_bytes"] / MIB, "MiB"),
    }
    assert list(found)[:2] == list(expected)[:2]
    for name, (value, unit) in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-5), unit), name
    page = (ROOT / "integrations/README.md").read_text(encoding="utf-8")
    for name, (_, unit) in found.items():
        kind = name.rpartition("/")[2]
        assert f"`{kind}`" in page or f"/{kind}`" in page, name
        assert f"| {unit} |" in page, unit
    # what is no number is no figure, and errors fail
    peaks = {"measured": {"f32": {"flops_per_second": math.nan}}}
    spoilt = replace(inputs.main, context={**inputs.main.context, "peaks": peaks})
    text = figures_of_merit(replace(inputs, main=spoilt), errors=1)
    assert "nan" not in text and text.splitlines()[-1].startswith("FAILED: 1 error, ")
    assert figures_of_merit(ReportInputs(), errors=0) == "FAILED: no figure\n"


def test_a_table_has_its_first_500_rows() -> None:
    table = Table("t", "T", [{"a": row} for row in range(501)], "Rows.", is_key=True)
    whole = Document("D", "2026-11-22", [], [Section("a", "A", tables=[table])], [])
    page, text = page_of(whole), markdown_of(whole)
    assert "The first 500 of 501 rows. Rows." in page and page.count("<tr><td") == 500
    assert "The first 40 of 501 rows. Rows." in text
    assert len(re.findall(r"^\| +\d", text, re.MULTILINE)) == 40


def test_texts_of_files_are_no_markup(tmp_path: Path, open_page: PageOpener) -> None:
    path, text = tmp_path / "page.html", page_of(hostile_document())
    assert HOSTILE not in text
    # three elements of ours: the data, plotly, the page's script
    assert len(re.findall(r"<script\b", text)) == len(re.findall(r"</script>", text)) == 3
    assert "makes one</p>" in text and "<code>scripts/a</code>" in text
    path.write_text(text, encoding="utf-8")
    opened = open_page(path)
    assert opened.texts("#table-t td") == ["\u2013", HOSTILE]
    assert (points_of(opened), opened.said) == ({"f": 1}, [])


def test_a_plot_is_drawn_when_it_comes_into_view_and_no_table_is_cut_off(
    built: Document, page: Path, open_page: PageOpener
) -> None:
    opened = open_page(page, 1300)
    drawn = "[...document.querySelectorAll('.js-plotly-plot')].map((of) => of.closest('.card'))"
    ids = f"{drawn}.map((of) => of.dataset.figure)"
    opened.page.wait_for_function(f"{drawn}.length")
    first = opened.page.evaluate(ids)
    assert "parts_plot" in first and "predictions_plot" not in first
    opened.page.evaluate("document.getElementById('predictions').scrollIntoView()")
    opened.page.wait_for_function(f"{ids}.includes('predictions_plot')")
    assert "memory_parts_tiny" not in opened.page.evaluate(ids)
    assert opened.page.evaluate(CUT_OFF) == [1300]
    # on paper all of them are
    opened.page.emulate_media(media="print")
    opened.page.pdf()
    figures = sum(len(one.figures) for one in built.sections)
    assert opened.page.evaluate(f"{drawn}.length") == figures


def test_bars_are_there_before_plotly_and_give_way_to_it(
    tmp_path: Path, open_page: PageOpener
) -> None:
    shares = {"forward": {"tiny": 30.0, "small": 20.0}, "rest": {"tiny": 10.0, "small": 60.0}}
    shares["lost"] = {"tiny": None, "small": None}
    beside = Figure("beside", "B", bars(shares), axis("part"), axis("ms"))
    stacked = Figure(
        "stacked", "S", bars(shares, horizontal=True), axis("%"), axis("step"), "", "stack"
    )
    below = Figure("below", "N", bars({"a": {"x": -1.0, "y": 2.0}}), axis("part"), axis("ms"))
    sections = [Section("a", "A", figures=[beside, stacked, below])]
    text = page_of(Document("D", "2026-11-22", [], sections, []))
    found = re.findall(r'class="early (\w+)"><span>(\w+)</span><div>(.*?)</div>', text)
    widths = [re.findall(r"width: ([\d.]+)%", row) for *_, row in found]
    assert [kind for kind, *_ in found] == ["group", "group", "stack", "stack"]
    assert [label for _, label, _ in found] == ["tiny", "small"] * 2
    # of the longest bar, and of the longest row
    assert widths[:2] == [["50.00", "16.67"], ["33.33", "100.00"]]
    assert widths[2:] == [["37.50", "12.50"], ["25.00", "75.00"]]
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    opened = open_page(tmp_path / "report.html")
    opened.page.wait_for_function("document.querySelectorAll('.js-plotly-plot').length === 3")
    assert not opened.texts(".early")


@pytest.fixture
def opened(page: Path, open_page: PageOpener) -> OpenPage:
    """On a telephone."""
    return open_page(page, 390)


def test_the_page_has_every_section_row_and_point_and_loads_nothing(
    opened: OpenPage, built: Document
) -> None:
    figures = [one for page in built.sections for one in page.figures]
    assert len(figures) > 20
    assert points_of(opened) == {one.id: one.points for one in figures}
    asked = [one for one in opened.asked if not one.startswith(("data:", "blob:"))]
    assert (opened.said, asked) == ([], [opened.page.url])
    assert opened.texts("section h2") == [one.title for one in built.sections]
    assert opened.texts("#contents a")[1:] == [one.title for one in built.sections]
    rows = [len(table.rows) for page in built.sections for table in page.tables]
    assert len(opened.texts("tbody tr")) == sum(rows) > 352
    assert opened.page.evaluate(CUT_OFF) == [390]


# of a person's or a machine's own; a study writes none of them, so nothing else looks like one
OWN_PATH = re.compile(r"/(?:home|Users|root|work|tmp|mnt|media|scratch|var|opt|usr)/")
# a host is named by a digest, a program by its name
PRIVATE = re.compile(r'"host_name": "(?!host_[0-9a-f]{8}")|"executable": "[^"]*/|"pid"')


def test_the_published_page_is_of_its_study_names_no_owner_and_is_small() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f">results/reference/{STUDY.name}<" in text.replace("<wbr>", "")
    packed = dict(PACKED.findall(text))["packed-data"]
    texts = {path.name: path.read_text(encoding="utf-8") for path in DATA_FILES}
    texts |= {"page": PACKED.sub("", text), "data": gzip.decompress(b64decode(packed)).decode()}
    assert [n for n, own in texts.items() if OWN_PATH.search(own) or PRIVATE.search(own)] == []
    files = [*DATA_FILES, PAGE, PICTURE]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert picture_size(PICTURE) == (1600, 900)
    assert PICTURE.stat().st_size <= MOST_PICTURE_BYTES


def picture_size(path: Path) -> tuple[int, ...]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return tuple(int.from_bytes(content[i : i + 4], "big") for i in (16, 20))


def test_headings_sort_words_filter_and_buttons_save(opened: OpenPage, built: Document) -> None:
    table = part(built, "all_cases")
    place, rows = table.columns.index("MFU [%]"), table.rows
    mfu = {"".join(map(str, row[:7])): row[place] for row in rows}
    missing = list(mfu.values()).count(None)
    assert opened.page.evaluate(NAMES) == list(mfu) and missing > 0
    for order in ("ascending", "descending"):
        opened.page.locator(f"{CASES} th button").nth(place).click()
        assert opened.page.locator(f"{CASES} th").nth(place).get_attribute("aria-sort") == order
        shown = [mfu[name] for name in opened.page.evaluate(NAMES)]
        known = shown[: len(shown) - missing]
        # cells without a value come last, whatever the direction
        assert None not in known
        assert known == sorted(known, reverse=order == "descending")
    opened.page.fill(f"{CASES} input", "FULL_step small")
    times = [row[7] for row in rows if (row[0], row[3]) == ("full_step", "small")]
    with opened.page.expect_download() as download:
        opened.page.click(f"{CASES} button[data-action=csv]")
    text = Path(download.value.path()).read_text(encoding="utf-8")
    heading, *saved = csv.reader(io.StringIO(text))
    assert heading[:2] == ["component", "pass"]
    assert heading[7:11] == ["time_ms", "half_interval_percent", "speed_up", "MFU_percent"]
    assert "\u2013" not in text
    assert sorted(float(row[7]) for row in saved) == pytest.approx(sorted(times), rel=1e-5)
    assert len(times) > 1
    opened.page.hover("[data-figure=roofline_plot] .plot")
    with opened.page.expect_download() as download:
        opened.page.click("[data-figure=roofline_plot] .modebar-btn")
    assert picture_size(Path(download.value.path())) == (1600, 900)
    assert opened.said == []


@pytest.mark.usefixtures("browser")
def test_every_figure_is_a_picture_of_1600_by_900(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [str(write_result(tmp_path / "a.json")), "--format=png", f"-o={tmp_path / 'png'}"]
    # in a thread of its own: the driver of the other tests' browser holds this one
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(tools.report, given).result() == 0
        monkeypatch.setattr(output, "BROWSERS", ("false",))
        with pytest.raises(BadInputError, match="false does not start"):
            pool.submit(write_pngs, hostile_document(), tmp_path).result()
    figures = [one for page in report_of(tmp_path / "a.json").sections for one in page.figures]
    written = sorted((tmp_path / "png").iterdir())
    assert [path.name for path in written] == sorted(f"{one.id}.png" for one in figures)
    assert {picture_size(path) for path in written} == {(1600, 900)}


def test_what_pictures_lack_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{output.DRIVER}",' in driver
    monkeypatch.setattr(output, "BROWSERS", ("false",))
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(BadInputError, match="package playwright is not installed"):
        write_pngs(hostile_document(), tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInputError, match="package chromium"):
        write_pngs(hostile_document(), tmp_path)
    assert write_pngs(replace(hostile_document(), sections=[]), tmp_path / "none") == []
