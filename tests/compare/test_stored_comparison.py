"""Stored results: verdicts, readers and bad input."""

from __future__ import annotations

import json
import resource
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from stored_samples import (
    CONTEXT,
    EMBEDDING,
    FFN,
    LOSS,
    NORM,
    STEP,
    TIMES,
    document,
    entry,
    stopped,
    write,
    write_runs,
)

from tinyllama_tools.compare.comparison import (
    ComparedCase,
    Comparison,
    SideState,
    outcome_without_times,
)
from tinyllama_tools.compare.stored import Rules, compare_stored, read_sides, read_stored
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.names import OWN_KEYS, UNITS
from tinyllama_tools.data.results import SCHEMA_VERSION
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


def test_one_file_a_side_gives_no_verdict(tmp_path: Path) -> None:
    base = write_runs(tmp_path, "base", 1, TIMES)
    found = compared(base, write_runs(tmp_path, "new", 1, slow(0.5)))
    assert {case.outcome for case in found.cases} == {Outcome.NO_VERDICT}
    assert by_name(found)[FFN].ratio == pytest.approx(1.5, rel=0.03)
    assert all(case.interval is None and case.p_value is None for case in found.cases)
    assert any("no verdict; 9 files a side are needed for 7 cases" in t for t in found.warnings)
    assert found.exit_status() == 0
    assert found.exit_status(strict=True) == 3


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
    for row in content["benchmarks"]:
        if row["run_name"].startswith(FFN):
            row["above_peak"] = reason
            del row["MFU_percent"]
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


Json = dict[str, Any]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good.json", document(TIMES))


def message_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def changed(change: Callable[[Json], object]) -> Json:
    found = document(TIMES)
    change(found)
    return found


