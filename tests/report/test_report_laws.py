"""Laws of a report, its five sentences, its Markdown and its figures of merit."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from played_grid import (
    BANDWIDTH,
    MIB,
    RATE,
    SMALL,
    Grid,
    Json,
    costs_of,
    frontier_point,
    step_costs,
)
from played_study import cell, change, read, table, write_result, write_study

from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.machine import SHARES
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.report.analysis import Series, SeriesFit
from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.law_parts import held_out_summary
from tinyllama_tools.report.output import (
    figures_of_merit,
    figures_text,
    markdown_number,
    markdown_of,
    plain,
)
from tinyllama_tools.report.sections import memory, scaling
from tinyllama_tools.stats.laws import GridPoint, HeldOutCell, fit_time_law

FFN = "ffn/forward_backward/baseline/tiny/f32"
TINY_STEP = "full_step/train/baseline/tiny/f32/batch:8/seq:128"


def test_laws_are_those_of_the_machine(inputs: ReportInputs) -> None:
    found = scaling.build(inputs)
    laws = table(found, "time_laws")
    one, two = (costs_of("ffn", "tiny", batch, 1) for batch in (1, 2))
    a_token = (two.model_flops - one.model_flops) / RATE + (two.bytes - one.bytes) / BANDWIDTH
    assert cell(laws, FFN, "per token") == pytest.approx(1e9 * a_token, rel=0.02)
    # an FFN does nothing that grows with the square of the sequence
    assert cell(laws, FFN, "per token and token") is None
    assert "quadratic: " in cell(laws, FFN, "remarks")
    exponents = table(found, "time_exponents")
    assert "hold only as far as the series is a power law" in exponents.note
    step = "full_step/train/baseline/small/f32"
    assert 0.8 < cell(exponents, step, "batch ^") < 1 < cell(exponents, step, "sequence ^") + 0.2


def test_held_out_cells_are_met(inputs: ReportInputs) -> None:
    found = scaling.build(inputs)
    summary = table(found, "held_out_time")
    for name in ("tiny", "small"):
        assert cell(summary, name, "held-out cells") == 33
        assert cell(summary, name, "median error") < 3
        assert cell(summary, name, "which is") == "within 15 %"
        assert cell(summary, name, "covered") > 90
        assert cell(table(memory.build(inputs), "held_out_memory"), name, "median error") < 5
    assert {row[1] for row in table(found, "held_out_time_series").rows} == {3}


def test_a_scaling_figure_has_every_point_and_the_held_out(inputs: ReportInputs) -> None:
    figures = {figure.id: figure for figure in scaling.build(inputs).figures}
    figure = figures["time_full_step_train_baseline_small_f32"]
    by_role: Counter[str] = Counter()
    for trace in figure.traces:
        by_role[trace["role"]] += len(trace["y"])
    assert (by_role["measured"], by_role["held_out"]) == (12, 3)
    assert figure.note.startswith("time = ") and figure.note.endswith("Bars: 95 % interval.")
    fits = scaling.shown_fits(inputs.time_fits)
    drawn, omissions = scaling.drawn(fits, scaling.TIME, 3)
    assert len(drawn) == 3
    named = [("figure of time", str(fit.series)) for fit in fits[3:]]
    assert [(one.kind, one.name) for one in omissions] == named


def test_memory_is_stacked_to_the_measured_peak(inputs: ReportInputs) -> None:
    found = memory.build(inputs)
    figures = {figure.id: figure for figure in found.figures}
    traces = figures["memory_parts"].traces
    place = traces[0]["x"].index("8 x 256")
    costs = step_costs("small", 8, 256)
    assert sum(trace["y"][place] for trace in traces) == pytest.approx(costs.memory / MIB)
    weights = next(trace for trace in traces if trace["name"] == "weights")
    assert weights["y"][place] == pytest.approx(4 * costs.parameters / MIB)
    sizes = figures["memory_of_sizes"].traces
    assert len(sizes[0]["x"]) == 5
    assert sum(trace["y"][4] for trace in sizes) == pytest.approx(100)
    assert all(row[2] == pytest.approx(0) for row in table(found, "memory_agreement").rows)
    # of a training run, its profiler's
    of_run = memory.build(replace(inputs, sets=(), studies=()))
    assert [figure.id for figure in of_run.figures] == ["memory_at_peak"]


def test_ranges_of_memory_are_misfits_and_no_intervals(inputs: ReportInputs) -> None:
    found = memory.build(inputs)
    for one in (table(found, "held_out_memory"), table(found, "memory_laws")):
        assert "misfit" in one.note or "without any one of the sizes" in one.note
        assert "95 %" not in one.note
    notes = [figure.note for figure in found.figures if "memory_full_step" in figure.id]
    assert notes and all("95 %" not in note for note in notes)
    assert any(note.endswith("Bars: largest misfit.") for note in notes)


def test_one_round_claims_nothing_of_others(tmp_path: Path) -> None:
    found = scaling.build(read(write_result(tmp_path / "one.json", Grid(sizes=("tiny",)))))
    for identity in ("held_out_time", "held_out_time_series", "time_laws"):
        note = table(found, identity).note
        assert "how much rounds differ is not known" in note and "95 %" not in note


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
    found = scaling.build(read(folder))
    laws = table(found, "time_laws")
    assert cell(laws, FFN, "sizes") == 11
    assert cell(laws, FFN.replace("ffn", "loss"), "sizes") == 12
    (omission,) = found.omissions
    assert (omission.name, omission.kind) == (name, "time law")
    assert "not measured in the 3 rounds of the other sizes" in omission.reason


def test_a_goal_that_is_missed_is_said() -> None:
    points = [GridPoint(b, s, (1e-3 * b * s,)) for b in (1, 2, 4) for s in (64, 128, 256)]
    law = fit_time_law(points)
    name = CaseName("ffn", "forward_backward", "baseline", "tiny", "f32", 4, 256)
    predicted = HeldOutCell(GridPoint(4, 256, (1.0,)), 1.2, 1.1, 1.3)
    fit = SeriesFit(Series(name, ()), law.points, law, held_out=(predicted,))
    for goal, verdict in ((15.0, "above 15 %"), (20.0, "within 20 %")):
        summary = held_out_summary("t", "T", [fit], goal)
        assert cell(summary, "tiny", "which is") == verdict
        assert cell(summary, "tiny", "covered") == 0
        assert cell(summary, "tiny", "median width") == pytest.approx(100 * 0.2 / 1.2)


def test_a_law_without_a_check_is_named(tmp_path: Path) -> None:
    # of four cells three are held out
    grid = Grid(sizes=("tiny",), batches=(1, 2), seqs=(64, 128), components=("ffn",))
    (omission,) = scaling.build(read(write_study(tmp_path / "study", grid))).omissions
    assert omission.kind == "held-out check of a time law"
    assert "sizes that are not held out" in omission.reason


def test_markdown_has_the_summary_and_whole_key_tables(built: Document) -> None:
    text = markdown_of(built)
    lines = text.splitlines()
    assert lines[0] == f"# {built.title}"
    assert lines[2:7] == [f"- {sentence}" for sentence in built.summary]
    key = [table.title for one in built.sections for table in one.tables if table.is_key]
    assert [line[4:] for line in lines if line.startswith("### ")] == key
    assert lines[-1].startswith("Made by `scripts/report`, ")
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_markdown_names_what_is_missing_and_left_out(tmp_path: Path) -> None:
    text = markdown_of(build_document(read(write_result(tmp_path / "a", SMALL))))
    assert re.search(r"^Not measured: Scaling, .*Training runs, .*\.$", text, re.MULTILINE)
    assert "- time law full_step/train/baseline/tiny/f32, " in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a <b>\n  c", "a &lt;b> c"),
        ("`<time>` of <x>", "`<time>` of &lt;x>"),
        ("one ` only <x>", "one ' only &lt;x>"),
    ],
)
def test_texts_of_files_are_no_markup(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        *((1234.9, 4, "1,235"), (0.012345, 3, "0.0123"), (12.0, 4, "12"), (0, 4, "0")),
        *((3132000.4, 4, "3,132,000"), (1.2e-7, 4, "1.2e-07"), (-0.5, 3, "-0.5")),
    ],
)
def test_numbers_of_markdown(value: float, digits: int, text: str) -> None:
    assert markdown_number(value, digits) == text


def test_figures_of_merit_have_one_form_and_are_documented(inputs: ReportInputs) -> None:
    figures = figures_of_merit(inputs)
    *lines, last = figures_text(figures, errors=0).splitlines()
    assert last == f"SUCCESS: {len(lines)} figures"
    found = {}
    for line in lines:
        mark, name, equals, value, unit = line.split(" ")
        assert (mark, equals) == ("FOM", "=")
        found[name] = (float(value), unit)
    assert len(found) == len(lines)
    assert list(found)[:3] == [
        "peak/gemm/f32/TFLOPS",
        "peak/memory_bandwidth",
        "peak/cache_bandwidth",
    ]
    assert found["peak/gemm/f32/TFLOPS"] == (0.3, "TFLOP/s")
    assert found["peak/memory_bandwidth"] == (40.0, "GB/s")
    assert inputs.main is not None
    step = inputs.main.cases[TINY_STEP]
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
    medium = "full_step/train/baseline/medium/f32/batch:16/seq:512/predicted_time"
    assert found[f"{medium}_low"][0] < found[medium][0] < found[f"{medium}_high"][0]
    units = {unit for name, (_, unit) in found.items() if "memory" in name.rpartition("/")[2]}
    assert units == {"MiB", "GB/s"}
    page = (PROJECT / "integrations/README.md").read_text(encoding="utf-8")
    for name, (_, unit) in found.items():
        kind = name.rpartition("/")[2]
        assert f"`{kind}`" in page or f"/{kind}`" in page, name
        assert f"| {unit} |" in page, unit


def test_what_is_no_number_is_no_figure_and_errors_fail(inputs: ReportInputs) -> None:
    assert inputs.main is not None
    peaks = {"measured": {"f32": {"flops_per_second": math.nan}}}
    spoilt = replace(inputs.main, context={**inputs.main.context, "peaks": peaks})
    found = figures_of_merit(replace(inputs, sets=(spoilt,)))
    assert found and all(math.isfinite(one.value) for one in found)
    assert figures_text(found[:2], errors=1).endswith("\nFAILED: 1 error, 2 figures\n")
    assert figures_text([], errors=0) == "FAILED: no figure\n"


def test_no_step_is_cut_off(tmp_path: Path) -> None:
    grid = replace(SMALL, variants=[f"v{n}" for n in range(15)])
    found = figures_of_merit(read(write_result(tmp_path / "a", grid)))
    assert sum(one.name.endswith("/speed_of_light_percent") for one in found) == 15


def test_a_row_above_its_peak_is_shown_with_its_time_and_the_reason(tmp_path: Path) -> None:
    reason = "107 % of the measured f32 peak: the time, the count or the peak is wrong"

    def spoil(content: Json) -> None:
        (entry,) = (e for e in content["benchmarks"] if e["run_name"].startswith(TINY_STEP))
        for share in SHARES:
            entry.pop(share, None)
        entry["above_peak"] = reason

    found = read(change(write_result(tmp_path / "a.json", SMALL), spoil))
    built = build_document(found)
    assert f"; {reason}" in built.summary[1]
    environment, roofline = built.sections[1:3]
    assert f"{TINY_STEP}: {reason}" in environment.text
    (shown,) = (row for row in roofline.tables[0].rows if row[0] == TINY_STEP)
    assert shown[4] is None and shown[2] > 0
    assert [(o.name, o.reason) for o in roofline.omissions] == [(TINY_STEP, reason)]
    names = {figure.name for figure in figures_of_merit(found)}
    assert {f"{TINY_STEP}/time", f"{TINY_STEP}/TFLOPS"} <= names
    assert not names & {f"{TINY_STEP}/{share}" for share in SHARES}


def test_all_five_sentences_have_their_numbers(built: Document) -> None:
    machine, speed, limit, of_scaling, cost = built.summary
    assert machine == (
        "Played CPU multiplies matrices at 300 GFLOP/s in f32 and moves 40 GB/s from memory and "
        "200 GB/s from the last-level cache at best."
    )
    step = "A training step (small, baseline, f32, batch 8 x sequence 256) takes 1."
    assert speed.startswith(step) and speed.endswith("% of its speed of light.")
    assert limit.startswith("Most time against the speed of light is lost in ffn: ")
    law = "At small (baseline, f32) a step of batch B and sequence S follows time = "
    assert of_scaling.startswith(law) and "inside the 95 % interval" in of_scaling
    fits = r"At sequence [\d,]+, medium \(baseline, f32\) fits into 24 GiB up to batch \d+, and a "
    assert re.match(fits, cost)
    assert "at medium" in cost and "at tiny" not in cost
    nothing = build_document(ReportInputs()).summary
    for text in [*built.summary, *nothing]:
        assert text.endswith(".") and ". " not in text
    assert all("not" in text or "No " in text for text in nothing)
    assert all("`scripts/" in text for text in nothing)


def test_a_frontier_over_batches_alone_is_told(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", SMALL)
    asked = (("tiny", 4, 9000), ("small", 4, 3000), ("small", 16, 0))
    lines = [frontier_point(size=size, batch=b, longest_seq=seq) for size, b, seq in asked]
    change(folder / "frontier.json", lambda found: found.update(points=[], sequences=lines))
    cost = build_document(read(folder)).summary[4]
    assert cost.startswith(
        "At batch 4, small (baseline, f32) fits into 24 GiB up to sequence 3,000"
    )


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("costs.json", "; what sizes that were not run would cost is not known"),
        ("frontier.json", "A step is predicted to take "),
    ],
)
def test_the_last_sentence_takes_what_there_is(tmp_path: Path, lost: str, said: str) -> None:
    folder = write_study(tmp_path / "study")
    (folder / lost).unlink()
    assert said in build_document(read(folder)).summary[4]


def test_one_step_alone_says_what_is_not_known(tmp_path: Path) -> None:
    path = write_result(tmp_path / "a.json", replace(SMALL, components=("full_step",)))
    limit, of_scaling, cost = build_document(read(path)).summary[2:]
    assert limit.startswith("What limits the step is not known (no part")
    assert of_scaling.startswith("How the step scales is not known (1 size: ")
    assert "costs.json" in cost
