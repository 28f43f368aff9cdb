"""Laws, rooflines and texts of a report."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from played_costs import PlayedSize
from played_grid import BANDWIDTH, MIB, RATE, Grid
from played_study import write_result, write_study
from report_tables import cell, table

from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.machine import SHARES
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.report.analysis import HeldOutCell, Series, SeriesFit
from tinyllama_tools.report.build import build_document
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.law_parts import held_out_summary
from tinyllama_tools.report.output import figures_of_merit, figures_text, markdown_of, plain
from tinyllama_tools.report.output import markdown_number as number_text
from tinyllama_tools.report.sections import memory, scaling
from tinyllama_tools.report.sources import source_of
from tinyllama_tools.report.summary import SENTENCES
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
    predicted = HeldOutCell(GridPoint(4, 256, (1.0,)), 1.2, 1.1, 1.3, 20.0)
    fit = SeriesFit(Series(name, ()), law.points, law, held_out=(predicted,))
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


LINE = re.compile(r"FOM (\S+) = (\S+) (\S+)")
TEXT_STEP = "full_step/train/baseline/tiny/f32/batch:8/seq:128"


def test_markdown_has_the_summary_and_the_key_tables(built: Document) -> None:
    text = markdown_of(built)
    lines = text.splitlines()
    assert lines[0] == f"# {built.title}"
    assert lines[2:7] == [f"- {sentence}" for sentence in built.summary]
    key = [table.title for one in built.sections for table in one.tables if table.is_key]
    assert [line[4:] for line in lines if line.startswith("### ")] == key
    assert "plotly" not in text
    assert lines[-1].startswith("Made by `scripts/report`, ")


def test_markdown_tables_are_whole(built: Document) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", markdown_of(built), re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


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


def test_what_is_no_number_is_no_figure(inputs: ReportInputs) -> None:
    main = inputs.main
    assert main is not None
    peaks = {"measured": {"f32": {"flops_per_second": math.nan}}}
    spoilt = dataclasses.replace(main, context={**main.context, "peaks": peaks})
    found = figures_of_merit(dataclasses.replace(inputs, sets=(spoilt,)))
    assert found and all(math.isfinite(one.value) for one in found)


def test_memory_is_in_one_unit(inputs: ReportInputs) -> None:
    units = {one.unit for one in figures_of_merit(inputs) if "memory" in one.name.split("/")[-1]}
    assert units == {"MiB", "GB/s"}


def test_no_step_is_cut_off(tmp_path: Path) -> None:
    grid = Grid(
        sizes=("tiny",), batches=(8,), seqs=(128,), variants=[f"v{n}" for n in range(15)], rounds=1
    )
    found = figures_of_merit(read_inputs([source_of(write_result(tmp_path / "a", grid))]))
    assert sum(one.name.endswith("/speed_of_light_percent") for one in found) == 15


def test_markdown_names_what_is_missing_and_left_out(tmp_path: Path) -> None:
    grid = Grid(sizes=("tiny",), batches=(8,), seqs=(128,))
    text = markdown_of(build_document(read_inputs([source_of(write_result(tmp_path / "a", grid))])))
    assert re.search(r"^Not measured: Scaling, .*Training runs, .*\.$", text, re.MULTILINE)
    assert "- time law full_step/train/baseline/tiny/f32, " in text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1234.9, 4, "1,235"),
        (0.012345, 3, "0.0123"),
        (12.0, 4, "12"),
        (3132000.4, 4, "3,132,000"),
        (1.2e-7, 4, "1.2e-07"),
        (0, 4, "0"),
        (-0.5, 3, "-0.5"),
    ],
)
def test_numbers_of_markdown(value: float, digits: int, text: str) -> None:
    assert number_text(value, digits) == text


def test_figures_of_merit_have_one_form(inputs: ReportInputs) -> None:
    *lines, last = figures_text(figures_of_merit(inputs), errors=0).splitlines()
    found = {match[1]: match for match in map(LINE.fullmatch, lines) if match}
    assert len(found) == len(lines)
    assert last == f"SUCCESS: {len(lines)} figures"
    assert float(found["peak/gemm/f32/TFLOPS"][2]) == 0.3
    assert found[f"{TEXT_STEP}/time"][3] == "s"
    assert 0 < float(found[f"{TEXT_STEP}/speed_of_light_percent"][2]) < 100
    assert float(found["held_out/time/tiny/median_error_percent"][2]) < 15
    medium = "full_step/train/baseline/medium/f32/batch:16/seq:512"
    low, value, high = (
        float(found[f"{medium}/predicted_time{end}"][2]) for end in ("_low", "", "_high")
    )
    assert low < value < high


def test_figures_come_in_the_same_order(inputs: ReportInputs) -> None:
    names = [figure.name for figure in figures_of_merit(inputs)]
    assert names == [figure.name for figure in figures_of_merit(inputs)]
    assert names[:3] == ["peak/gemm/f32/TFLOPS", "peak/memory_bandwidth", "peak/cache_bandwidth"]


def test_a_row_above_its_peak_is_shown_with_its_time_and_the_reason(tmp_path: Path) -> None:
    reason = "107 % of the measured f32 peak: the time, the count or the peak is wrong"
    path = write_result(tmp_path / "a.json", Grid(sizes=("tiny",), batches=(8,), seqs=(128,)))
    content = json.loads(path.read_text(encoding="utf-8"))
    entry = next(e for e in content["benchmarks"] if e["run_name"].startswith(TEXT_STEP))
    for share in SHARES:
        entry.pop(share, None)
    entry["above_peak"] = reason
    path.write_text(json.dumps(content), encoding="utf-8")
    found = read_inputs([source_of(path)])
    built = build_document(found)
    assert f"; {reason}" in built.summary[1]
    environment, roofline = built.sections[1:3]
    assert f"{TEXT_STEP}: {reason}" in environment.text
    (shown,) = (row for row in roofline.tables[0].rows if row[0] == TEXT_STEP)
    assert shown[4] is None and shown[2] > 0
    assert [(o.name, o.reason) for o in roofline.omissions] == [(TEXT_STEP, reason)]
    names = {figure.name for figure in figures_of_merit(found)}
    assert {f"{TEXT_STEP}/time", f"{TEXT_STEP}/TFLOPS"} <= names
    assert not names & {f"{TEXT_STEP}/{share}" for share in SHARES}


def test_errors_end_in_failed(inputs: ReportInputs) -> None:
    assert figures_text(figures_of_merit(inputs)[:2], errors=1).endswith(
        "\nFAILED: 1 error, 2 figures\n"
    )
    assert figures_text([], errors=0) == "FAILED: no figure\n"


def test_every_kind_of_figure_is_documented(inputs: ReportInputs) -> None:
    page = (PROJECT / "integrations/README.md").read_text(encoding="utf-8")
    for figure in figures_of_merit(inputs):
        last = figure.name.rpartition("/")[2]
        assert f"`{last}`" in page or f"/{last}`" in page, figure.name
        assert f"| {figure.unit} |" in page, figure.unit


ONE_CELL = Grid(sizes=("tiny",), batches=(8,), seqs=(128,), rounds=1)


def five_sentences(inputs: ReportInputs) -> list[str]:
    return [sentence(inputs) for _, sentence in SENTENCES]


def test_all_five_have_their_numbers(inputs: ReportInputs) -> None:
    machine, speed, limit, scaling, cost = five_sentences(inputs)
    assert machine == (
        "Played CPU multiplies matrices at 300 GFLOP/s in f32 and moves 40 GB/s from memory and "
        "200 GB/s from the last-level cache at best."
    )
    assert speed.startswith(
        "A training step (small, baseline, f32, batch 8 x sequence 256) takes 1."
    )
    assert speed.endswith("% of its speed of light.")
    assert limit.startswith("Most time against the speed of light is lost in ffn: ")
    assert scaling.startswith(
        "At small (baseline, f32) a step of batch B and sequence S follows time = "
    )
    assert "inside the 95 % interval" in scaling
    assert re.match(
        r"At sequence [\d,]+, medium \(baseline, f32\) fits into 24 GiB up to batch \d+, and a ",
        cost,
    )
    assert "at medium" in cost
    assert "at tiny" not in cost


def test_each_is_one_sentence(inputs: ReportInputs) -> None:
    for text in [*five_sentences(inputs), *five_sentences(ReportInputs())]:
        assert text.endswith(".")
        assert ". " not in text


def test_without_anything_each_says_what_makes_it() -> None:
    sentences = five_sentences(ReportInputs())
    assert all("not" in text or "No " in text for text in sentences)
    assert all("`scripts/" in text for text in sentences)


def test_one_cell_does_not_scale(tmp_path: Path) -> None:
    inputs = read_inputs([source_of(write_result(tmp_path / "a.json", ONE_CELL))])
    scaling, cost = five_sentences(inputs)[3:]
    assert scaling.startswith("How the step scales is not known (1 size: ")
    assert "costs.json" in cost


def test_a_frontier_over_batches_alone_is_told(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", dataclasses.replace(ONE_CELL, sizes=("tiny",)))
    path = folder / "frontier.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    line = {"variant": "baseline", "dtype": "f32", "predicted_bytes": 1, "confirmed": ""}
    document["points"] = []
    document["sequences"] = [
        line | {"size": size, "batch": batch, "longest_seq": longest}
        for size, batch, longest in (("tiny", 4, 9000), ("small", 4, 3000), ("small", 16, 0))
    ]
    path.write_text(json.dumps(document), encoding="utf-8")
    cost = five_sentences(read_inputs([source_of(folder)]))[4]
    assert cost.startswith(
        "At batch 4, small (baseline, f32) fits into 24 GiB up to sequence 3,000"
    )


@pytest.mark.parametrize("lost", ["costs.json", "frontier.json"])
def test_the_last_sentence_takes_what_there_is(tmp_path: Path, lost: str) -> None:
    folder = write_study(tmp_path / "study")
    (folder / lost).unlink()
    cost = five_sentences(read_inputs([source_of(folder)]))[4]
    if lost == "costs.json":
        assert "; what sizes that were not run would cost is not known" in cost
    else:
        assert cost.startswith("A step is predicted to take ")


def test_without_parts_nothing_is_said_of_where_time_is_lost(tmp_path: Path) -> None:
    grid = dataclasses.replace(ONE_CELL, components=("full_step",))
    inputs = read_inputs([source_of(write_result(tmp_path / "a.json", grid))])
    assert five_sentences(inputs)[2].startswith("What limits the step is not known (no part")
