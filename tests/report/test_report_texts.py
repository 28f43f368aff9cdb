"""The report as Markdown and as figures of merit."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from played_grid import Grid
from played_study import write_result

from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.machine import SHARES
from tinyllama_tools.report.build import build_document
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.output import figures_of_merit, figures_text, markdown_of, plain
from tinyllama_tools.report.output import markdown_number as number_text
from tinyllama_tools.report.sources import source_of

LINE = re.compile(r"FOM (\S+) = (\S+) (\S+)")
STEP = "full_step/train/baseline/tiny/f32/batch:8/seq:128"


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
    assert "## Missing" in text
    assert "- Training runs: no training run was given" in text
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
    assert found[f"{STEP}/time"][3] == "s"
    assert 0 < float(found[f"{STEP}/speed_of_light_percent"][2]) < 100
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
    entry = next(e for e in content["benchmarks"] if e["run_name"].startswith(STEP))
    for share in SHARES:
        entry.pop(share, None)
    entry["above_peak"] = reason
    path.write_text(json.dumps(content), encoding="utf-8")
    found = read_inputs([source_of(path)])
    built = build_document(found)
    assert f"; {reason}" in built.summary[1]
    environment, roofline = built.sections[:2]
    assert f"{STEP}: {reason}" in environment.text
    (shown,) = (row for row in roofline.tables[0].rows if row[0] == STEP)
    assert shown[4] is None and shown[2] > 0
    assert [(o.name, o.reason) for o in roofline.omissions] == [(STEP, reason)]
    names = {figure.name for figure in figures_of_merit(found)}
    assert {f"{STEP}/time", f"{STEP}/TFLOPS"} <= names
    assert not names & {f"{STEP}/{share}" for share in SHARES}


def test_errors_end_in_failed(inputs: ReportInputs) -> None:
    assert figures_text(figures_of_merit(inputs)[:2], errors=1).endswith(
        "\nFAILED: 1 error, 2 figures\n"
    )
    assert figures_text([], errors=0) == "FAILED: no figure\n"


def test_every_kind_of_figure_is_documented(inputs: ReportInputs) -> None:
    page = (PROJECT / "docs/report.md").read_text(encoding="utf-8")
    for figure in figures_of_merit(inputs):
        last = figure.name.rpartition("/")[2]
        assert f"`{last}`" in page or f"/{last}`" in page, figure.name
        assert f"| {figure.unit} |" in page, figure.unit
