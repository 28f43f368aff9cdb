"""Stored results: verdicts, outcomes, what differs beside the code, every output, bad files."""

import csv
import html
import io
import json
import math
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import (
    CONTEXT,
    EMBEDDING,
    FFN,
    LOSS,
    NORM,
    OPTIMIZER,
    STEP,
    TIMES,
    Found,
    Json,
    document,
    stopped,
    summary,
    write_runs,
)
from scipy import stats

from built_programs import read_json, write_json
from chromium import PageOpener
from fake_training import FOUR_RANKS
from published import MEASURED
from tinyllama_tools.compare.comparison import KINDS, ComparedCase, Comparison
from tinyllama_tools.compare.output import markdown_of
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.core.installation import ROOT
from tinyllama_tools.data.names import OWN_KEYS
from tinyllama_tools.data.other_benchmarks import read_other_rows
from tinyllama_tools.data.results import SPEEDUP, read_stored
from tinyllama_tools.stats.verdicts import Outcome
from tools import compare

# enough for eight cases at the default level
FILES = 9


def test_too_few_files_have_no_answer(tmp_path: Path) -> None:
    slow = TIMES | {FFN: 1.5 * TIMES[FFN]}
    base, new = (write_runs(tmp_path, s, 3, t) for s, t in (("base", TIMES), ("new", slow)))
    for files, outcome in ((1, "no verdict"), (3, "unclear")):
        sides = ["--base", *base[:files], "--new", *new[:files]]
        found = Found(tmp_path / "out", *sides, "--strict")
        assert (found.status, set(found.outcomes.values())) == (3, {outcome})
        assert found.cases[FFN]["ratio"] == pytest.approx(1.5, rel=0.03)
        assert found.cases[FFN]["interval"] is None
        assert any("9 files a side are needed for 7 cases" in text for text in found.warnings)
        assert 'class="verdict yellow"' in (tmp_path / "out/comparison.html").read_text("utf-8")
        found = Found(tmp_path / "out", *sides)
        assert (found.status, found.document["exit_status"]) == (0, 0)
        assert found.document["meaning"].startswith("no case has an answer")
    # what fails in every new file is a regression, though no case has a verdict
    bad = [document({}, more=[stopped(FFN, failed=f"off by {n}")]) for n in (1, 2)]
    new = [write_json(tmp_path / f"bad_{n}.json", content) for n, content in enumerate(bad)]
    sides = ["--base", *base[:2], "--new", *new, "--allow-missing"]
    found = Found(tmp_path / "out", *sides, "[!f]*")
    assert (found.status, found.outcomes[FFN], found.cases[LOSS]["allowed"]) == (1, "failed", True)
    # of a single file nobody needs to count
    single = Found(tmp_path / "out", "--base", new[0], "--new", base[0])
    assert single.cases[FFN]["note"] == "failed in the base: off by 1"
    # unless it is allowed
    found = Found(tmp_path / "out", *sides, "[!f]*", "x/*", "--allow-missing", "f*")
    assert found.status == 0
    assert "--allow-missing 'x/*': no case has such a name" in found.warnings


def test_files_of_a_side_that_do_not_agree(tmp_path: Path) -> None:
    """A case that one lacks, one that fails in one, a counter that varies, a row above its peak."""
    less = {n: s for n, s in TIMES.items() if n not in {FFN, LOSS}}
    counters = [{NORM: {"allocations": count}} for count in (30.0, 31.0)]
    second = document(less, counters=counters[1], more=[stopped(LOSS, failed="wrong loss")])
    for row in second["benchmarks"]:
        if row["run_name"].startswith(EMBEDDING):
            row["above_peak"] = "107 % of the measured f32 peak"
    first = write_json(tmp_path / "new_0.json", document(TIMES, counters=counters[0]))
    new = [first, write_json(tmp_path / "new_1.json", second)]
    base = write_runs(tmp_path, "base", 2, TIMES)
    found = Found(tmp_path / "out", "--base", *base, "--new", *new)
    notes = {
        FFN: ("no verdict", "new measured in 1 of 2 files"),
        LOSS: ("failed", "in 1 of 2 files: wrong loss"),
    }
    assert {name: (found.outcomes[name], found.cases[name]["note"]) for name in notes} == notes
    assert "new 107 % of the measured f32 peak" in found.cases[EMBEDDING]["note"]
    (change,) = (c for c in found.cases[NORM]["counters"] if c["name"] == "allocations")
    assert (change["base"], change["new"], change["exact"]) == (29.0, 30.5, False)


