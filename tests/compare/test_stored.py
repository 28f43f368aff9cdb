"""Stored results: verdicts, outcomes, what differs beside the code, recorded noise, bad files."""

from __future__ import annotations

import json
import math
import resource
import statistics
from collections.abc import Callable
from pathlib import Path

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

from tinyllama_tools.compare import stored as stored_command
from tinyllama_tools.compare.comparison import outcome_without_times
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.names import SideState
from tinyllama_tools.data.results import read_stored
from tinyllama_tools.stats.verdicts import Outcome
from tools import compare as main

Change = Callable[[Json], object]
# enough for seven cases at the default level
FILES = 9
REFERENCE = PROJECT / "results/reference/tiny_f32_2core_xeon_avx512.json"


def slow(ffn: float) -> dict[str, float]:
    """A step as slow as its FFN makes it."""
    return {**TIMES, FFN: TIMES[FFN] * (1 + ffn), STEP: TIMES[STEP] + 4 * TIMES[FFN] * ffn}


def test_several_files_a_side_give_verdicts_and_attribution(tmp_path: Path) -> None:
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
    parts = found.cases[STEP]["attribution"]["parts"]
    assert found.cases[STEP]["attribution"]["culprit"] == FFN
    assert parts[0]["seconds"] == pytest.approx(4 * 0.2 * TIMES[FFN], rel=0.1)
    assert all(found.cases[name]["attribution"] is None for name in TIMES if name != STEP)
    ratios = [case["ratio"] for case in found.cases.values()]
    assert found.document["geometric_mean_ratio"] == pytest.approx(stats.gmean(ratios))
    assert found.status == found.document["exit_status"] == 1
    assert Found(tmp_path / "out", "--base", *new, "--new", *base).outcomes[FFN] == "faster"
    # being slower cannot be allowed
    assert main([*map(str, ["--base", *base, "--new", *new, "--allow-missing", "*"])]) == 1


def test_too_few_files_have_no_answer(tmp_path: Path) -> None:
    base, new = (write_runs(tmp_path, s, 3, t) for s, t in (("base", TIMES), ("new", slow(0.5))))
    found = Found(tmp_path / "out", base[0], new[0], "--strict")
    assert (found.status, set(found.outcomes.values())) == (3, {"no verdict"})
    assert found.cases[FFN]["ratio"] == pytest.approx(1.5, rel=0.03)
    assert found.cases[FFN]["interval"] is found.cases[FFN]["p_value"] is None
    assert any("9 files a side are needed for 7 cases" in text for text in found.warnings)
    assert Found(tmp_path / "out", base[0], new[0]).status == 0
    found = Found(tmp_path / "out", "--base", *base, "--new", *new)
    assert set(found.outcomes.values()) == {"unclear"}
    assert found.cases[FFN]["smallest_difference"] is None
    assert any("9 files a side are needed for 7 cases" in text for text in found.warnings)
    assert "an answer needs about 9 files a side" in found.cases[FFN]["note"]


def test_files_of_a_side_that_do_not_agree(tmp_path: Path) -> None:
    """A case that one lacks, one that fails in one, a counter that varies, a row above its peak."""
    less = {n: s for n, s in TIMES.items() if n not in {FFN, LOSS}}
    counters = [{NORM: {"allocations": count}} for count in (30.0, 31.0)]
    second = document(less, counters=counters[1], more=[stopped(LOSS, failed="wrong loss")])
    for row in second["benchmarks"]:
        if row["run_name"].startswith(EMBEDDING):
            row["above_peak"] = "107 % of the measured f32 peak"
    new = [
        write(tmp_path / "new_0.json", document(TIMES, counters=counters[0])),
        write(tmp_path / "new_1.json", second),
    ]
    base = write_runs(tmp_path, "base", 2, TIMES)
    found = Found(tmp_path / "out", "--base", *base, "--new", *new, "--fail-on-growth")
    assert found.outcomes[FFN] == "no verdict"
    assert found.cases[FFN]["note"] == "new measured in 1 of 2 files; one file of a side only"
    assert found.outcomes[LOSS] == "failed"
    assert found.cases[LOSS]["note"] == "in 1 of 2 files: wrong loss"
    assert "new 107 % of the measured f32 peak" in found.cases[EMBEDDING]["note"]
    (change,) = (c for c in found.cases[NORM]["counters"] if c["name"] == "allocations")
    assert (change["base"], change["new"], change["exact"]) == (29.0, 30.5, False)