TEXTS = {
    "empty": ("", "is empty"),
    "blank": (" \n", "is empty"),
    "truncated": (json.dumps(document(TIMES))[:-40], "is cut short"),
    "without its end": (json.dumps(document(TIMES))[:-1], "is cut short"),
    "truncated in a text": (json.dumps(document(TIMES))[:15], "is cut short"),
    "malformed": ('{"context": {,}}', "is no JSON: Expecting property name"),
    "a list": ("[1, 2]", "holds no object"),
    "nested": ("[" * 100_000, "nested too deep"),
    "endless digits": ('{"context": {"x": ' + "9" * 5000 + "}}", "is no JSON to read: Exceeds"),
    "foreign": ('{"answer": 42}', "its keys are answer"),
    "an empty object": ("{}", "its keys are none"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_text_that_is_no_result(
    kind: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, expected = TEXTS[kind]
    bad = tmp_path / "bad.json"
    bad.write_text(text, encoding="utf-8")
    for arguments in ([str(good), str(bad)], [str(bad), str(good)]):
        message = message_of(arguments, capsys)
        assert str(bad) in message
        assert expected in message


def repetition(key: str, value: object) -> Callable[[Json], object]:
    return lambda found: found["benchmarks"][0].__setitem__(key, value)


def context(key: str, value: object) -> Callable[[Json], object]:
    return lambda found: found["context"].__setitem__(key, value)


FAULTS: dict[str, tuple[Callable[[Json], object], str]] = {
    "schema": (context("schema_version", 4), "schema_version is 4, must be 3"),
    "another benchmark": (
        lambda found: found["context"].pop("schema_version"),
        "no schema_version, so it is of another benchmark",
    ),
    "no list": (lambda found: found.__setitem__("benchmarks", 3), "'benchmarks' is no list"),
    "no cases": (lambda found: found["benchmarks"].clear(), "holds no case"),
    "no object": (lambda found: found["benchmarks"].insert(0, 7), "benchmarks[0] is no object"),
    "nan": (
        repetition("real_time", float("nan")),
        f"{EMBEDDING}/manual_time: real_time nan ms, must be a positive",
    ),
    "infinite": (repetition("real_time", float("inf")), "real_time inf ms, must be a positive"),
    "zero": (repetition("real_time", 0), "real_time 0 ms, must be a positive"),
    "negative": (repetition("real_time", -1.5), "real_time -1.5 ms, must be a positive"),
    "text": (repetition("real_time", "fast"), "real_time 'fast', must be a number"),
    "a truth": (repetition("real_time", True), "real_time True, must be a number"),
    "no time": (
        lambda found: found["benchmarks"][0].pop("real_time"),
        "has no 'real_time', must be a number",
    ),
    "unit": (repetition("time_unit", "fortnight"), "time_unit 'fortnight', must be one of ns, us"),
    "counter": (repetition("TFLOPS", float("nan")), "counter TFLOPS is nan, must be finite"),
    "twice": (
        lambda found: found["benchmarks"].append(found["benchmarks"][0]),
        "repetition 0 is there 2 times",
    ),
    "twice without an index": (
        lambda found: found["benchmarks"].extend(
            [{k: v for k, v in entry("x", 1.0).items() if k != "repetition_index"}] * 2
        ),
        "x: a repetition without an index is there 2 times",
    ),
    "an index that is none": (
        lambda found: found["benchmarks"].extend([entry("x", 1.0, index=[])] * 2),
        "x: repetition [] is there 2 times",
    ),
    "a very large time": (repetition("real_time", 10**400), "real_time of 401 digits ms, must be"),
    "a very large counter": (repetition("operators", 10**400), "operators is of 401 digits, must"),
    "settings": (context("settings", "x"), "context.settings is 'x', must be an object"),
    "device": (context("device", "x"), "context.device is 'x', must be an object"),
    "peaks": (context("peaks", [1]), "context.peaks is [1], must be an object"),
    "measured": (
        context("peaks", {"measured": [1]}),
        "context.peaks.measured is [1], must be an object",
    ),
    "a peak": (
        context("peaks", {"measured": {"f32": 3}}),
        "context.peaks.measured.f32 is 3, must be an object",
    ),
    "no repetition": (
        lambda found: found["benchmarks"].append(
            entry("x", 1.0) | {"run_type": "aggregate", "aggregate_name": "cv"}
        ),
        "x: neither a repetition nor a median",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_result_with_a_fault(
    fault: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = FAULTS[fault]
    bad = write(tmp_path / "bad.json", changed(change))
    message = message_of([str(good), str(bad)], capsys)
    assert str(bad) in message
    assert expected in message


def test_binary_and_missing_files_and_folders(
    tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "is no text" in message_of([str(good), str(binary)], capsys)
    assert "cannot be read: No such file" in message_of([str(good), "absent.json"], capsys)
    assert "is a folder" in message_of([str(good), str(tmp_path)], capsys)


def test_the_same_run_twice_on_a_side(
    tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes(good.read_bytes())
    message = message_of(["--base", str(good), str(copy), "--new", str(good)], capsys)
    assert "is there 2 times among the files of the base" in message


def test_nothing_in_common(tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed = {name.replace("/f32/", "/bf16/"): seconds for name, seconds in TIMES.items()}
    other = write(tmp_path / "other.json", document(renamed))
    message = message_of([str(good), str(other)], capsys)
    assert "nothing to compare: no case is in both sides" in message
    assert "/bf16/" in message
    assert "that matches 'nothing'" in message_of(
        [str(good), str(good), "--filter", "nothing"], capsys
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "0 files: must be 2"),
        (["a.json"], "1 files: must be 2"),
        (["a", "b", "c"], "3 files: must be 2"),
        (["--base", "a"], "--new is missing"),
        (["--new", "a"], "--base is missing"),
        (["a", "--base", "b", "--new", "c"], "not both"),
    ],
)
def test_sides_that_are_not_named_in_one_way(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in message_of(arguments, capsys)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--alpha", "0", "'0': must be a number between 0 and 1"),
        ("--margin", "nan", "'nan': must be a number between 0 and 1"),
        ("--margin", "much", "'much': must be a number between 0 and 1"),
        ("--filter", "(", "is no regular expression"),
        ("--format", "pdf", "invalid choice: 'pdf'"),
    ],
)
def test_bad_options(
    option: str, value: str, expected: str, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(good), str(good), option, value])
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(good), str(good), "--output", str(good / "below")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_other_units_are_converted(tmp_path: Path) -> None:
    entries = [
        entry(name, 0.002) | {"real_time": value, "time_unit": unit}
        for name, value, unit in (
            ("a", 2e6, "ns"),
            ("b", 2e3, "us"),
            ("c", 2, "ms"),
            ("d", 2e-3, "s"),
        )
    ]
    run = read_stored(write(tmp_path / "units.json", document({}, more=entries)))
    assert [case.seconds for case in run.cases.values()] == pytest.approx([0.002] * 4)


def test_what_is_read_of_a_case(tmp_path: Path) -> None:
    more = [stopped(FFN, skipped="too large"), stopped(LOSS, failed="wrong loss")]
    more += [entry("a", 0.003, 0, operators=5), entry("a", 0.001, 1, operators=6)]
    more += [entry("a", 0.001, 2, operators=6), entry("peak/bandwidth", 1.0)]
    median = entry("b", 0.004) | {"run_type": "aggregate", "aggregate_name": "median"}
    run = read_stored(write(tmp_path / "a.json", document({}, more=[*more, median])))
    assert run.cases.keys() == {FFN, LOSS, "a", "b"}
    assert run.cases[FFN].skipped == "too large"
    assert run.cases[LOSS].failed == "wrong loss"
    assert run.cases["a"].seconds == pytest.approx(0.001)
    assert run.cases["a"].counters == {"operators": 6}
    assert run.cases["a"].varying == {"operators"}
    assert (run.cases["b"].seconds, run.cases["b"].repetitions) == (pytest.approx(0.004), 10)


MEASURED = PROJECT / "results/reference/tiny_f32_2core_xeon_avx512.json"


def test_version_units_and_keys_are_those_of_the_schema() -> None:
    schema = json.loads((PROJECT / "results/schema.json").read_text(encoding="utf-8"))
    definitions = schema["$defs"]
    assert definitions["context"]["properties"]["schema_version"]["const"] == SCHEMA_VERSION
    properties = definitions["entry"]["properties"]
    assert set(properties["time_unit"]["enum"]) == UNITS.keys()
    numbers = {n for n, rule in properties.items() if rule.get("type") in {"number", "integer"}}
    assert numbers == OWN_KEYS
    # the made-up context of these tests is no other than a real one
    assert CONTEXT.keys() <= definitions["context"]["properties"].keys()


def test_a_measured_file_is_read_as_google_benchmark_summed_it_up() -> None:
    run = read_stored(MEASURED)
    entries = json.loads(MEASURED.read_text(encoding="utf-8"))["benchmarks"]
    medians = {
        e["run_name"].removesuffix("/manual_time"): e
        for e in entries
        if e.get("aggregate_name") == "median"
    }
    assert run.cases.keys() == medians.keys()
    assert len(run.cases) > 10
    for name, case in run.cases.items():
        assert case.seconds == pytest.approx(medians[name]["real_time"] * 1e-3)
        assert case.repetitions == medians[name]["iterations"]
        assert case.counters["operators"] == medians[name]["operators"]
        rates = [
            e["samples_per_second"]
            for e in entries
            if e["run_type"] == "iteration" and e["run_name"].removesuffix("/manual_time") == name
        ]
        assert case.counters["samples_per_second"] == statistics.median(rates)
        assert "peak_memory_MiB" not in case.varying


CASES = 5000
LIMIT_S = 5.0
# the test shares its processors with others
SLACK = 3.0


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def test_two_files_of_many_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counters = {f"counter_{i}": 1.5 * i for i in range(12)}
    paths = []
    for side, factor in (("base", 1.0), ("new", 1.02)):
        times = {
            f"ffn/forward_backward/baseline/custom/f32/batch:{1 + i}/seq:128": factor * 1e-3
            for i in range(CASES)
        }
        found = document(times, counters=dict.fromkeys(times, counters))
        paths.append(str(write(tmp_path / f"{side}.json", found)))
    before = cpu_seconds()
    assert main([*paths, "--output", str(tmp_path / "out")]) == 0
    taken = cpu_seconds() - before
    assert f"{CASES} no verdict; exit status 0" in capsys.readouterr().out
    assert taken < SLACK * LIMIT_S


ABSENT, THERE = SideState(), SideState(is_measured=True)
FAILED, SKIPPED = SideState(failed="crashed"), SideState(skipped="too large")
PENDING = SideState(is_pending=True)
INTERRUPTED = (Outcome.NO_VERDICT, "interrupted before it was opened")


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        (THERE, THERE, None),
        (THERE, FAILED, (Outcome.FAILED, "crashed")),
        (THERE, SKIPPED, (Outcome.MISSING, "skipped in the new: too large")),
        (THERE, ABSENT, (Outcome.MISSING, "not in the new")),
        (ABSENT, THERE, (Outcome.ADDED, "not in the base")),
        (SKIPPED, THERE, (Outcome.ADDED, "skipped in the base: too large")),
        # it is there, and nothing shows that the new is no slower
        (FAILED, THERE, (Outcome.NO_VERDICT, "failed in the base: crashed")),
        (THERE, PENDING, INTERRUPTED),
        (PENDING, THERE, INTERRUPTED),
        (PENDING, PENDING, INTERRUPTED),
    ],
)
def test_outcomes_without_times(
    base: SideState, new: SideState, expected: tuple[Outcome, str] | None
) -> None:
    assert outcome_without_times(base, new) == expected


def test_a_stored_case_that_failed_in_the_base_has_no_verdict(tmp_path: Path) -> None:
    without = {name: seconds for name, seconds in TIMES.items() if name != FFN}
    failing = document(without, more=[stopped(FFN, failed="wrong loss")])
    base = write(tmp_path / "base.json", failing)
    found = compared([base], [write(tmp_path / "new.json", document(TIMES))])
    case = by_name(found)[FFN]
    assert (case.outcome, case.note) == (Outcome.NO_VERDICT, "failed in the base: wrong loss")
    assert found.exit_status(strict=True) == 3