def test_growth_other_work_and_filters(tmp_path: Path) -> None:
    more = {"max_rel_error": 1.0, "unknown": 1.0}
    base = write_json(tmp_path / "base.json", document(TIMES, counters={FFN: more}))
    # the least growth of a deterministic one is worse, and so is a rate that falls
    counters = {FFN: {"allocations": 29.0000001, "model_flops": 2e9, "TFLOPS": 0.1}}
    counters[FFN] |= {"max_rel_error": 2.0, "unknown": 2.0, "parameters": 257.0}
    new = write_json(tmp_path / "new.json", document(TIMES, counters=counters))
    found = Found(tmp_path / "out", base, new)
    assert found.status == 0
    moved = [c for c in found.cases[FFN]["counters"] if c["base"] != c["new"]]
    assert {c["name"] for c in moved if c["exact"]} == {"allocations", "model_flops", "parameters"}
    worse = {"TFLOPS", "allocations", "model_flops", "max_rel_error"}
    assert {c["name"] for c in moved if c["worse"]} == worse
    assert any("not the same work in 1 case, model_flops" in text for text in found.warnings)
    # of other work no ratio is in the mean, which says what else it is of than code
    ratios = [case["ratio"] for name, case in found.cases.items() if name != FFN]
    assert found.document["geometric_mean_ratio"] == pytest.approx(stats.gmean(ratios))
    other = {"threads": 4, "cold_cache": True}
    cold = write_json(tmp_path / "cold.json", document(TIMES, context=other))
    count = len(TIMES)
    for file, words in ((base, "(+0.0 %)\n"), (cold, "code alone: threads, cold_cache differ\n")):
        Found(tmp_path / "out", base, file)
        page = (tmp_path / "out/comparison.md").read_text("utf-8")
        mean = next(line for line in page.splitlines(keepends=True) if "geometric mean" in line)
        assert mean.startswith(f"geometric mean of new / base over {count} cases")
        assert mean.endswith(words)
    assert Found(tmp_path / "out", base, new, "--fail-on-growth").status == 1
    assert Found(tmp_path / "out", new, base, "--fail-on-growth").status == 0
    # names as they are, and as Google Benchmark writes them
    for pattern in ("^ffn/", "^ffn/.*seq:128$", "^ffn/.*manual_time$"):
        found = Found(tmp_path / "out", base, base, "--filter", pattern)
        assert list(found.cases) == [FFN]
    assert any("is the same file as" in text for text in found.warnings)


def test_files_saved_on_windows_are_read(tmp_path: Path) -> None:
    paths = []
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        paths.append(tmp_path / f"{encoding}.json")
        paths[-1].write_text(json.dumps(document(TIMES)), encoding=encoding)
    for path in paths:
        assert read_stored(path).cases == read_stored(paths[0]).cases


def plugin(digit: str = "a") -> Json:
    return {"file": "libmy.so", "sha256": 64 * digit, "operators": ["my::rms_norm"]}


