"""Variants of a made-up machine side by side: times, speed-ups with their intervals, the fastest;
and every case as CSV."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from stored import CUT_OFF, change, document, part, read, rows_of, section, write_result

import tools
from built_programs import read_json, write_json
from chromium import PageOpener
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.results import read_result_set
from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import SMALL, Section, cell_text
from tinyllama_tools.report.output import markdown_of, page_of

# of the baseline's time, and how far repetitions are from their median
VARIANTS = {
    "baseline": (1.0, 0.01),
    "qkv": (0.5, 0.01),
    "sdpa": (0.99, 0.02),
    "qkv+sdpa": (0.51, 0.02),
}
FFN = "ffn/forward_backward/{}/tiny/f32/batch:{}/seq:{}"


def repetitions(rows: list[Json], variant: str) -> list[Json]:
    share, apart = VARIANTS[variant]
    found = []
    for row in rows:
        name = row["run_name"].replace("/baseline/", f"/{variant}/")
        for index, factor in enumerate((1 - apart, 1, 1 + apart)):
            own = {"name": name, "run_name": name, "repetitions": 3, "repetition_index": index}
            found.append({**row, **own, "real_time": row["real_time"] * share * factor})
            found[-1]["tokens_per_second"] = row["tokens_per_second"] / share
            # that of the baseline over itself
            found[-1].pop("speedup", None)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of ffn and rms_norm at tiny, three repetitions of each variant."""
    whole = document("round_1.json", "^(ffn|rms_norm|full_step)/.*/tiny/")
    rows = whole["benchmarks"]
    every = [row for variant in VARIANTS for row in repetitions(rows, variant)]
    return write_json(tmp_path / "variants.json", whole | {"benchmarks": every})


def variants(path: Path) -> Section:
    return section(read(path), "variants")


def ends(variant: str) -> np.ndarray:
    """Of the logarithm of its time over the baseline's median."""
    share, apart = VARIANTS[variant]
    logs = np.log(share * np.array([1 - apart, 1, 1 + apart]))
    return np.array(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs)))


def test_a_table_has_time_and_speedup_of_every_variant_and_marks_the_fastest(path: Path) -> None:
    found = variants(path)
    table = part(found, "variants_ffn_forward_backward_0")
    assert table.title == "ffn, forward_backward: tiny, f32"
    heads = [f"{name} [ms]" for name in ("baseline", "qkv", "qkv+sdpa", "sdpa")]
    assert table.columns == ["batch", "seq", *heads, "fastest [tokens/s]"]
    (measured,) = rows_of(FFN.format("baseline", 8, 128), ("round_1.json",))
    row = next(row for row in table.records if (row["batch"], row["seq"]) == (8, 128))
    times = [float(row[head]) for head in heads]
    assert times == pytest.approx([measured["real_time"] * s for s in (1, 0.5, 0.51, 0.99)])
    assert row["fastest [tokens/s]"] == pytest.approx(2 * measured["tokens_per_second"])
    texts = [cell_text(row[head]) for head in heads]
    # 2 % apart is less than repetitions tell, a half is more
    assert ["☆" in text for text in texts] == [False, True, True, False]
    log = {name: ends(name) for name in VARIANTS}
    middle = {name: np.log(share) for name, (share, _) in VARIANTS.items()}
    for name, text in zip(("qkv", "qkv+sdpa", "sdpa"), texts[1:], strict=True):
        up = np.hypot(log["baseline"][1] - 0, middle[name] - log[name][0])
        down = np.hypot(0 - log["baseline"][0], log[name][1] - middle[name])
        low, high = np.exp(-middle[name] - down), np.exp(-middle[name] + up)
        mark = "~ " if low <= 1 <= high else ""
        assert mark == ("~ " if name == "sdpa" else "")
        assert text.endswith(f"\n{mark}{1 / VARIANTS[name][0]:.2f} ({low:.2f} to {high:.2f})")
    # where nothing is near it, the fastest alone has the full star
    change(
        path,
        lambda content: content.update(
            benchmarks=[r for r in content["benchmarks"] if "/qkv+sdpa/" not in r["run_name"]]
        ),
    )
    row = part(variants(path), "variants_ffn_forward_backward_0").records[0]
    assert ["★" in cell_text(row[f"{name} [ms]"]) for name in ("baseline", "qkv", "sdpa")] == [
        False,
        True,
        False,
    ]


