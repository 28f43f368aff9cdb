"""Stored results: verdicts, outcomes, what differs beside the code, recorded noise, training."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from stored_samples import (
    CONTEXT,
    EMBEDDING,
    FFN,
    LOSS,
    NORM,
    STEP,
    TIMES,
    document,
    stopped,
    summary,
    write,
    write_runs,
)

from tinyllama_tools.compare import stored as stored_command
from tinyllama_tools.compare.comparison import outcome_without_times
from tinyllama_tools.compare.context_differences import (
    axis_differences,
    context_differences,
    one_after_the_other,
    work_differences,
)
from tinyllama_tools.data.names import SideState
from tinyllama_tools.stats.verdicts import Outcome
from tools import compare as main

Json = dict[str, Any]
Paths = Sequence[Path]
# enough for seven cases at the default level
FILES = 9


class Found:
    """What `scripts/compare` wrote of these files."""

    def __init__(self, base: Paths, new: Paths, *options: str, output: Path | None = None) -> None:
        folder = output or base[0].parent / "out"
        files = ["--base", *base, "--new", *new, *options, "--output", folder]
        self.status = main(list(map(str, files)))
        written = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
        assert written["exit_status"] == self.status
        self.warnings = written["warnings"]
        self.cases = {case["name"]: case for case in written["cases"]}
        self.outcomes = {name: case["outcome"] for name, case in self.cases.items()}


def slow(ffn: float) -> dict[str, float]:
    """A step as slow as its FFN makes it."""
    return {**TIMES, FFN: TIMES[FFN] * (1 + ffn), STEP: TIMES[STEP] + 4 * TIMES[FFN] * ffn}


def test_several_files_a_side_give_verdicts_and_attribution(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", FILES, TIMES)
    new = write_runs(tmp_path, "new", FILES, slow(0.2))
    found = Found(base, new)
    assert found.outcomes == {n: "slower" if n in {FFN, STEP} else "same" for n in TIMES}
    ffn, interval = found.cases[FFN], found.cases[FFN]["interval"]
    assert ffn["ratio"] == pytest.approx(1.2, rel=0.02)
    assert interval["low"] < 1.2 < interval["high"] < interval["low"] + 0.03
    assert ffn["blocks"] == FILES
    # all files of one side beyond all of the other, for two cases of seven
    assert ffn["p_value"] == pytest.approx(7 * 2 / math.comb(18, 9))
    attribution = found.cases[STEP]["attribution"]
    assert attribution["culprit"] == FFN
    assert attribution["parts"][0]["seconds"] == pytest.approx(4 * 0.2 * TIMES[FFN], rel=0.1)
    assert all(found.cases[name]["attribution"] is None for name in TIMES if name != STEP)
    assert found.status == 1
    assert Found(new, base).outcomes[FFN] == "faster"
    # being slower cannot be allowed
    assert Found(base, new, "--allow-missing", "*").status == 1


def test_one_file_a_side_gives_no_verdict(tmp_path: Path) -> None:
    base, new = (write_runs(tmp_path, s, 1, t) for s, t in (("base", TIMES), ("new", slow(0.5))))
    found = Found(base, new)
    assert set(found.outcomes.values()) == {"no verdict"}
    assert found.cases[FFN]["ratio"] == pytest.approx(1.5, rel=0.03)
    assert found.cases[FFN]["interval"] is found.cases[FFN]["p_value"] is None
    assert any("no verdict; 9 files a side are needed for 7 cases" in t for t in found.warnings)
    assert found.status == 0
    assert Found(base, new, "--strict").status == 3


def test_too_few_files_say_how_many_are_needed(tmp_path: Path) -> None:
    sides = [write_runs(tmp_path, s, 3, t) for s, t in (("base", TIMES), ("new", slow(0.5)))]
    found = Found(*sides)
    assert set(found.outcomes.values()) == {"unclear"}
    assert found.cases[FFN]["smallest_difference"] is None
    assert any("9 files a side are needed for 7 cases" in text for text in found.warnings)
    assert "an answer needs about 9 files a side" in found.cases[FFN]["note"]
    # a name of the same letters seeds the same times, so there is no difference to be shown
    wild = [write_runs(tmp_path, side, 4, TIMES, scatter=1.0) for side in ("base", "esab")]
    assert Found(*wild).cases[FFN]["note"].endswith("gives an answer (over 1000 a side)")


def test_cases_that_no_file_measured_have_no_verdict(tmp_path: Path) -> None:
    stop = document({}, more=[stopped(FFN, failed="wrong loss")])
    sides = [[write(tmp_path / f"{side}.json", stop)] for side in ("base", "new")]
    found = Found(*sides, "--strict")
    assert (found.status, found.outcomes) == (0, {FFN: "skipped"})


def test_files_of_a_side_that_do_not_agree(tmp_path: Path) -> None:
    """A case that one lacks, one that fails in one, a counter that varies, a row above its peak."""
    base = write_runs(tmp_path, "base", 2, TIMES)
    less = {n: s for n, s in TIMES.items() if n not in {FFN, LOSS}}
    grown = {NORM: {"allocations": 31.0}}
    second = document(less, counters=grown, more=[stopped(LOSS, failed="wrong loss")])
    for row in second["benchmarks"]:
        if row["run_name"].startswith(EMBEDDING):
            row["above_peak"] = "107 % of the measured f32 peak"
    new = [
        write(tmp_path / "new_0.json", document(TIMES, counters={NORM: {"allocations": 30.0}})),
        write(tmp_path / "new_1.json", second),
    ]
    found = Found(base, new, "--fail-on-growth")
    assert found.outcomes[FFN] == "no verdict"
    assert found.cases[FFN]["note"] == "new measured in 1 of 2 files; one file of a side only"
    assert found.outcomes[LOSS] == "failed"
    assert found.cases[LOSS]["note"] == "in 1 of 2 files: wrong loss"
    assert "new 107 % of the measured f32 peak" in found.cases[EMBEDDING]["note"]
    (change,) = (c for c in found.cases[NORM]["counters"] if c["name"] == "allocations")
    assert (change["base"], change["new"], change["exact"]) == (29.0, 30.5, False)


@pytest.fixture
def one_sided(tmp_path: Path) -> list[Path]:
    """Files whose cases differ in every way."""
    both = [stopped("both", skipped="no such switch"), stopped("always", failed="wrong loss")]
    stops = [stopped(FFN, failed="crashed"), stopped(LOSS, skipped="too large")]
    base = document({NORM: 5e-4, FFN: 0.008, LOSS: 0.006, "gone": 0.1}, more=both)
    base["benchmarks"].append(stopped("mended", failed="wrong"))
    new = document({NORM: 5e-4, EMBEDDING: 0.0002, "mended": 0.1}, more=[*stops, *both])
    return [write(tmp_path / "base.json", base), write(tmp_path / "new.json", new)]


def test_cases_on_one_side_have_their_outcome_and_are_named_first(one_sided: list[Path]) -> None:
    base, new = one_sided
    found = Found([base], [new])
    skipped = "skipped in the base: no such switch; skipped in the new: no such switch"
    failed = "failed in the base: wrong loss; failed in the new: wrong loss"
    assert {name: (case["outcome"], case["note"]) for name, case in found.cases.items()} == {
        NORM: ("no verdict", ""),
        FFN: ("failed", "crashed"),
        LOSS: ("missing", "skipped in the new: too large"),
        "gone": ("missing", "not in the new"),
        EMBEDDING: ("added", "not in the base"),
        "both": ("skipped", skipped),
        "always": ("skipped", failed),
        "mended": ("no verdict", "failed in the base: wrong"),
    }
    said = {
        f"2 measured in the base, not in the new: {LOSS}, gone",
        f"1 failed in the new: {FFN}",
        f"1 measured in the new only: {EMBEDDING}",
        "2 not measured on either side: both, always",
    }
    assert said <= set(found.warnings)
    assert found.status == 1
    allowed = Found([base], [new], "--allow-missing", FFN, "lo*", "--allow-missing", "gone", "x/*")
    assert allowed.status == 0
    assert allowed.cases[FFN]["allowed"]
    assert "--allow-missing 'x/*': no case is called so" in allowed.warnings
    assert Found([base], [new], "--allow-missing", FFN, "loss/*").status == 1


ABSENT, THERE, PENDING = SideState(), SideState(is_measured=True), SideState(is_pending=True)
SKIPPED = SideState(skipped="too large")
INTERRUPTED = (Outcome.NO_VERDICT, "interrupted before it was opened")


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        (THERE, THERE, None),
        (SKIPPED, THERE, (Outcome.ADDED, "skipped in the base: too large")),
        (SKIPPED, ABSENT, (Outcome.SKIPPED, "skipped in the base: too large; not in the new")),
        (THERE, PENDING, INTERRUPTED),
        (PENDING, THERE, INTERRUPTED),
    ],
)
def test_other_outcomes_without_times(
    base: SideState, new: SideState, expected: tuple[Outcome, str] | None
) -> None:
    assert outcome_without_times(base, new) == expected


def test_growth_is_reported_and_fails_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write(tmp_path / "base.json", document(TIMES))
    counters = {FFN: {"allocations": 30.0, "model_flops": 2e9}}
    new = write(tmp_path / "new.json", document(TIMES, counters=counters, repetitions=1))
    assert main([str(base), str(new)]) == 0
    said = capsys.readouterr().out
    assert "allocations 29 -> 30 (+3.4 %), worse" in said
    assert f"1 did not do the same work, model_flops or parameters differ: {FFN}" in said
    assert f"{new}: one repetition, so no scatter within the run is known, of " in said
    assert main([str(base), str(new), "--fail-on-growth"]) == 1
    assert "Regression: deterministic counters got worse in 1 case." in capsys.readouterr().out
    assert main([str(new), str(base), "--fail-on-growth"]) == 0


def test_a_filter_leaves_the_other_cases_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", document(TIMES))
    found = Found([path], [path], "--filter", "^ffn/")
    assert list(found.cases) == [FFN]
    assert any("is the same file as" in text for text in found.warnings)


CASES = 5000
LIMIT_S = 5.0
# the test shares its processors with others
SLACK = 3.0


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def test_two_files_of_many_cases(tmp_path: Path) -> None:
    counters = {f"counter_{i}": 1.5 * i for i in range(12)}
    paths = []
    for side, factor in (("base", 1.0), ("new", 1.02)):
        name = "ffn/forward_backward/baseline/custom/f32/batch:{}/seq:128"
        times = {name.format(1 + i): factor * 1e-3 for i in range(CASES)}
        found = document(times, counters=dict.fromkeys(times, counters))
        paths.append([write(tmp_path / f"{side}.json", found)])
    before = cpu_seconds()
    assert len(Found(*paths).cases) == CASES
    assert cpu_seconds() - before < SLACK * LIMIT_S


def changed(key: str, value: object) -> Json:
    """The context with another value under `a.b`."""
    first, _, second = key.partition(".")
    return {**CONTEXT, first: {**CONTEXT[first], second: value} if second else value}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("threads", 4, "threads: 2 in the base, 4 in the new"),
        ("device.name", "Other", "device name: Some CPU in the base, Other in the new"),
        ("device.driver_version", "6.4", "device driver_version: not said in the base, 6.4 in the"),
        ("torch_version", "2.9.0", "torch_version: 2.13.0 in the base, 2.9.0 in the new"),
        ("cold_cache", True, "cold_cache: False in the base, True in the new"),
        ("verify", "off", "verify: before in the base, off in the new"),
        ("host_name", "b", "host_name: host in the base, b in the new"),
        ("library_build_type", "debug", "debug build in the new: its figures mean nothing"),
        ("git_dirty", True, "the new was built from files that are in no commit (git_dirty)"),
        ("settings.env.OMP", "1", "setting env.OMP: not said in the base, 1 in the new"),
        ("settings.torch_threads", "4", "setting torch_threads: 2 in the base, 4 in the new"),
        ("weights", {"fingerprint": "f"}, "weights fingerprint: not said in the base, f in the"),
        (
            "peaks",
            {"measured": {"f32": {"flops_per_second": 2e11, "source": "product"}}},
            "the machine's own measured peak (f32) is -33 % in the new",
        ),
    ],
)
def test_a_difference_is_named_with_both_values(key: str, value: object, expected: str) -> None:
    (text,) = context_differences([CONTEXT], [changed(key, value)])
    assert text.startswith(expected)


def test_what_matters_most_comes_first_and_no_difference_is_none() -> None:
    debug = changed("library_build_type", "debug")
    other = {**debug, "device": {**CONTEXT["device"], "name": "Other"}, "threads": 8}
    found = [text.split(":")[0] for text in context_differences([debug], [other])]
    assert found == ["debug build in the base", "debug build in the new", "device name", "threads"]
    near = {"measured": {"f32": {"flops_per_second": 2.9e11, "source": "product"}}}
    assert context_differences([CONTEXT], [changed("peaks", near)]) == []
    bf16 = [name.replace("/f32/", "/bf16/").replace("baseline", "qkv") for name in TIMES]
    assert axis_differences(list(TIMES), list(TIMES)) == []
    assert axis_differences(list(TIMES), [*TIMES, *bf16]) == [
        "dtype: f32 in the base, bf16, f32 in the new",
        "variant: baseline in the base, baseline, qkv in the new",
    ]
    work = {"batch_size": 8, "dtype": "f32"}
    assert work_differences([work], [dict(work)]) == []


MONDAY = ("2026-03-02T09:00:00+01:00", "2026-03-02T10:00:00+01:00")
TUESDAY = ("2026-03-03T09:00:00Z", "2026-03-03T10:00:00+01:00")


@pytest.mark.parametrize(
    ("base", "new", "is_told"),
    [
        (MONDAY, TUESDAY, True),
        (TUESDAY, MONDAY, True),
        ((MONDAY[0], TUESDAY[1]), (MONDAY[1], TUESDAY[0]), False),
        # nobody can say when these were
        ((None,), TUESDAY, False),
        (("yesterday",), TUESDAY, False),
    ],
)
def test_sides_that_were_measured_one_after_the_other(
    base: Sequence[str | None], new: Sequence[str | None], is_told: bool
) -> None:
    sides = ([changed("date", date) for date in side] for side in (base, new))
    assert ("alpha does not hold" in (one_after_the_other(*sides) or "")) == is_told


def test_the_order_of_the_sides_is_the_first_warning_of_several_files(tmp_path: Path) -> None:
    sides = [
        [
            write(tmp_path / f"{side}_{i}.json", document(TIMES, context={"date": date, **more}))
            for i, date in enumerate(dates)
        ]
        for side, dates, more in (("base", MONDAY, {}), ("new", TUESDAY, {"git_dirty": True}))
    ]
    for files, expected in ((2, "measured one after the other"), (1, "the new was built from")):
        found = Found(*(side[:files] for side in sides))
        assert found.warnings[0].startswith(expected)


def profile(**changes: object) -> Json:
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
def sides(tmp_path: Path) -> list[str]:
    fast, slowed = TIMES, {**TIMES, FFN: TIMES[FFN] * 1.2}
    named = (("base", fast), ("new", slowed))
    return [str(write_runs(tmp_path, side, 1, times, scatter=0.0)[0]) for side, times in named]


def test_a_profile_gives_verdicts_on_one_file_a_side(tmp_path: Path, sides: list[str]) -> None:
    path = write(tmp_path / "noise.json", profile())
    found = Found([Path(sides[0])], [Path(sides[1])], "--noise-profile", str(path))
    # LOSS was not recorded, so the default's wide scatter holds
    expected = dict.fromkeys(TIMES, "same") | {FFN: "slower", LOSS: "unclear"}
    assert (found.status, found.outcomes) == (1, expected)
    ffn = found.cases[FFN]
    assert ffn["ratio"] == pytest.approx(1.2)
    # two-sided, times the seven cases
    one_case = 2 * stats.t.sf(math.log(1.2) / (math.sqrt(2) * 0.003), 60)
    assert ffn["p_value"] == pytest.approx(len(TIMES) * one_case, rel=1e-6, abs=0)
    # 60 degrees of freedom at 95 %: 2.0003 standard errors
    reach = 2.0003 * math.sqrt(2) * 0.003
    assert math.log(ffn["interval"]["high"] / 1.2) == pytest.approx(reach, rel=1e-3)
    assert "not in the noise profile" in found.cases[LOSS]["note"]


def test_a_profile_in_its_usual_place_is_used_where_it_is_of_this_machine(
    tmp_path: Path,
    sides: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual = write(tmp_path / "noise_profile.json", profile())
    monkeypatch.setattr(stored_command, "DEFAULT_PATH", usual)
    assert main(sides) == 1
    assert "holds only as far as log seconds are normal" in capsys.readouterr().out
    write(usual, profile(threads=8))
    assert main(sides) == 0
    assert "is of threads '8', the results are of '2'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"device": "Other"}, "is of device 'Other', the results are of 'Some CPU'"),
        # another machine of the same make
        ({"host_name": "other"}, "is of host_name 'host_d9298a10', the results are of"),
        ({"kind": "other"}, "kind: 'tiny_llama noise profile' was expected"),
        ({"schema_version": 2}, "schema_version: 1 was expected"),
        ({"cases": []}, "cases: [] is not of type 'object'"),
        ({"default": None}, "default: None is not of type 'object'"),
        ({"default": {"scatter": 0.1, "degrees": 0}}, "default.degrees: 0 is less than or equal"),
        ({"cases": {"a": {"scatter": math.nan, "degrees": 3}}}, "cases.a.scatter: nan is not of"),
        ({"cases": {"a": {"scatter": -1, "degrees": 3}}}, "cases.a.scatter: -1 is less"),
        ({"cases": {"a": {"scatter": True, "degrees": 3}}}, "cases.a.scatter: True is not of"),
    ],
)
def test_a_profile_that_cannot_be_used(
    tmp_path: Path,
    sides: list[str],
    changes: Json,
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path / "noise.json", profile(**changes))
    assert main([*sides, "--noise-profile", str(path)]) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert str(path) in message


def test_several_files_a_side_do_without(tmp_path: Path) -> None:
    path = write(tmp_path / "noise.json", profile())
    found = Found(
        *(write_runs(tmp_path, s, 2, TIMES) for s in ("base", "new")), "--noise-profile", str(path)
    )
    assert any("--noise-profile is not used: several files" in text for text in found.warnings)


def test_training_runs_are_compared_by_step_and_phase(tmp_path: Path) -> None:
    base, new = (
        [write(tmp_path / f"{side}_{i}.json", summary(factor + 0.001 * i)) for i in range(9)]
        for side, factor in (("base", 1.0), ("new", 1.5))
    )
    found = Found(base, new)
    step = found.cases["training/step"]
    assert (found.status, step["outcome"]) == (1, "slower")
    assert step["ratio"] == pytest.approx(1.5, rel=0.01)
    parts = step["attribution"]["parts"]
    assert sum(part["share"] for part in parts) == pytest.approx(1.0, abs=0.05)
    assert Found(base[:1], new[:1], "--strict").status == 3


def test_other_work_and_an_interrupted_run_are_said(tmp_path: Path) -> None:
    other = summary(batch_size=16)
    other["summary"]["interrupted"] = True
    found = Found([write(tmp_path / "a.json", summary())], [write(tmp_path / "b.json", other)])
    assert "not the same work: batch_size: 8 in the base, 16 in the new" in found.warnings
    assert any("the run was interrupted" in text for text in found.warnings)