def test_differences_of_the_contexts_are_named(tmp_path: Path) -> None:
    def peaks(rate: float) -> Json:
        return {"peaks": {"measured": {"f32": {"flops_per_second": rate, "source": "product"}}}}

    other = {"device": CONTEXT["device"] | {"name": "Other"}}
    own = {"settings": CONTEXT["settings"] | {"env.OMP": "1"}}
    table: list[tuple[Json, str]] = [
        ({"threads": 4}, "threads: 2 in the base, 4 in the new"),
        (other, "device name: Some CPU in the base, Other in"),
        ({"library_build_type": "debug"}, "debug build in the new: its figures mean nothing"),
        ({"git_dirty": True}, "the new was built from files that are in no commit (git_dirty)"),
        (own, "setting env.OMP: not said in the base, 1 in"),
        (peaks(2e11), "the machine's own measured peak (f32) is -33 % in the new"),
        (peaks(2.9e11), ""),
        ({"plugins": [plugin()]}, "plug-ins: none in the base, libmy.so (SHA-256 aaaaaaaaaaaa) in"),
        ({"date": "2026-01-03T03:04:05+00:00"}, ""),
    ]
    base = write_json(tmp_path / "base.json", document(TIMES))
    for context, expected in table:
        new = write_json(tmp_path / "new.json", document(TIMES, context=context))
        *found, last = Found(tmp_path / "out", base, new).warnings
        assert last.startswith("one file of a side")
        assert len(found) == bool(expected)
        assert all(text.startswith(expected) for text in found)
    base, new = (
        write_json(tmp_path / f"{d}.json", document(TIMES, context={"plugins": [plugin(d)]}))
        for d in "ab"
    )
    assert Found(tmp_path / "out", base, new).warnings[0] == (
        "plug-ins: libmy.so (SHA-256 aaaaaaaaaaaa) in the base, "
        "libmy.so (SHA-256 bbbbbbbbbbbb) in the new"
    )
    # sides that were measured one after the other; nobody can say when "yesterday" was
    zones = ("2026-03-02T09:00:00+01:00", "2026-03-02T10:00:00Z")
    for dates, is_told in (
        ((*zones, "2026-03-03", "2026-03-04"), True),
        (("2026-03-03", "2026-03-04", *zones), True),
        (("2026-03-02", "2026-03-04", "2026-03-03", "2026-03-05"), False),
        (("2026-03-02", "yesterday", "2026-03-03", "2026-03-04"), False),
    ):
        dated = [document(TIMES, context={"date": date}) for date in dates]
        files = [write_json(tmp_path / f"{i}.json", content) for i, content in enumerate(dated)]
        found = Found(tmp_path / "out", "--base", *files[:2], "--new", *files[2:]).warnings
        assert found[0].startswith("measured one after the other") == is_told


def test_training_runs_are_compared_by_step_and_phase(tmp_path: Path) -> None:
    base, new = (
        [write_json(tmp_path / f"{side}_{i}.json", summary(factor + 0.001 * i)) for i in range(9)]
        for side, factor in (("base", 1.0), ("new", 1.5))
    )
    found = Found(tmp_path / "out", "--base", *base, "--new", *new)
    step = found.cases["training/step"]
    assert (found.status, step["outcome"]) == (1, "slower")
    assert step["ratio"] == pytest.approx(1.5, rel=0.01)
    assert found.outcomes["training/forward"] == "slower"
    swapped = Found(tmp_path / "swapped", "--base", *new, "--new", *base)
    assert swapped.outcomes["training/step"] == "faster"
    assert 'class="verdict green"' in (tmp_path / "swapped/comparison.html").read_text("utf-8")
    # the first step does not count
    times = [s["time_seconds"] for s in summary()["steps"][1:]]
    assert step["base_seconds"] == pytest.approx(statistics.median(times), rel=0.01)
    for other, said in (
        (summary(batch_size=16), "batch_size: 8 in the base, 16 in the new"),
        (summary() | {"distributed": FOUR_RANKS}, "ranks: 1 in the base, 4 in the new"),
    ):
        file = write_json(tmp_path / "other.json", other)
        assert f"not the same work: {said}" in Found(tmp_path / "out", base[0], file).warnings


# ---- what the outputs say

CRASH = "crashed | <b>\nthen  died"
SKIP, WRONG = {"skipped": "too large"}, {"failed": "wrong loss"}
# By case, the gravest first, the larger change first, what was allowed by name last: seconds of
# base and new, why there are none, or None where it is not there; the outcome and its reason.
EVERY: dict[str, tuple[Any, Any, str, str]] = {
    STEP: (0.09, 0.12, "slower", ""),
    FFN: (0.008, 0.0096, "slower", ""),
    LOSS: (0.006, 0.006, "unclear", ""),
    OPTIMIZER: (0.0033, 0.0026, "faster", ""),
    "mended": (WRONG, 0.1, "no verdict", "failed in the base: in 9 of 9 files: wrong loss"),
    NORM: (0.0005, 0.0005, "same", ""),
    "gone": (0.1, None, "missing", "not in the new"),
    "grown": (0.1, SKIP, "missing", "skipped in the new: too large"),
    "added": (None, 0.1, "added", "not in the base"),
    "fits": (SKIP, 0.1, "added", "skipped in the base: too large"),
    "always": (
        *(WRONG, WRONG, "skipped"),
        "failed in the base: in 9 of 9 files: wrong loss; failed in the new: in 9 of 9 files: "
        "wrong loss",
    ),
    "left": (SKIP, None, "skipped", "skipped in the base: too large; not in the new"),
    EMBEDDING: (0.0002, {"failed": CRASH}, "failed", f"in 9 of 9 files: {CRASH}"),
}


