"""Stored results of both sides: verdicts, cases on one side, growth, and exit statuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from stored_samples import (
    EMBEDDING,
    FFN,
    LOSS,
    NORM,
    STEP,
    TIMES,
    document,
    stopped,
    write,
    write_runs,
)

from tinyllama_tools.compare.comparison import ComparedCase, Comparison
from tinyllama_tools.compare.stored import Rules, compare_stored, read_sides
from tinyllama_tools.stats.verdicts import Outcome
from tools import compare as main

# enough for seven cases at the default level
FILES = 9


def compared(base: list[Path], new: list[Path], **rules: Any) -> Comparison:  # noqa: ANN401
    return compare_stored(
        *read_sides(base, new), Rules(**{"alpha": 0.001, "margin": 0.03, **rules})
    )


def by_name(comparison: Comparison) -> Mapping[str, ComparedCase]:
    return {case.name: case for case in comparison.cases}


def slow(ffn: float) -> dict[str, float]:
    """A step as slow as its FFN makes it."""
    return {**TIMES, FFN: TIMES[FFN] * (1 + ffn), STEP: TIMES[STEP] + 4 * TIMES[FFN] * ffn}


def test_several_files_a_side_give_verdicts_and_attribution(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", FILES, TIMES)
    found = compared(base, write_runs(tmp_path, "new", FILES, slow(0.2)))
    cases = by_name(found)
    assert cases[FFN].outcome is cases[STEP].outcome is Outcome.SLOWER
    assert cases[FFN].ratio == pytest.approx(1.2, rel=0.02)
    interval = cases[FFN].interval
    assert interval is not None
    assert interval.low < 1.2 < interval.high
    assert interval.high - interval.low < 0.03
    assert cases[FFN].blocks == FILES
    assert cases[FFN].p_value is not None
    assert cases[FFN].p_value <= 0.001
    attribution = cases[STEP].attribution
    assert attribution is not None
    assert attribution.culprit == FFN
    assert attribution.parts[0].seconds == pytest.approx(4 * 0.2 * TIMES[FFN], rel=0.1)
    assert {cases[name].outcome for name in TIMES if name not in {FFN, STEP}} == {Outcome.SAME}
    assert all(cases[name].attribution is None for name in TIMES if name != STEP)
    assert found.exit_status() == 1


def test_swapped_sides_are_faster(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", FILES, TIMES)
    found = compared(write_runs(tmp_path, "new", FILES, slow(0.2)), base)
    assert by_name(found)[FFN].outcome is Outcome.FASTER
    assert found.exit_status() == 0


def test_one_file_a_side_gives_no_verdict(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", 1, TIMES)
    found = compared(base, write_runs(tmp_path, "new", 1, slow(0.5)))
    assert {case.outcome for case in found.cases} == {Outcome.NO_VERDICT}
    assert by_name(found)[FFN].ratio == pytest.approx(1.5, rel=0.03)
    assert all(case.interval is None and case.p_value is None for case in found.cases)
    assert any("no verdict; 9 files a side are needed for 7 cases" in t for t in found.warnings)
    assert found.exit_status() == 0
    assert found.exit_status(strict=True) == 3


def test_one_file_against_many_gives_no_verdict(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", 1, TIMES)
    found = compared(base, write_runs(tmp_path, "new", FILES, slow(0.5)))
    assert {case.outcome for case in found.cases} == {Outcome.NO_VERDICT}


def test_too_few_files_say_how_many_are_needed(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", 3, TIMES)
    found = compared(base, write_runs(tmp_path, "new", 3, slow(0.5)))
    assert {case.outcome for case in found.cases} == {Outcome.UNCLEAR}
    assert all(case.smallest_difference is None for case in found.cases)
    assert any("9 files a side are needed for 7 cases" in text for text in found.warnings)
    assert "an answer needs about 9 files a side" in by_name(found)[FFN].note


def test_nobody_is_asked_for_thousands_of_files(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", 4, TIMES, scatter=1.0)
    # a name of the same letters seeds the same times, so there is no difference to be shown
    found = compared(base, write_runs(tmp_path, "esab", 4, TIMES, scatter=1.0))
    assert by_name(found)[FFN].note.endswith("gives an answer (over 1000 a side)")


def test_a_case_that_only_one_file_of_a_side_has(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", 2, TIMES)
    new = [
        write(tmp_path / "new_0.json", document(TIMES)),
        write(tmp_path / "new_1.json", document({n: s for n, s in TIMES.items() if n != FFN})),
    ]
    case = by_name(compared(base, new))[FFN]
    assert case.outcome is Outcome.NO_VERDICT
    assert case.note == "new measured in 1 of 2 files; one file of a side only"


def test_a_row_above_its_peak_is_compared_and_says_so(tmp_path: Path) -> None:
    reason = "107 % of the measured f32 peak: the time, the count or the peak is wrong"
    files = (
        write_runs(tmp_path, "base", FILES, TIMES),
        write_runs(tmp_path, "new", FILES, slow(0.2)),
    )
    content = json.loads(files[1][0].read_text(encoding="utf-8"))
    for entry in content["benchmarks"]:
        if entry["run_name"].startswith(FFN):
            entry["above_peak"] = reason
            del entry["MFU_percent"]
    write(files[1][0], content)
    case = by_name(compared(*files))[FFN]
    assert case.outcome is Outcome.SLOWER
    assert case.ratio == pytest.approx(1.2, rel=0.02)
    assert case.note == f"new {reason}"


def one_sided(tmp_path: Path) -> tuple[Path, Path]:
    """Files whose cases differ in every way."""
    few = {NORM: 0.0005}
    stops = [stopped(FFN, failed="crashed"), stopped(LOSS, skipped="too large")]
    both = [stopped("both", skipped="no such switch")]
    base = document({**few, FFN: 0.008, LOSS: 0.006, "gone": 0.1}, more=both)
    new = document({**few, EMBEDDING: 0.0002}, more=[*stops, *both])
    return write(tmp_path / "base.json", base), write(tmp_path / "new.json", new)


def test_cases_on_one_side_have_their_outcome_and_are_named_first(tmp_path: Path) -> None:
    base, new = one_sided(tmp_path)
    found = compared([base], [new])
    cases = by_name(found)
    expected = {
        NORM: (Outcome.NO_VERDICT, ""),
        FFN: (Outcome.FAILED, "crashed"),
        LOSS: (Outcome.MISSING, "skipped in the new: too large"),
        "gone": (Outcome.MISSING, "not in the new"),
        EMBEDDING: (Outcome.ADDED, "not in the base"),
        "both": (
            Outcome.SKIPPED,
            "skipped in the base: no such switch; skipped in the new: no such switch",
        ),
    }
    assert {name: (case.outcome, case.note) for name, case in cases.items()} == expected
    assert f"2 measured in the base, not in the new: {LOSS}, gone" in found.warnings
    assert f"1 failed in the new: {FFN}" in found.warnings
    assert f"1 measured in the new only: {EMBEDDING}" in found.warnings
    assert "1 not measured on either side: both" in found.warnings
    assert found.exit_status() == 1


def test_a_case_that_fails_in_one_of_several_files_failed(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", 2, TIMES)
    without = {n: s for n, s in TIMES.items() if n != FFN}
    failing = document(without, more=[stopped(FFN, failed="wrong loss")])
    new = [*write_runs(tmp_path, "new", 1, TIMES), write(tmp_path / "failing.json", failing)]
    case = by_name(compared(base, new))[FFN]
    assert (case.outcome, case.note) == (Outcome.FAILED, "in 1 of 2 files: wrong loss")


def test_what_failed_in_the_base_too_is_no_regression(tmp_path: Path) -> None:
    stop = [stopped(FFN, failed="wrong loss")]
    base = write(tmp_path / "base.json", document({NORM: 0.1}, more=stop))
    new = write(tmp_path / "new.json", document({NORM: 0.2}, more=stop))
    found = compared([base], [new])
    assert by_name(found)[FFN].outcome is Outcome.SKIPPED
    assert found.exit_status() == 0


def test_missing_cases_are_allowed_by_name_or_pattern(tmp_path: Path) -> None:
    base, new = map(str, one_sided(tmp_path))
    assert main([base, new]) == 1
    assert main([base, new, "--allow-missing", FFN, "loss/*", "gone"]) == 0
    assert main([base, new, "--allow-missing", FFN, "--allow-missing", "loss/*"]) == 1


def test_a_pattern_that_no_case_has_is_said(tmp_path: Path) -> None:
    base, new = one_sided(tmp_path)
    found = compared([base], [new], allowed=("lost/*",))
    assert "--allow-missing 'lost/*': no case is called so" in found.warnings


def test_being_slower_cannot_be_allowed(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", FILES, TIMES)
    new = write_runs(tmp_path, "new", FILES, slow(0.2))
    assert compared(base, new, allowed=("*",)).exit_status() == 1


def test_growth_is_reported_and_fails_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write(tmp_path / "base.json", document(TIMES))
    new = write(tmp_path / "new.json", document(TIMES, counters={FFN: {"allocations": 30.0}}))
    assert main([str(base), str(new)]) == 0
    assert "allocations 29 -> 30 (+3.4 %), worse" in capsys.readouterr().out
    assert main([str(base), str(new), "--fail-on-growth"]) == 1
    assert "Regression: deterministic counters got worse in 1 case." in capsys.readouterr().out
    assert main([str(new), str(base), "--fail-on-growth"]) == 0


def test_a_counter_that_differs_between_files_of_a_side_is_not_exact(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", 2, TIMES)
    new = [
        write(tmp_path / f"n{i}.json", document(TIMES, counters={FFN: {"allocations": 30.0 + i}}))
        for i in range(2)
    ]
    case = by_name(compared(base, new))[FFN]
    change = next(c for c in case.counters if c.name == "allocations")
    assert (change.base, change.new, change.exact) == (29.0, 30.5, False)
    assert case.grown == ()


def test_other_work_is_said(tmp_path: Path) -> None:
    base = write(tmp_path / "base.json", document(TIMES))
    new = write(tmp_path / "new.json", document(TIMES, counters={FFN: {"model_flops": 2e9}}))
    warning = f"1 did not do the same work, model_flops or parameters differ: {FFN}"
    assert warning in compared([base], [new]).warnings


def test_one_repetition_is_said(tmp_path: Path) -> None:
    base = write(tmp_path / "base.json", document({FFN: 0.1}, repetitions=1))
    found = compared([base], [write(tmp_path / "new.json", document({FFN: 0.1}))])
    assert f"{base}: one repetition, so no scatter within the run is known, of {FFN}" in (
        found.warnings
    )


def test_a_filter_leaves_the_other_cases_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", document(TIMES))
    assert main([str(path), str(path), "--filter", "^ffn/", "--output", str(tmp_path / "o")]) == 0
    written = json.loads((tmp_path / "o/comparison.json").read_text(encoding="utf-8"))
    assert [case["name"] for case in written["cases"]] == [FFN]
    assert any("is the same file as" in text for text in written["warnings"])