def test_cases_on_one_side_have_their_outcome(tmp_path: Path) -> None:
    both = [stopped("both", skipped="no switch"), stopped("always", failed="wrong loss")]
    base = document({NORM: 5e-4, FFN: 0.008, LOSS: 0.006, "gone": 0.1}, more=both)
    base["benchmarks"].append(stopped("mended", failed="wrong"))
    stops = [stopped(FFN, failed="crashed"), stopped(LOSS, skipped="too large"), *both]
    new = document({NORM: 5e-4, EMBEDDING: 0.0002, "mended": 0.1}, more=stops)
    files = [write(tmp_path / "base.json", base), write(tmp_path / "new.json", new)]
    found = Found(tmp_path / "out", *files)
    failed = "failed in the base: wrong loss; failed in the new: wrong loss"
    assert {name: (case["outcome"], case["note"]) for name, case in found.cases.items()} == {
        NORM: ("no verdict", ""),
        FFN: ("failed", "crashed"),
        LOSS: ("missing", "skipped in the new: too large"),
        "gone": ("missing", "not in the new"),
        EMBEDDING: ("added", "not in the base"),
        "both": ("skipped", "skipped in the base: no switch; skipped in the new: no switch"),
        "always": ("skipped", failed),
        "mended": ("no verdict", "failed in the base: wrong"),
    }
    assert found.status == 1
    more = ["--allow-missing", FFN, "lo*", "--allow-missing", "gone", "x/*"]
    allowed = Found(tmp_path / "out", *files, *more)
    assert (allowed.status, allowed.cases[FFN]["allowed"]) == (0, True)
    assert "--allow-missing 'x/*': no case is called so" in allowed.warnings
    assert Found(tmp_path / "out", *files, "--allow-missing", FFN, "loss/*").status == 1
    # nothing that both measured, and nothing that only one did
    assert Found(tmp_path / "out", *files, "--filter", "^(both|always)$", "--strict").status == 0


ABSENT, THERE, PENDING = SideState(), SideState(is_measured=True), SideState(is_pending=True)


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        (THERE, THERE, None),
        (SideState(skipped="too large"), THERE, Outcome.ADDED),
        (SideState(skipped="too large"), ABSENT, Outcome.SKIPPED),
        (THERE, PENDING, Outcome.NO_VERDICT),
        (PENDING, THERE, Outcome.NO_VERDICT),
    ],
)
def test_other_outcomes_without_times(
    base: SideState, new: SideState, expected: Outcome | None
) -> None:
    found = outcome_without_times(base, new)
    assert (found and found[0]) == expected


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


def test_two_variants_of_one_file_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"ffn": (4.0, 2.0), "loss": (3.0, 1.5), "block": (8.0, 2.0), "embedding": (1.0, None)}
    rows = {
        f"{component}/forward/{variant}/tiny/f32/batch:2/seq:8": seconds
        for component, pair in times.items()
        for variant, seconds in zip(("baseline", "optimized"), pair, strict=True)
        if seconds
    }
    file = write(tmp_path / "a.json", document(rows))
    found = Found(tmp_path / "out", file, "--variants", "baseline,optimized")
    # what only one of them has is not missing
    assert {name.split("/")[0]: case["ratio"] for name, case in found.cases.items()} == {
        "ffn": 0.5,
        "loss": 0.5,
        "block": 0.25,
    }
    assert found.document["geometric_mean_ratio"] == pytest.approx((0.5 * 0.5 * 0.25) ** (1 / 3))
    assert main([str(file), "--variants", "baseline,fused"]) == 2
    assert "has no case of 'fused', but of: baseline, optimized" in capsys.readouterr().err


def test_five_thousand_cases_in_five_seconds(tmp_path: Path) -> None:
    counters = {f"counter_{i}": 1.5 * i for i in range(12)}
    name = "ffn/forward_backward/baseline/custom/f32/batch:{}/seq:128"
    paths = []
    for side, factor in (("base", 1.0), ("new", 1.02)):
        times = {name.format(1 + i): factor * 1e-3 for i in range(5000)}
        found = document(times, counters=dict.fromkeys(times, counters))
        paths.append(write(tmp_path / f"{side}.json", found))
    used = [resource.getrusage(resource.RUSAGE_SELF)]
    assert len(Found(tmp_path / "out", *paths).cases) == 5000
    used.append(resource.getrusage(resource.RUSAGE_SELF))
    # threefold, since the processors are shared
    assert used[1].ru_utime - used[0].ru_utime < 3 * 5.0


def changed(key: str, value: object) -> Json:
    """The context with another value under `a.b`."""
    first, _, second = key.partition(".")
    return {**CONTEXT, first: {**CONTEXT[first], second: value} if second else value}