def test_where_the_analysed_result_has_one_variant_those_of_another_stand_beside_it(
    path: Path, tmp_path: Path
) -> None:
    alone, other = write_result(tmp_path / "a.json"), tmp_path / "other.json"
    inputs = read(alone, path)
    assert inputs.main.paths == (alone,)
    found = section(build_document(inputs), "variants")
    assert found.tables and str(path.name) in found.text[0]
    # but not those of another device
    other.write_bytes(path.read_bytes())
    change(other, lambda content: content["context"]["device"].update(name="Another"))
    assert not section(build_document(read(alone, other)), "variants").tables
    assert section(build_document(read(alone, other)), "variants_2").tables


def test_without_repetitions_no_speedup_is_shown_and_the_programs_own_interval_is_taken(
    path: Path,
) -> None:
    def single(content: Json) -> None:
        rows = [row for row in content["benchmarks"] if row["repetition_index"] == 1]
        content.update(benchmarks=[row | {"repetitions": 1, "repetition_index": 0} for row in rows])

    table = part(variants(change(path, single)), "variants_ffn_forward_backward_0")
    texts = [cell_text(table.records[0][f"{name} [ms]"]) for name in ("qkv", "qkv+sdpa")]
    assert texts[0].endswith(" ☆\n~ 2.00") and texts[1].endswith("\n~ 1.96")

    def own(content: Json) -> None:
        for row in content["benchmarks"]:
            if "/qkv/" in row["run_name"]:
                row |= {"speedup": 2.0, "speedup_low": 1.5, "speedup_high": 2.5}

    table = part(variants(change(path, own)), "variants_ffn_forward_backward_0")
    assert cell_text(table.records[0]["qkv [ms]"]).endswith("\n2.00 (1.50 to 2.50)")


def test_a_line_a_variant_over_the_axes_with_error_bars(path: Path) -> None:
    found = variants(path)
    time = part(found, "variants_time_ffn_forward_backward_tiny_f32")
    speedup = part(found, "variants_speed-up_ffn_forward_backward_tiny_f32")
    assert {time.columns, speedup.columns} == {SMALL}
    assert [line["name"] for line in time.traces] == ["baseline", "qkv", "qkv+sdpa", "sdpa"]
    for line in (*time.traces, *speedup.traces):
        assert line["x"] == [64, 128, 256, 512]
        assert line["line"]["color"] == found.legend[line["name"]]
        assert min(line["error_y"]["array"]) > 0 and min(line["error_y"]["arrayminus"]) > 0
    assert next(line["y"] for line in speedup.traces) == pytest.approx([2.0] * 4)
    # variants by colour, components by marker
    other = part(found, "variants_time_rms_norm_forward_backward_tiny_f32")
    symbols = [{*line["marker"]["symbol"]} for line in (*time.traces, *other.traces)]
    assert symbols == [{"cross"}] * 4 + [{"x"}] * 4
    roofline = part(section(read(path), "roofline"), "roofline_plot")
    marks = {t["name"]: t["marker"] for t in roofline.traces if t["mode"] == "markers"}
    assert marks["ffn"]["symbol"][0] == "cross"
    assert {*marks["ffn"]["color"]} == {*found.legend.values()}


def test_many_variants_and_long_names_are_not_cut_off(
    path: Path, open_page: PageOpener, tmp_path: Path
) -> None:
    long = "qkv+gate_up+fused_swiglu+sdpa+fused_adamw"

    def more(content: Json) -> None:
        copies = [
            (row, f"{long}+{n}")
            for row in content["benchmarks"]
            for n in range(7)
            if "/qkv/" in row["run_name"]
        ]
        content["benchmarks"] += [
            row | {"run_name": row["run_name"].replace("/qkv/", f"/{name}/")}
            for row, name in copies
        ]

    built = build_document(read(change(path, more)))
    first, second = (part(built, f"variants_ffn_forward_backward_{n}") for n in (0, 6))
    assert len(first.columns) == 9 and second.title.endswith(", further variants")
    assert "☆" in markdown_of(built)
    (tmp_path / "page.html").write_text(page_of(built), encoding="utf-8")
    for width in (1300, 390):
        assert open_page(tmp_path / "page.html", width).page.evaluate(CUT_OFF) == [width]


