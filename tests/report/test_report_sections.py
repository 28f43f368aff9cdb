"""What the sections show, held to the published study's own rows; Markdown and figures of merit."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

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
)

from tinyllama_tools.core.app import PROJECT, Json, problem_sizes
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.models.roofline import step_products
from tinyllama_tools.report import command
from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import ReportInputs, main_step
from tinyllama_tools.report.output import figures_of_merit, markdown_of, plain
from tinyllama_tools.report.sections.growth import memory_parts

FFN = "ffn/forward_backward/baseline/tiny/f32"
MEDIUM = "medium, 4 x 512"
PEAK = peak("f32", "flops_per_second")


def missing_of(built: Document) -> dict[str, str]:
    return {one.id: one.missing for one in built.sections if one.missing}


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
            **{"of the roofline": share, "speed-up": None},
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
        ("environment", "peaks", "f32 GEMMs"): {"measured": PEAK / 1e9},
        ("environment", "peaks", "memory"): {"measured": peak("memory_bandwidth") / 1e9},
        ("environment", "peaks", "last"): {"measured": peak("cache_bandwidth") / 1e9},
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


def test_the_report_is_whole_with_own_ids(built: Document) -> None:
    assert missing_of(built) == {} and [one.kind for one in built.omissions] == ["result"]
    assert built.title == f"Tiny LLaMA on {DEVICE} · 4ad35a02 · 2026-11-22"
    figures = [one for part in built.sections for one in part.figures]
    for things in (figures, [one for part in built.sections for one in part.tables]):
        assert len({one.id for one in things}) == len(things) > 10
    values = [y for one in figures for of in one.traces for y in of["y"]]
    assert None not in values and all(map(math.isfinite, values))
    # the roofline has every case and GEMM
    marks = [of for of in figures[0].traces if of["mode"] == "markers"]
    count = sum(len(table.rows) for table in section(built, "roofline").tables)
    assert sum(len(of["x"]) for of in marks) == count > 352


def test_a_fault_in_one_part_leaves_the_others(
    inputs: ReportInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("nothing here")

    of_sections = (("roofline", "Roofline", broken), *command.SECTIONS[1:])
    monkeypatch.setattr(command, "SECTIONS", of_sections)
    built = build_document(inputs)
    reason = "not foreseen: KeyError: 'nothing here'"
    assert missing_of(built) == {"roofline": reason}
    found = [(one.kind, one.reason) for one in built.omissions if one.is_error]
    assert found == [("section", reason)] and built.errors == 1


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
    assert "1 size: 3 coefficients" in missing_of(built)["scaling"]
    cases = {one.reason: one.is_error for one in built.omissions if one.kind == "case"}
    assert cases == {"wrong result": True, "does not fit": False}
    rows = section(built, "left_out").tables[0].rows
    names = [name for row in rows for name in row[1].split("; ")]
    assert sorted(names) == sorted(one.name for one in built.omissions)
    # what went wrong first
    assert [row[3] for row in rows] == ["yes", "yes", "", ""]
    # a row above its peak is shown with its time, without shares
    assert f"{TINY_STEP}: {reason}" in section(built, "environment").text
    roofline = section(built, "roofline")
    (shown,) = (row for row in roofline.tables[0].rows if row[0] == TINY_STEP)
    assert shown[4] is None and shown[2] > 0
    assert [(o.name, o.reason) for o in roofline.omissions] == [(TINY_STEP, reason)]
    assert f"{TINY_STEP}/peak_percent " not in figures_of_merit(found)
    # without peaks there is no roofline
    path = change(tmp_path / "a.json", lambda of: of["context"].update(peaks={"measured": {}}))
    built = build_document(read(path))
    assert "cache_bandwidth" in missing_of(built)["roofline"] and "time" not in missing_of(built)
    # its parts have times, and no speed of light
    assert cell(table(section(built, "time"), "parts"), "ffn", "speed of light") is None
    assert "cache_bandwidth" in cell(table(section(built, "time"), "steps"), "tiny", "missing")
    # a size without a name has laws, but no parts
    text = json.dumps(document(ROUNDS[0], "/tiny/")).replace("/tiny/", "/custom/")
    built = build_document(read(write(tmp_path / "a.json", json.loads(text))))
    assert "of a size in fixtures/problem_sizes.json" in missing_of(built)["time"]
    assert "scaling" not in missing_of(built) and built.errors == 0


def test_parts_of_the_step_beside_their_speed_of_light(inputs: ReportInputs) -> None:
    # every product at one rate
    main, rate = inputs.main, 0.9 * PEAK
    products = tuple(replace(one, flops_per_second=rate) for one in main.products)
    found = section(replace(inputs, main=replace(main, products=products)), "time")
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
        _, measured, least, share, at_best, lost, *phases, _ = row
        assert (share, 100 - lost) == pytest.approx((100 * least / measured,) * 2)
        assert 0 < at_best < share and sum(phases) == pytest.approx(measured)
    for shares in zip(*(of["y"] for of in figure(found, "phases_plot").traces), strict=True):
        assert sum(shares) == pytest.approx(100)
    # without a bound there is no share
    cases = {
        name: replace(case, seconds=(1e-9,)) if case.name.component == "loss" else case
        for name, case in main.cases.items()
    }
    found = section(replace(inputs, main=replace(main, cases=cases)), "time")
    assert [o.name for o in found.omissions if o.is_error and o.reason.startswith("loss:")]
    assert cell(table(found, "parts"), "step", "share") is None
    assert {*(of for row in table(found, "steps").rows for of in row[3:6])} == {None}


def test_the_main_step_has_parts_and_is_optimized_before_it_is_large(tmp_path: Path) -> None:
    whole = document(ROUNDS[0], OWN_SHAPE)
    rows = document(ROUNDS[0], SMALL_STEP)["benchmarks"]
    for expected in (("small", "baseline"), ("tiny", "baseline"), ("tiny", "optimized")):
        name = main_step(read(write(tmp_path / "a.json", whole | {"benchmarks": rows})).main).name
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
    of_laws = table(found, "time_laws")
    for column, expected in {"launch": 40, "per token": 30, "sizes": 16}.items():
        assert cell(of_laws, FFN, column) == pytest.approx(expected, rel=1e-3)
    assert cell(of_laws, FFN, "per token and token") == pytest.approx(0, abs=1)
    assert (cell(of_laws, FFN, "held out"), cell(of_laws, FFN, "covered")) == (3, 3)
    assert cell(table(found, "held_out_time"), "tiny", "held-out cells") == 6
    marks = [
        of
        for of in figure(found, f"time_{FFN.replace('/', '_')}").traces
        if "law" not in of["name"]
    ]
    assert [len(of["y"]) for of in marks] == [4, 4, 4, 4, 3]
    # a cell that lacks a round is no part of its law
    name = f"{FFN}/batch:4/seq:128"

    def without(content: Json) -> None:
        rows = content["benchmarks"]
        content["benchmarks"] = [row for row in rows if not row["run_name"].startswith(name)]

    change(folder / "round_3.json", without)
    found = section(read(folder), "scaling")
    assert cell(table(found, "time_laws"), FFN, "sizes") == 15
    (omission,) = found.omissions
    assert (omission.name, omission.kind) == (name, "time law")
    assert "not measured in the 3 rounds of the other sizes" in omission.reason


def test_memory_is_stacked_to_the_measured_peak(inputs: ReportInputs) -> None:
    found = section(inputs, "memory")
    for size, name, shape in (("small", SMALL_STEP, "8 x 256"), ("tiny", TINY_STEP, "8 x 128")):
        traces = figure(found, f"memory_parts_{size}").traces
        place, case = traces[0]["x"].index(shape), rows_of(name)[0]
        assert sum(trace["y"][place] for trace in traces) == pytest.approx(case["peak_memory_MiB"])
        weights = next(trace for trace in traces if trace["name"] == "weights")
        assert weights["y"][place] == pytest.approx(4 * case["parameters"] / MIB)
    # less than what is alive throughout is wrong
    name = CaseName("full_step", "train", "baseline", "tiny", "bf16", 1, 64)
    assert memory_parts(name, 100.0, 599.0) == {}
    assert list(memory_parts(name, 100.0, 640.0).values()) == [200, 400, 40]


@pytest.mark.parametrize(("slower", "larger"), [(1.0, 1.25), (9.0, 1.0)])
def test_a_check_says_what_its_prediction_is_off_by(
    tmp_path: Path, inputs: ReportInputs, slower: float, larger: float
) -> None:
    content = document("check.json")
    for row in content["benchmarks"]:
        row["real_time"] *= slower
        row["peak_memory_MiB"] *= larger
    check = read(write(tmp_path / "m.json", content)).main
    checked = replace(inputs, study=inputs.study._replace(check=check))
    rows = table(section(checked, "predictions"), "predicted_steps")
    assert [row[0] for row in rows.rows if row[-1] == "prediction, checked"] == ["medium"]
    assert {row[6] for row in rows.rows} == {"95 % interval"}
    assert cell(rows, MEDIUM, "inside the range") == ("yes" if slower == 1 else "no")
    measured = slower * median_ms(CHECK_STEP, ("check.json",)) / 1e3
    off = 100 * (cell(rows, MEDIUM, "predicted time") / measured - 1)
    assert cell(rows, MEDIUM, "off by") == pytest.approx(off, abs=1e-3)
    expected = pytest.approx(100 / larger - 100, abs=1e-3)
    assert cell(rows, MEDIUM, "memory off by") == expected


def test_markdown_has_the_summary_and_key_tables_and_names_what_is_missing(
    built: Document, tmp_path: Path
) -> None:
    text = markdown_of(built)
    assert text.splitlines()[0] == f"# {built.title}"
    assert all(f"| {of.what} " in text and f"| {of.value} " in text for of in built.facts)
    key = [table.title for one in built.sections for table in one.tables if table.is_key]
    assert [line[4:] for line in text.splitlines() if line.startswith("### ")] == key
    facts, parts = {of.what: of for of in built.facts}, table(section(built, "time"), "parts")
    assert facts["f32 GEMMs"].value == f"{PEAK / 1e9:.4g} GFLOP/s"
    assert facts["training step"].value == f"{median_ms(SMALL_STEP) / 1e3:.4g} s"
    assert f", {8e3 / median_ms(SMALL_STEP):,.4g} samples/s" in facts["training step"].note
    assert facts["of its speed of light"].value == f"{cell(parts, 'step', 'share'):.1f} %"
    (part, lost), *_ = sorted(((row[0], row[5]) for row in parts.rows[:-1]), key=lambda of: -of[1])
    assert facts[f"lost in {part}"].value == f"{lost:.4g} ms"
    text = markdown_of(build_document(read(write_result(tmp_path / "a"))))
    assert re.search(r"^Not measured: Scaling, .*Data-parallel scaling\. ", text, re.MULTILINE)
    assert "- time law full_step/train/baseline/tiny/f32, " in text
    assert plain("time of\n<x>") == "time of &lt;x>"


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
    (cost,) = (of for of in document("costs.json")["cases"] if of["name"] == CHECK_STEP)
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
        f"{CHECK_STEP}/predicted_memory": (cost["predicted_memory_bytes"] / MIB, "MiB"),
        ranks: (point.efficiency.median, "%"),
    }
    assert list(found)[:3] == list(expected)[:3]
    for name, (value, unit) in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-5), unit), name
    assert 0 < found[f"{TINY_STEP}/speed_of_light_percent"][0] < 100
    assert 0 < found["held_out/time/tiny/median_error_percent"][0] < 15
    page = (PROJECT / "integrations/README.md").read_text(encoding="utf-8")
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