@pytest.fixture(scope="module")
def every_outcome(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments of a comparison that has each of them."""
    folder, rng = tmp_path_factory.mktemp("stored"), np.random.default_rng(1)
    arguments = [f"--allow-missing={EMBEDDING}"]
    for side in (0, 1):
        arguments.append(("--base", "--new")[side])
        told = {name: row[side] for name, row in EVERY.items() if row[side] is not None}
        stops = [stopped(name, **why) for name, why in told.items() if isinstance(why, dict)]
        times = {name: seconds for name, seconds in told.items() if isinstance(seconds, float)}
        counters = {FFN: {"allocations": 31.0} if side else {"kernels": 7.0}}
        for file in range(FILES):
            scatter = {name: 0.1 if name == LOSS else 0.001 for name in times}
            drawn = {name: times[name] * rng.lognormal(0, of) for name, of in scatter.items()}
            found = document(drawn, counters=counters, more=stops)
            arguments.append(str(write_json(folder / f"{side}_{file}.json", found)))
    return arguments


def test_several_files_a_side_give_verdicts(every_outcome: list[str], tmp_path: Path) -> None:
    found = Found(tmp_path, *every_outcome, "--allow-missing=*")
    # being slower cannot be allowed
    assert found.status == found.document["exit_status"] == 1
    ffn, files = found.cases[FFN], [word for word in every_outcome if not word.startswith("--")]
    seconds = [read_stored(Path(file)).cases[FFN].seconds for file in files]
    base, new = seconds[:FILES], seconds[FILES:]
    assert ffn["base_seconds"] == pytest.approx(statistics.median(base))
    # the Hodges-Lehmann shift: the median of all differences of logs
    assert ffn["ratio"] == pytest.approx(np.median(np.divide.outer(new, base)))
    assert ffn["interval"]["low"] < 1.2 < ffn["interval"]["high"] < ffn["interval"]["low"] + 0.03
    assert ffn["blocks"] == FILES
    # all files of one side beyond all of the other, of five cases
    assert ffn["p_value"] == pytest.approx(5 * 2 / math.comb(18, 9))
    ratios = [case["ratio"] for case in found.cases.values() if case["ratio"]]
    assert found.document["geometric_mean_ratio"] == pytest.approx(stats.gmean(ratios))


def test_two_variants_of_the_same_files_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faster = {n.replace("baseline", "optimized"): t / 2 for n, t in TIMES.items() if n != EMBEDDING}
    files = write_runs(tmp_path, "both", FILES, TIMES | faster)
    found = Found(tmp_path / "out", "--variants", "baseline,optimized", *files)
    assert found.outcomes == {n.replace("baseline", "*"): "faster" for n in TIMES if n != EMBEDDING}
    assert found.document["geometric_mean_ratio"] == pytest.approx(0.5, rel=0.01)
    assert found.document["base"].startswith(f"baseline of {files[0]}")
    assert found.warnings == ["left out, since they have only one of the variants: 1 case"]
    said = Found(tmp_path / "one", "--variants", "optimized,baseline", files[0])
    assert "(--variants optimized,baseline A.json B.json ...)" in said.warnings[0]
    assert f"{said.cases[STEP.replace('baseline', '*')]['ratio']:.1f}" == "2.0"
    assert compare(["--variants", "baseline,fused", str(files[0])]) == 2
    assert "has no case of the variant 'fused'" in capsys.readouterr().err


def test_two_variants_of_one_file_are_judged_by_the_interval_of_their_speedup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The suite has timed them interleaved; the times of the rows are of other moments."""
    table = {
        FFN: (2.0, 1.9, 2.1, "faster", "slower"),
        LOSS: (0.9, 0.85, 0.95, "slower", "faster"),
        NORM: (1.0, 0.99, 1.01, "same", "same"),
        STEP: (1.01, 0.97, 1.05, "unclear", "unclear"),
        # of fewer than six rounds, there is no interval
        OPTIMIZER: (1.5, None, None, "no verdict", "no verdict"),
    }
    counters: dict[str, dict[str, float]] = {name: {"speedup": 1.0} for name in table}
    for name, row in table.items():
        ends = zip(("speedup", "speedup_low", "speedup_high"), row, strict=False)
        counters[name.replace("baseline", "optimized")] = {k: v for k, v in ends if v is not None}
    content = document(dict.fromkeys(counters, 0.01), counters=counters)
    for row in content["benchmarks"]:
        if row["run_name"].startswith(FFN.replace("baseline", "optimized")):
            row["label"] = "optimized = qkv; disturbed: mean 2 ms, median 1 ms; a remark"
    file = write_json(tmp_path / "one.json", content)
    for variants, place, status in (("baseline,optimized", 3, 1), ("optimized,baseline", 4, 1)):
        found = Found(tmp_path / "out", "--variants", variants, file)
        case = {name: found.cases[name.replace("baseline", "*")] for name in table}
        assert {n: c["outcome"] for n, c in case.items()} == {n: r[place] for n, r in table.items()}
        assert (found.status, found.document["exit_status"]) == (status, status)
        ends = [case[FFN]["interval"][end] for end in ("low", "high")]
        expected = [1 / 2.1, 1 / 1.9] if place == 3 else [1.9, 2.1]
        assert ends == pytest.approx(expected)
        assert case[FFN]["ratio"] == pytest.approx(0.5 if place == 3 else 2.0)
        side = "new" if place == 3 else "base"
        assert case[FFN]["note"] == f"{side} disturbed: mean 2 ms, median 1 ms"
        assert [case[n]["p_value"] for n in table] == [None] * len(table)
        (warning,) = found.warnings
        assert "Each is wrong in up to 5 %: --alpha has no part in it" in warning
        assert not any(c["name"].startswith(SPEEDUP) for c in case[FFN]["counters"])
        said = capsys.readouterr().out
        assert "counters of the" not in said and "alpha 0.001" not in said
    # nothing is known of two that were timed with the baseline alone
    content["benchmarks"] += [
        row | {k: row[k].replace("optimized", "sdpa") for k in ("name", "run_name")}
        for row in content["benchmarks"]
        if "optimized" in row["name"]
    ]
    write_json(file, content)
    found = Found(tmp_path / "out", "--variants", "sdpa,optimized", file)
    assert (found.status, set(found.outcomes.values())) == (0, {"no verdict"})


def test_a_folder_stands_for_the_result_in_it(tmp_path: Path) -> None:
    """As scripts/bench and tiny_llama_train leave it, or with a file of another name."""
    for side, name in (("base", "results.json"), ("new", "mine.json")):
        write_json(tmp_path / side / name, document(TIMES, context={"seed": len(side)}))
        (tmp_path / side / "journal.jsonl").write_text("{}\n")
        write_json(tmp_path / f"{side}_train/performance_summary.json", summary())
    write_json(tmp_path / "base/another.json", document(TIMES))
    found = Found(tmp_path / "out", tmp_path / "base", tmp_path / "new")
    assert (found.status, len(found.cases)) == (0, len(TIMES))
    assert found.document["new"].startswith(f"{tmp_path / 'new/mine.json'} (")
    trained = Found(tmp_path / "out", tmp_path / "base_train", tmp_path / "new_train")
    assert "training/step" in trained.cases
    store = ("--store", str(tmp_path / "history.jsonl"))
    assert compare(["history", "add", str(tmp_path / "base"), *store]) == 0


def test_every_output_has_the_same_rows_and_figures(
    every_outcome: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {}
    for form in ("text", "json", "md", "csv"):
        assert compare([*every_outcome, "--format", form]) == 1
        shown[form] = capsys.readouterr().out
    found = Found(tmp_path / "a/b", *every_outcome)
    written = {path.suffix: path.read_text("utf-8") for path in (tmp_path / "a/b").iterdir()}
    assert found.outcomes == {name: row[2] for name, row in EVERY.items()}
    assert all(found.cases[name]["note"] == row[3] for name, row in EVERY.items())
    assert all(written[f".{form}"] == shown[form] for form in ("json", "md", "csv"))
    lines = list(csv.DictReader(io.StringIO(shown["csv"])))
    assert [(line["case"], line["verdict"]) for line in lines] == [
        (name, row[2]) for name, row in EVERY.items()
    ]
    (of_step,) = (line for line in lines if line["case"] == STEP)
    assert of_step["ratio_low"] == str(found.cases[STEP]["interval"]["low"])
    assert (of_step["component"], of_step["pass"], of_step["seq"]) == ("full_step", "train", "128")
    page = written[".html"]
    *_, last = shown["text"].splitlines()
    assert last == (
        "2 slower, 1 faster, 1 same, 1 unclear, 1 no verdict, 2 missing, 2 added, 1 failed, "
        "2 skipped; exit status 1: regression"
    )
    assert shown["md"].startswith(f"**{last}**")
    assert f'<header class="verdict red">\n<h1>{last}</h1>' in page
    lines = shown["text"].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("case ")) + 1
    rows = [re.split(r"  +", line) for line in lines[first : first + len(EVERY)]]
    assert [row[0] for row in rows] == list(EVERY)
    step = found.cases[STEP]
    ends = [100 * step["interval"][end] - 100 for end in ("low", "high")]
    texts = [f"{1e3 * step[f'{side}_seconds']:.4g} ms" for side in ("base", "new")]
    texts += [f"{100 * step['ratio'] - 100:+.1f} %", f"[{ends[0]:+.1f} %, {ends[1]:+.1f} %]"]
    assert rows[0] == [STEP, *texts, "slower", str(FILES)]
    for text in texts:
        assert f"<td>{text}</td>" in page or f"</div>{text}</td>" in page
        assert f"| {text} " in shown["md"]
    for said in (
        "allocations 29 -> 31 (+6.9 %), worse",
        "kernels 7 in the base only",
        "counters of the base only: kernels (cases: 1)",
        f"p = {found.cases[FFN]['p_value']:.2g}, with all corrections",
    ):
        assert all(said in html.unescape(text) for text in (shown["text"], shown["md"], page))
    # not broken by what programs said
    assert "crashed \\| &lt;b&gt; then died" in shown["md"]
    assert "crashed | &lt;b&gt; then died" in page
    regressions, table = (shown["md"].index(t) for t in ("**Regressions**", "<details>"))
    named = {n for n in EVERY if f"| `{n}`" in shown["md"][regressions:table]}
    assert named == {STEP, FFN, "gone", "grown"}
    assert all(f"| `{n}`" in shown["md"][table:] for n in EVERY)


def test_cases_of_one_side_are_counted_behind_those_of_both(tmp_path: Path) -> None:
    more = {f"more_{i}": 0.1 for i in range(5)}
    base, new = ({NORM: 0.1} | more, {NORM: 0.1} | {name[1:]: 0.1 for name in more})
    paths = [write_json(tmp_path / f"{i}.json", document(s)) for i, s in enumerate((base, new))]
    found = Found(tmp_path / "out", *paths)
    assert (found.status, len(found.cases)) == (1, 11)
    for suffix in ("md", "html"):
        text = (tmp_path / f"out/comparison.{suffix}").read_text("utf-8")
        assert "1 no verdict, 5 missing, 5 added; exit status 1: no regression in what both" in text
    text = (tmp_path / "out/comparison.md").read_text("utf-8")
    assert "not in the new: 5 cases (more_0, more_1, more_2, ...)" in text
    assert "not in the base: 5 cases (ore_0" in text and "`more_4`" not in text
    assert found.document["meaning"].startswith("no regression in what both sides have")
    # what grew is a regression, though cases are missing too
    grown = document(new, counters={NORM: {"allocations": 31.0}})
    paths[1] = write_json(tmp_path / "grown.json", grown)
    found = Found(tmp_path / "grown", *paths, "--fail-on-growth")
    assert found.document["meaning"] == "regression"


def test_the_page_works_and_its_bars_have_one_scale(
    every_outcome: list[str], tmp_path: Path, open_page: PageOpener
) -> None:
    found, page = Found(tmp_path, *every_outcome), tmp_path / "comparison.html"
    text = page.read_text(encoding="utf-8")
    assert re.search(r"(src|href)=\"(?!data:)", text) is None, "needs another file"
    opened = open_page(page)
    assert opened.said == []
    assert not opened.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    assert opened.page.locator("#cases tbody tr").count() == len(EVERY)
    intervals = [case["interval"] for case in found.cases.values() if case["interval"]]
    widest = max(abs(math.log(i[end])) for i in intervals for end in ("low", "high"))
    ratio, ends = (found.cases[STEP][key] for key in ("ratio", "interval"))
    places = [50 * (1 + math.log(at) / widest) for at in (ends["low"], ends["high"], ratio)]
    bar = text[text.index('<div class="interval red">') :]
    left, width, dot = (float(at) for at in re.findall(r"(?:left|width):(.*?)%", bar)[:3])
    assert (left, left + width, dot) == pytest.approx(places, abs=0.02)


def test_a_comment_is_no_longer_than_it_may_be() -> None:
    kinds = (Outcome.SAME, Outcome.SLOWER)
    cases = [ComparedCase(f"{FFN}/{i}", kinds[i % 2], ratio=1.1) for i in range(5000)]
    text = markdown_of(Comparison("stored", "a", "b", tuple(cases), 0.001, 0.03))
    assert len(text) < 65_536
    (more,) = re.findall(r"and (\d+) more in the page\n\n</details>", text)
    assert text[text.index("<details>") :].count("\n| `") == 5000 - int(more) == 150


def test_all_counters_of_the_schema_have_a_kind_and_are_documented() -> None:
    schema = read_json(ROOT / "results/schema.json")
    page = (ROOT / "docs/counters.md").read_text(encoding="utf-8")
    for name, rule in schema["$defs"]["measured"]["properties"].items():
        is_counter = "type" in rule and name not in OWN_KEYS
        assert ((name in KINDS) and f"`{name}`" in page) == is_counter, name
    kinds = [KINDS[name] for name in ("peak_memory_MiB", "TFLOPS", "parameters", "host_bound")]
    assert kinds == [(-1, True), (1, False), (0, True), (0, False)]


# ---- files that are none

WHOLE = document(TIMES)
*REST, LAST = WHOLE["benchmarks"]
TEXTS = {
    "": "is empty",
    json.dumps(WHOLE)[:-40]: "is cut short",
    '{"context": {,}}': "is no JSON",
    "[1, 2]": "holds no object",
    "[" * 100_000: "is no JSON",
    "\udcff": "is no JSON",
    json.dumps(WHOLE | {"context": CONTEXT | {"schema_version": 5}}): "version is 5, must be 4",
    json.dumps(WHOLE | {"benchmarks": []}): "holds no case",
    # which a report reads
    json.dumps(WHOLE | {"context": CONTEXT | {"peaks": {"datasheet": 1.5}}}): "peaks.datasheet: ",
}
for wrong, fault in (
    ({"TFLOPS": "fast"}, "counter TFLOPS is 'fast', must be a finite number"),
    ({"real_time": float("nan")}, "/manual_time: real_time nan ms, must be"),
    ({"real_time": 0}, "real_time 0 ms, must be a positive"),
    ({"real_time": 10**400}, "real_time inf ms, must be"),
    ({"time_unit": "fortnight"}, "time_unit: 'fortnight' is not one of"),
    ({"repetition_index": 1}, "repetition 1 is there 2 times"),
):
    TEXTS[json.dumps(WHOLE | {"benchmarks": [*REST, LAST | wrong]})] = fault


def test_files_that_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_json(tmp_path / "good.json", document(TIMES))
    copy = write_json(tmp_path / "copy.json", document(TIMES))
    training = write_json(tmp_path / "training.json", summary())
    (tmp_path / "empty").mkdir()
    refused = [
        ([good, "absent.json"], "cannot be read: No such file"),
        ([good, tmp_path], " and 8 more); name one"),
        ([good, tmp_path / "empty"], "holds none of results.json, performance_summary.json"),
        (["--base", good, copy, "--new", good], "is there 2 times among the files of the base"),
        ([good, good, "--filter", "nothing"], "that matches 'nothing'"),
        ([training, good], "no case is in both sides (base: training/step"),
        ([good, good, "--out", good / "below"], "good.json/below: Not a directory"),
    ]
    for number, (text, expected) in enumerate(TEXTS.items()):
        bad = tmp_path / f"bad_{number}.json"
        bad.write_text(text, encoding="utf-8", errors="surrogateescape")
        refused.append(([good, bad], expected))
    for arguments, expected in refused:
        assert compare([*map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert expected in said and ("bad_" not in str(arguments) or f"{arguments[-1]}: " in said)


def other_program(times: Mapping[str, float], *more: Json) -> Json:
    """A file of another Google Benchmark program, three repetitions a case."""
    rows = [
        {
            **{"name": name, "run_name": name, "run_type": "iteration", "repetition_index": i},
            **{"iterations": 100, "real_time": time * (1 + 0.01 * i), "cpu_time": time},
            **{"time_unit": "us", "items_per_second": 1e6},
        }
        for name, time in times.items()
        for i in range(3)
    ]
    return {"context": {"date": "2026-01-02T03:04:05+00:00"}, "benchmarks": [*rows, *more]}


def test_files_of_other_google_benchmark_programs_are_compared(tmp_path: Path) -> None:
    kinds = {"run_type": "aggregate", "time_unit": "ms", "threads": 4}
    medians = [
        {"name": f"BM_Sum/threads:4_{of}", "run_name": "BM_Sum/threads:4", "aggregate_name": of}
        | {"real_time": 2.0, "cpu_time": 1.0, **kinds}
        for of in ("mean", "median", "stddev")
    ]
    fits = [
        {
            "name": f"BM_Sort_{of}",
            "run_name": "BM_Sort",
            "aggregate_name": of,
            "run_type": "aggregate",
        }
        for of in ("BigO", "RMS")
    ]
    failed = {"name": "BM_Open", "error_occurred": True, "error_message": "no file"}
    # of a version before 1.5
    old = {"name": "BM_Old", "iterations": 7, "real_time": 5.0, "cpu_time": 5.0}
    empty = {"name": "BM_Nothing", "real_time": 0.0, "cpu_time": 0.0, "time_unit": "ns"}
    more = (*medians, *fits, failed, old, old, empty)
    paths = [
        write_json(tmp_path / f"{i}.json", other_program({"BM_Copy/64": factor}, *more))
        for i, factor in enumerate((2.0, 3.0))
    ]
    found = Found(tmp_path / "out", *paths)
    assert found.outcomes == {
        **{"BM_Copy/64": "no verdict", "BM_Sum/threads:4": "no verdict", "BM_Old": "no verdict"},
        "BM_Open": "skipped",
    }
    assert found.cases["BM_Copy/64"]["ratio"] == pytest.approx(1.5)
    seconds = {name: case["base_seconds"] for name, case in found.cases.items()}
    assert seconds["BM_Copy/64"] == pytest.approx(2.02e-6)
    assert (seconds["BM_Sum/threads:4"], seconds["BM_Old"]) == pytest.approx((2e-3, 5e-9))
    assert f"{paths[0]}: without a time or a median, left out: BM_Nothing" in found.warnings
    assert f"{paths[0]}: fits of complexity, which are no times: BM_Sort" in found.warnings
    # what no program writes is named, and a counter that is no number is none
    row = {"name": "BM_A", "real_time": 1.0, "cpu_time": 1.0}
    assert "rate" not in read_other_rows({"benchmarks": [row | {"rate": math.nan}]}, paths[0])[0][0]
    for bad in ({"run_name": 7}, {"time_unit": []}, {"time_unit": "h"}, {"name": None}):
        with pytest.raises(BadInputError, match=r"0\.json: "):
            read_other_rows({"benchmarks": [row | bad]}, paths[0])
    strange = {"repetition_index": [], "aggregate_name": {}, "real_time": "1"}
    assert read_other_rows({"benchmarks": [row | strange]}, paths[0])[0] == []
    # the rules of verdicts are the same
    sides = [
        [
            write_json(tmp_path / f"{side}_{i}.json", other_program({"BM_Copy/64": of + 0.001 * i}))
            for i in range(7)
        ]
        for side, of in (("base", 2.0), ("new", 3.0))
    ]
    assert Found(tmp_path / "many", "--base", *sides[0], "--new", *sides[1]).status == 1


def test_a_measured_file_is_read_as_google_benchmark_summed_it_up() -> None:
    run = read_stored(MEASURED)
    rows = read_json(MEASURED)["benchmarks"]
    medians = [row for row in rows if row.get("aggregate_name") == "median"]
    assert len(run.cases) == len(medians) > 10
    for row in medians:
        case = run.cases[row["run_name"].removesuffix("/manual_time")]
        assert case.seconds == pytest.approx(row["real_time"] * 1e-3)
        assert case.repetitions == row["iterations"]
        assert case.counters["operators"] == row["operators"]
