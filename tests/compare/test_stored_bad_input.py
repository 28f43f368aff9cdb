"""Bad input of a stored comparison: each fault is named with its value, and ends with status 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_samples import EMBEDDING, FFN, LOSS, TIMES, document, entry, stopped, write

from tinyllama_tools.compare.stored import read_stored
from tinyllama_tools.core.app import BadInputError
from tools import compare as main

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


def test_a_foreign_file_is_refused_by_the_reader_itself(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is no result that can be compared"):
        read_stored(write(tmp_path / "a.json", {"context": [], "benchmarks": []}))