PEAK = {"measured": {"f32": {"flops_per_second": 2e11, "source": "product"}}}
LIKE = {"measured": {"f32": {"flops_per_second": 2.9e11, "source": "product"}}}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("threads", 4, ["threads: 2 in the base, 4 in the new"]),
        ("device.name", "Other", ["device name: Some CPU in the base, Other in the new"]),
        (
            "device.driver_version",
            "6",
            ["device driver_version: not said in the base, 6 in the new"],
        ),
        ("library_build_type", "debug", ["debug build in the new: its figures mean nothing"]),
        ("git_dirty", True, ["the new was built from files that are in no commit (git_dirty)"]),
        ("settings.env.OMP", "1", ["setting env.OMP: not said in the base, 1 in the new"]),
        ("settings.torch_threads", "4", ["setting torch_threads: 2 in the base, 4 in the new"]),
        (
            "weights",
            {"fingerprint": "f"},
            ["weights fingerprint: not said in the base, f in the new"],
        ),
        ("peaks", PEAK, ["the machine's own measured peak (f32) is -33 % in the new"]),
        ("peaks", LIKE, []),
        ("date", "2026-01-03T03:04:05+00:00", []),
    ],
)
def test_a_difference_of_the_contexts_is_named(
    key: str, value: object, expected: list[str], tmp_path: Path
) -> None:
    base = write(tmp_path / "base.json", document(TIMES))
    new = write(tmp_path / "new.json", document(TIMES, context=changed(key, value)))
    *found, last = Found(tmp_path / "out", base, new).warnings
    assert last.startswith("one file of a side")
    assert [text.partition(": it was")[0] for text in found] == expected


@pytest.mark.parametrize(
    ("base", "new", "is_told"),
    [
        (("2026-03-02T09:00:00+01:00", "2026-03-02T10:00:00Z"), ("2026-03-03", "2026-03-04"), True),
        (("2026-03-03", "2026-03-04"), ("2026-03-02", "2026-03-01"), True),
        (("2026-03-02", "2026-03-05"), ("2026-03-03", "2026-03-04"), False),
        # nobody can say when these were
        (("2026-03-02", "yesterday"), ("2026-03-03", "2026-03-04"), False),
    ],
)
def test_sides_that_were_measured_one_after_the_other(
    base: tuple[str, str], new: tuple[str, str], is_told: bool, tmp_path: Path
) -> None:
    files = [
        [
            write(tmp_path / f"{side}{i}.json", document(TIMES, context={"date": date}))
            for i, date in enumerate(dates)
        ]
        for side, dates in (("base", base), ("new", new))
    ]
    found = Found(tmp_path / "out", "--base", *files[0], "--new", *files[1])
    assert found.warnings[0].startswith("measured one after the other") == is_told


def noise(**changes: object) -> Json:
    return {
        "kind": "tiny_llama noise profile",
        "schema_version": 1,
        "host_name": "host",
        "device": "Some CPU",
        "architecture": "x86-64 AVX2",
        "threads": 2,
        "cases": {name: {"scatter": 0.003, "degrees": 60} for name in TIMES if name != LOSS},
        "default": {"scatter": 0.05, "degrees": 60},
    } | changes


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    named = (("base", TIMES), ("new", {**TIMES, FFN: TIMES[FFN] * 1.2}))
    return [write_runs(tmp_path, side, 1, times, scatter=0.0)[0] for side, times in named]


def test_a_profile_gives_verdicts_on_one_file_a_side(
    tmp_path: Path, pair: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "noise.json", noise())
    found = Found(tmp_path / "out", *pair, "--noise-profile", path)
    # LOSS was not recorded, so the default's wide scatter holds
    expected = dict.fromkeys(TIMES, "same") | {FFN: "slower", LOSS: "unclear"}
    assert (found.status, found.outcomes) == (1, expected)
    ffn = found.cases[FFN]
    # two-sided, times the seven cases
    one_case = 2 * stats.t.sf(math.log(1.2) / (math.sqrt(2) * 0.003), 60)
    assert ffn["p_value"] == pytest.approx(len(TIMES) * one_case, rel=1e-6, abs=0)
    # 60 degrees of freedom at 95 %: 2.0003 standard errors
    reach = 2.0003 * math.sqrt(2) * 0.003
    assert math.log(ffn["interval"]["high"] / 1.2) == pytest.approx(reach, rel=1e-3)
    assert "not in the noise profile" in found.cases[LOSS]["note"]
    # in its usual place it is used where it is of this machine
    monkeypatch.setattr(stored_command, "DEFAULT_PATH", path)
    assert Found(tmp_path / "out", *pair).outcomes[FFN] == "slower"
    write(path, noise(threads=8))
    found = Found(tmp_path / "out", *pair)
    assert found.outcomes[FFN] == "no verdict"
    assert found.warnings[-1].endswith("is of threads '8', the results are of '2'")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"device": "Other"}, "is of device 'Other', the results are of 'Some CPU'"),
        # another machine of the same make
        ({"host_name": "other"}, "is of host_name 'host_d9298a10', the results are of"),
        ({"kind": "other"}, "kind: 'tiny_llama noise profile' was expected"),
        ({"default": {"scatter": 0.1, "degrees": 0}}, "default.degrees: 0 is less than or equal"),
        ({"cases": {"a": {"scatter": math.nan, "degrees": 3}}}, "cases.a.scatter: nan is not of"),
    ],
)
def test_a_profile_that_cannot_be_used(
    tmp_path: Path,
    pair: list[Path],
    changes: Json,
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path / "noise.json", noise(**changes))
    assert main([*map(str, pair), "--noise-profile", str(path)]) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert str(path) in message