# ---- every case as CSV


def test_operators_of_a_plug_in_stand_beside_its_library(
    path: Path, tmp_path: Path, open_page: PageOpener
) -> None:
    """On the page, in Markdown, and as CSV."""
    text = path.read_text().replace("/qkv+sdpa/", "/optimized+my::rms_norm.fast/")
    content = json.loads(text.replace("/qkv/", "/my::swiglu/"))
    operators = ["my::rms_norm.fast", "my::rotary", "my::swiglu"]
    known = {"file": "libmy<b>.so", "sha256": 64 * "0a", "operators": operators}
    content["context"]["plugins"] = [known]
    built = build_document(read(write_json(path, content)))
    (row,) = part(built, "plugins").records
    wanted = {"plug-in": "libmy<b>.so", "SHA-256": "0a0a0a0a0a0a"}
    assert row == wanted | {"operators measured": "my::rms_norm.fast, my::swiglu"}
    written = markdown_of(built)
    for name in ("my::swiglu", "optimized+my::rms_norm.fast", "0a0a0a0a0a0a"):
        assert name in written
    (tmp_path / "page.html").write_text(page_of(built), encoding="utf-8")
    opened = open_page(tmp_path / "page.html")
    assert "libmy<b>.so" in opened.texts("#table-plugins td") and opened.said == []
    ids = opened.page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(set(ids)) == len(ids)
    assert tools.report([path, "--format=csv", f"-o={tmp_path / 'cases.csv'}"]) == 0
    rows = csv.DictReader((tmp_path / "cases.csv").read_text(encoding="utf-8").splitlines())
    assert {"my::swiglu", "optimized+my::rms_norm.fast"} < {row["variant"] for row in rows}


REASON = "mean 9.00 ms, median 1.00 ms: a sample of 4.000 s"


def test_a_disturbed_case_is_marked_with_its_reason(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = FFN.format("qkv", 8, 128)

    def disturb(content: Json, label: str = f"a remark; disturbed: {REASON}; another") -> None:
        for row in content["benchmarks"]:
            row["label"] = label if row["run_name"].startswith(name) else "disturbed by nobody"

    built = build_document(read(change(path, disturb)))
    table = part(built, "all_cases")
    said = {"/".join(map(str, row[:7])): row[-1] for row in table.rows}
    marked = "ffn/forward_backward/qkv/tiny/f32/8/128"
    assert {case: text for case, text in said.items() if text} == {marked: f"! {REASON}"}
    row = next(
        row
        for row in part(built, "variants_ffn_forward_backward_0").records
        if (row["batch"], row["seq"]) == (8, 128)
    )
    assert ["!" in cell_text(row[f"{name} [ms]"]) for name in VARIANTS] == [
        *(False, True, False, False)
    ]
    # hollow in the plots
    lines = part(built, "variants_time_ffn_forward_backward_tiny_f32").traces
    assert [line["marker"]["symbol"] for line in lines if line["name"] == "qkv"] == [
        ["cross", "cross-open", "cross", "cross"]
    ]
    roofline = part(built, "roofline_plot").traces
    symbols = next(t["marker"]["symbol"] for t in roofline if t["name"] == "ffn")
    assert symbols.count("cross-open") == 1 and symbols[-1] == "cross-open"
    # Markdown has the first rows
    whole = read_json(path)
    ours = re.compile("ffn/.*/batch:8/seq:128/")
    few = [row for row in whole["benchmarks"] if ours.match(row["run_name"])]
    short = write_json(tmp_path / "few.json", whole | {"benchmarks": few})
    assert f"| ! {REASON} |" in markdown_of(build_document(read(short)))
    assert tools.report([path, "--format=csv"]) == 0
    assert f",{REASON}," in capsys.readouterr().out.replace('"', "")
    # of several rounds it says which share
    quiet, rounds = tmp_path / "quiet.json", []
    quiet.write_bytes(path.read_bytes())
    change(quiet, lambda content: disturb(content, "a remark"))
    rounds = read_result_set([quiet, path, quiet])
    assert rounds.cases[name].disturbance == f"1 of 3 rounds: {REASON}"
