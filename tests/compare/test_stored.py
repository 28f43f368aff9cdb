"""Stored results: verdicts, outcomes, what differs beside the code, bad files."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from samples import (
    CONTEXT,
    EMBEDDING,
    FFN,
    LOSS,
    NORM,
    STEP,
    TIMES,
    Found,
    Json,
    document,
    stopped,
    summary,
    write,
    write_runs,
)
from scipy import stats

from fake_training import FOUR_RANKS
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.results import read_stored
from tools import compare as main

# enough for seven cases at the default level
FILES = 9
REFERENCE = PROJECT / "results/reference/tiny_f32_2core_xeon_avx512.json"


def slow(ffn: float) -> dict[str, float]:
    """A step as slow as its FFN makes it."""
    return {**TIMES, FFN: TIMES[FFN] * (1 + ffn), STEP: TIMES[STEP] + 4 * TIMES[FFN] * ffn}


def test_several_files_a_side_give_verdicts(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", FILES, TIMES)
    new = write_runs(tmp_path, "new", FILES, slow(0.2))
    found = Found(tmp_path / "out", "--base", *base, "--new", *new)
    assert found.outcomes == {n: "slower" if n in {FFN, STEP} else "same" for n in TIMES}
    ffn = found.cases[FFN]
    logs = [
        [math.log(read_stored(path).cases[FFN].seconds or 0) for path in side]
        for side in (base, new)
    ]
    assert ffn["base_seconds"] == pytest.approx(math.exp(statistics.median(logs[0])))
    # the Hodges-Lehmann shift: the median of all differences
    differences = [after - before for before in logs[0] for after in logs[1]]
    assert ffn["ratio"] == pytest.approx(math.exp(statistics.median(differences)))
    assert ffn["interval"]["low"] < 1.2 < ffn["interval"]["high"] < ffn["interval"]["low"] + 0.03
    assert ffn["blocks"] == FILES
    # all files of one side beyond all of the other, for two cases of seven
    assert ffn["p_value"] == pytest.approx(7 * 2 / math.comb(18, 9))
    ratios = [case["ratio"] for case in found.cases.values()]
    assert found.document["geometric_mean_ratio"] == pytest.approx(stats.gmean(ratios))
    assert found.status == found.document["exit_status"] == 1
    assert Found(tmp_path / "out", "--base", *new, "--new", *base).outcomes[FFN] == "faster"
    # being slower cannot be allowed
    assert main([*map(str, ["--base", *base, "--new", *new, "--allow-missing", "*"])]) == 1


def test_too_few_files_have_no_answer(tmp_path: Path) -> None:
    base, new = (write_runs(tmp_path, s, 3, t) for s, t in (("base", TIMES), ("new", slow(0.5))))
    for files, outcome, status in ((1, "no verdict", 3), (3, "unclear", 3)):
        sides = ["--base", *base[:files], "--new", *new[:files]]
        found = Found(tmp_path / "out", *sides, "--strict")
        assert (found.status, set(found.outcomes.values())) == (status, {outcome})
        assert found.cases[FFN]["ratio"] == pytest.approx(1.5, rel=0.03)
        assert found.cases[FFN]["interval"] is None
        assert any("9 files a side are needed for 7 cases" in text for text in found.warnings)
        assert Found(tmp_path / "out", *sides).status == 0


def test_a_case_that_fails_in_every_new_file_is_a_regression(tmp_path: Path) -> None:
    """Though no case has two files on both sides, and none a verdict."""
    base = write_runs(tmp_path, "base", 2, {FFN: 0.1})
    bad = [document({}, more=[stopped(FFN, failed=f"off by {n}")]) for n in (1, 2)]
    new = [write(tmp_path / f"new_{n}.json", content) for n, content in enumerate(bad)]
    found = Found(tmp_path / "out", "--base", *base, "--new", *new)
    assert (found.status, found.outcomes) == (1, {FFN: "failed"})


def test_files_of_a_side_that_do_not_agree(tmp_path: Path) -> None:
    """A case that one lacks, one that fails in one, a counter that varies, a row above its peak."""
    less = {n: s for n, s in TIMES.items() if n not in {FFN, LOSS}}
    counters = [{NORM: {"allocations": count}} for count in (30.0, 31.0)]
    second = document(less, counters=counters[1], more=[stopped(LOSS, failed="wrong loss")])
    for row in second["benchmarks"]:
        if row["run_name"].startswith(EMBEDDING):
            row["above_peak"] = "107 % of the measured f32 peak"
    first = write(tmp_path / "new_0.json", document(TIMES, counters=counters[0]))
    new = [first, write(tmp_path / "new_1.json", second)]
    found = Found(
        tmp_path / "out", "--base", *write_runs(tmp_path, "base", 2, TIMES), "--new", *new
    )
    notes = {
        FFN: ("no verdict", "new measured in 1 of 2 files; one file of a side only"),
        LOSS: ("failed", "in 1 of 2 files: wrong loss"),
    }
    assert {name: (found.outcomes[name], found.cases[name]["note"]) for name in notes} == notes
    assert "new 107 % of the measured f32 peak" in found.cases[EMBEDDING]["note"]
    (change,) = (c for c in found.cases[NORM]["counters"] if c["name"] == "allocations")
    assert (change["base"], change["new"], change["exact"]) == (29.0, 30.5, False)


def test_cases_on_one_side_have_their_outcome(tmp_path: Path) -> None:
    # None: not there; a number: seconds; else why it was skipped or failed
    skip, wrong = {"skipped": "too large"}, {"failed": "wrong loss"}
    table: dict[str, tuple[Any, Any, str, str]] = {
        NORM: (5e-4, 5e-4, "no verdict", ""),
        FFN: (0.008, wrong, "failed", "wrong loss"),
        LOSS: (0.006, skip, "missing", "skipped in the new: too large"),
        "gone": (0.1, None, "missing", "not in the new"),
        EMBEDDING: (None, 0.0002, "added", "not in the base"),
        "fits": (skip, 0.1, "added", "skipped in the base: too large"),
        "left": (skip, None, "skipped", "skipped in the base: too large; not in the new"),
        "always": (wrong, wrong, "skipped", ""),
        "mended": (wrong, 0.1, "no verdict", "failed in the base: wrong loss"),
    }
    files = []
    for side in (0, 1):
        told = {name: row[side] for name, row in table.items() if row[side] is not None}
        times = {name: value for name, value in told.items() if isinstance(value, float)}
        stops = [stopped(name, **told[name]) for name in told.keys() - times]
        files.append(write(tmp_path / f"{side}.json", document(times, more=stops)))
    found = Found(tmp_path / "out", *files)
    assert found.outcomes == {name: row[2] for name, row in table.items()}
    assert all(found.cases[name]["note"] == row[3] for name, row in table.items() if row[3])
    assert found.status == 1
    more = ["--allow-missing", FFN, "lo*", "--allow-missing", "gone", "x/*"]
    allowed = Found(tmp_path / "out", *files, *more)
    assert (allowed.status, allowed.cases[FFN]["allowed"]) == (0, True)
    assert "--allow-missing 'x/*': no case is called so" in allowed.warnings
    assert Found(tmp_path / "out", *files, "--allow-missing", FFN, "loss/*").status == 1


def test_growth_other_work_and_filters(tmp_path: Path) -> None:
    base = write(tmp_path / "base.json", document(TIMES))
    counters = {FFN: {"allocations": 30.0, "model_flops": 2e9}}
    new = write(tmp_path / "new.json", document(TIMES, counters=counters))
    found = Found(tmp_path / "out", base, new)
    assert found.status == 0
    assert any("1 did not do the same work, model_flops" in text for text in found.warnings)
    assert Found(tmp_path / "out", base, new, "--fail-on-growth").status == 1
    assert Found(tmp_path / "out", new, base, "--fail-on-growth").status == 0
    # names as they are, and as Google Benchmark writes them
    for pattern in ("^ffn/", "^ffn/.*seq:128$", "^ffn/.*manual_time$"):
        found = Found(tmp_path / "out", base, base, "--filter", pattern)
        assert list(found.cases) == [FFN]
    assert any("is the same file as" in text for text in found.warnings)


def peak(rate: float) -> Json:
    return {"measured": {"f32": {"flops_per_second": rate, "source": "product"}}}


def test_differences_of_the_contexts_are_named(tmp_path: Path) -> None:
    device, settings = CONTEXT["device"], CONTEXT["settings"]
    table: list[tuple[Json, str]] = [
        ({"threads": 4}, "threads: 2 in the base, 4 in the new"),
        (
            {"device": {**device, "name": "Other"}},
            "device name: Some CPU in the base, Other in",
        ),
        ({"library_build_type": "debug"}, "debug build in the new: its figures mean nothing"),
        ({"git_dirty": True}, "the new was built from files that are in no commit (git_dirty)"),
        ({"settings": {**settings, "env.OMP": "1"}}, "setting env.OMP: not said in the base, 1 in"),
        ({"peaks": peak(2e11)}, "the machine's own measured peak (f32) is -33 % in the new"),
        ({"peaks": peak(2.9e11)}, ""),
        ({"date": "2026-01-03T03:04:05+00:00"}, ""),
    ]
    base = write(tmp_path / "base.json", document(TIMES))
    for context, expected in table:
        new = write(tmp_path / "new.json", document(TIMES, context=context))
        *found, last = Found(tmp_path / "out", base, new).warnings
        assert last.startswith("one file of a side")
        assert len(found) == bool(expected)
        assert all(text.startswith(expected) for text in found)
    # sides that were measured one after the other; nobody can say when "yesterday" was
    zones = ("2026-03-02T09:00:00+01:00", "2026-03-02T10:00:00Z")
    for dates, is_told in (
        ((*zones, "2026-03-03", "2026-03-04"), True),
        (("2026-03-03", "2026-03-04", *zones), True),
        (("2026-03-02", "2026-03-05", "2026-03-03", "2026-03-04"), False),
        (("2026-03-02", "yesterday", "2026-03-03", "2026-03-04"), False),
    ):
        files = [
            write(tmp_path / f"{i}.json", document(TIMES, context={"date": date}))
            for i, date in enumerate(dates)
        ]
        found = Found(tmp_path / "out", "--base", *files[:2], "--new", *files[2:]).warnings
        assert found[0].startswith("measured one after the other") == is_told


def test_training_runs_are_compared_by_step_and_phase(tmp_path: Path) -> None:
    base, new = (
        [write(tmp_path / f"{side}_{i}.json", summary(factor + 0.001 * i)) for i in range(9)]
        for side, factor in (("base", 1.0), ("new", 1.5))
    )
    found = Found(tmp_path / "out", "--base", *base, "--new", *new)
    step = found.cases["training/step"]
    assert (found.status, step["outcome"]) == (1, "slower")
    assert step["ratio"] == pytest.approx(1.5, rel=0.01)
    assert found.outcomes["training/forward"] == "slower"
    # steps were profiled or not, the first does not count
    times = [s["time_seconds"] for s in summary()["steps"][1:]]
    assert step["base_seconds"] == pytest.approx(statistics.median(times), rel=0.01)
    other = write(tmp_path / "other.json", summary(batch_size=16))
    said = Found(tmp_path / "out", base[0], other).warnings
    assert "not the same work: batch_size: 8 in the base, 16 in the new" in said
    of_ranks = write(tmp_path / "ranks.json", summary() | {"distributed": FOUR_RANKS})
    said = Found(tmp_path / "out", base[0], of_ranks).warnings
    assert "not the same work: ranks: 1 in the base, 4 in the new" in said


FAULTS: list[tuple[str, object, str]] = [
    ("real_time", float("nan"), f"{EMBEDDING}/manual_time: real_time nan ms, must be"),
    ("real_time", 0, "real_time 0 ms, must be a positive"),
    ("real_time", "fast", "real_time: 'fast' is not of type"),
    ("real_time", 10**400, "real_time inf ms, must be"),
    ("time_unit", "fortnight", "time_unit: 'fortnight' is not one of"),
    ("TFLOPS", float("nan"), "counter TFLOPS is nan, must be a finite number"),
    ("repetition_index", 1, "repetition 1 is there 2 times"),
]
WHOLE = document(TIMES)
TEXTS = {"": "is empty", json.dumps(WHOLE)[:-40]: "is cut short", '{"context": {,}}': "is no JSON"}
TEXTS |= {"[1, 2]": "holds no object", '{"answer": 42}': "its keys are answer"}
TEXTS |= {"[" * 100_000: "is no JSON", "\udcff": "is no JSON"}
for place, edit, fault in (
    ("context", {"schema_version": 4}, "schema_version is 4, must be 3"),
    ("context", {"peaks": [1]}, "context.peaks: [1] is not of type"),
):
    TEXTS[json.dumps({**WHOLE, place: {**WHOLE[place], **edit}})] = fault
TEXTS[json.dumps({**WHOLE, "benchmarks": []})] = "holds no case"
once, again, *rest = WHOLE["benchmarks"]
TEXTS[json.dumps({**WHOLE, "benchmarks": [once, {**again, "TFLOPS": "fast"}, *rest]})] = (
    "counter TFLOPS is 'fast', must be a finite number"
)
for key, value, fault in FAULTS:
    first, *others = WHOLE["benchmarks"]
    TEXTS[json.dumps({**WHOLE, "benchmarks": [{**first, key: value}, *others]})] = fault


def test_files_that_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "good.json", document(TIMES))
    copy = write(tmp_path / "copy.json", document(TIMES))
    other = write(tmp_path / "other.json", document({FFN.replace("f32", "bf16"): 1.0}))
    training = write(tmp_path / "training.json", summary())
    refused = [
        ([good, "absent.json"], "cannot be read: No such file"),
        ([good, tmp_path], "is a folder"),
        (["--base", good, copy, "--new", good], "is there 2 times among the files of the base"),
        ([good, other], "nothing to compare: no case is in both sides"),
        ([good, good, "--filter", "nothing"], "that matches 'nothing'"),
        ([training, good], "no case is in both sides (base: training/step"),
        ([good], "1 files"),
        ([good, good, "--output", good / "below"], "cannot be written"),
    ]
    for number, (text, expected) in enumerate(TEXTS.items()):
        bad = tmp_path / f"bad_{number}.json"
        bad.write_text(text, encoding="utf-8", errors="surrogateescape")
        refused.append(([REFERENCE, bad], f"{bad}: "))
        refused.append(([good, bad], expected))
    for arguments, expected in refused:
        assert main([*map(str, arguments)]) == 2
        assert expected in capsys.readouterr().err


def test_a_measured_file_is_read_as_google_benchmark_summed_it_up() -> None:
    run = read_stored(REFERENCE)
    rows = json.loads(REFERENCE.read_text(encoding="utf-8"))["benchmarks"]
    medians = {
        e["run_name"].removesuffix("/manual_time"): e
        for e in rows
        if e.get("aggregate_name") == "median"
    }
    assert run.cases.keys() == medians.keys()
    assert len(run.cases) > 10
    for name, case in run.cases.items():
        assert case.seconds == pytest.approx(medians[name]["real_time"] * 1e-3)
        assert case.repetitions == medians[name]["iterations"]
        assert case.counters["operators"] == medians[name]["operators"]