def test_training_runs_are_compared_by_step_and_phase(tmp_path: Path) -> None:
    base, new = (
        [write(tmp_path / f"{side}_{i}.json", summary(factor + 0.001 * i)) for i in range(9)]
        for side, factor in (("base", 1.0), ("new", 1.5))
    )
    found = Found(tmp_path / "out", "--base", *base, "--new", *new)
    step = found.cases["training/step"]
    assert (found.status, step["outcome"]) == (1, "slower")
    assert step["ratio"] == pytest.approx(1.5, rel=0.01)
    shares = [part["share"] for part in step["attribution"]["parts"]]
    assert sum(shares) == pytest.approx(1.0, abs=0.05)
    # steps were profiled or not, the first does not count
    times = [s["time_seconds"] for s in summary()["steps"][1:]]
    assert step["base_seconds"] == pytest.approx(statistics.median(times), rel=0.01)
    other = write(tmp_path / "other.json", summary(batch_size=16))
    said = Found(tmp_path / "out", base[0], other).warnings
    assert "not the same work: batch_size: 8 in the base, 16 in the new" in said


def repetition(key: str, value: object) -> Change:
    return lambda found: found["benchmarks"][0].__setitem__(key, value)


FAULTS: list[tuple[Change, str]] = [
    (lambda found: found["context"].update(schema_version=4), "schema_version is 4, must be 3"),
    (lambda found: found["context"].pop("schema_version"), "so it is of another benchmark"),
    (lambda found: found.update(benchmarks=3), "benchmarks: 3 is not of type"),
    (lambda found: found["benchmarks"].clear(), "holds no case"),
    (lambda found: found["benchmarks"].insert(0, 7), "benchmarks[0]: 7 is not of type"),
    (repetition("real_time", float("nan")), f"{EMBEDDING}/manual_time: real_time nan ms, must be"),
    (repetition("real_time", 0), "real_time 0 ms, must be a positive"),
    (repetition("real_time", "fast"), "real_time: 'fast' is not of type"),
    (repetition("real_time", 10**400), "real_time of 401 digits ms, must be"),
    (repetition("time_unit", "fortnight"), "time_unit: 'fortnight' is not one of"),
    (repetition("TFLOPS", float("nan")), "counter TFLOPS is nan, must be finite"),
    (repetition("repetition_index", 1), "repetition 1 is there 2 times"),
    (lambda found: found["context"].update(peaks=[1]), "context.peaks: [1] is not of type"),
]


@pytest.mark.parametrize(("change", "expected"), FAULTS, ids=[fault[1] for fault in FAULTS])
def test_a_result_with_a_fault(
    change: Change, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(TIMES)
    change(found)
    bad = write(tmp_path / "bad.json", found)
    assert main([str(REFERENCE), str(bad)]) == 2
    message = capsys.readouterr().err
    assert str(bad) in message
    assert expected in message


WHOLE = json.dumps(document(TIMES))
TEXTS = {"": "is empty", WHOLE[:-40]: "is cut short", '{"context": {,}}': "is no JSON"}
TEXTS |= {"[1, 2]": "holds no object", '{"answer": 42}': "its keys are answer"}
TEXTS |= {"[" * 100_000: "is no JSON", "\udcff": "is no JSON"}


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
        (["--base", good], "0 of --new"),
        ([good, good, "--output", good / "below"], "cannot be written"),
    ]
    for number, (text, expected) in enumerate(TEXTS.items()):
        bad = tmp_path / f"bad_{number}.json"
        bad.write_text(text, encoding="utf-8", errors="surrogateescape")
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
