"""Reading stored results: what is taken from a file, and every fault that one can have."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored_samples import (
    CONTEXT,
    EMBEDDING,
    FFN,
    LOSS,
    TIMES,
    document,
    entry,
    stopped,
    summary,
    write,
)

from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.names import OWN_KEYS, UNITS
from tinyllama_tools.data.results import SCHEMA_VERSION, read_stored
from tools import compare as main

Json = dict[str, Any]
Change = Callable[[Json], object]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good.json", document(TIMES))


def message_of(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(list(map(str, arguments))) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


WHOLE = json.dumps(document(TIMES))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (WHOLE[:-40], "is cut short"),
        (WHOLE[:-1], "is cut short"),
        (WHOLE[:15], "is cut short"),
        ('{"context": {,}}', "is no JSON: Expecting property name"),
        ("[1, 2]", "holds no object"),
        ("[" * 100_000, "is no JSON: maximum recursion"),
        ('{"context": {"x": ' + "9" * 5000 + "}}", "is no JSON: Exceeds"),
        ('{"answer": 42}', "its keys are answer"),
        ("{}", "its keys are none"),
        ("\udcff", "is no JSON: 'utf-8' codec"),
    ],
    ids=str,
)
def test_text_that_is_no_result(
    text: str, expected: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text, encoding="utf-8", errors="surrogateescape")
    for arguments in ([good, bad], [bad, good]):
        message = message_of(arguments, capsys)
        assert str(bad) in message
        assert expected in message


def repetition(key: str, value: object) -> Change:
    return lambda found: found["benchmarks"][0].__setitem__(key, value)


def context(key: str, value: object) -> Change:
    return lambda found: found["context"].__setitem__(key, value)


def more(*entries: object) -> Change:
    return lambda found: found["benchmarks"].extend(entries)


NO_INDEX = {k: v for k, v in entry("x", 1.0).items() if k != "repetition_index"}
FAULTS: list[tuple[Change, str]] = [
    (context("schema_version", 4), "schema_version is 4, must be 3"),
    (
        lambda found: found["context"].pop("schema_version"),
        "no schema_version, so it is of another benchmark",
    ),
    (lambda found: found.__setitem__("benchmarks", 3), "benchmarks: 3 is not of type 'array'"),
    (lambda found: found["benchmarks"].clear(), "holds no case"),
    (lambda found: found["benchmarks"].insert(0, 7), "benchmarks[0]: 7 is not of type 'object'"),
    (
        repetition("real_time", float("nan")),
        f"{EMBEDDING}/manual_time: real_time nan ms, must be a positive",
    ),
    (repetition("real_time", float("inf")), "real_time inf ms, must be a positive"),
    (repetition("real_time", 0), "real_time 0 ms, must be a positive"),
    (repetition("real_time", -1.5), "real_time -1.5 ms, must be a positive"),
    (repetition("real_time", "fast"), "benchmarks[0].real_time: 'fast' is not of type 'number'"),
    (repetition("real_time", True), "real_time: True is not of type 'number'"),
    (repetition("real_time", 10**400), "real_time of 401 digits ms, must be"),
    (
        lambda found: found["benchmarks"][0].pop("real_time"),
        "benchmarks[0]: 'real_time' is a required property",
    ),
    (repetition("time_unit", "fortnight"), "time_unit: 'fortnight' is not one of ['ns', 'us'"),
    (repetition("TFLOPS", float("nan")), "counter TFLOPS is nan, must be finite"),
    (repetition("operators", 10**400), "operators is of 401 digits, must"),
    (more(entry("x", 1.0), entry("x", 1.0)), "repetition 0 is there 2 times"),
    (more(NO_INDEX, NO_INDEX), "x: repetition 'unknown' is there 2 times"),
    (more(*[entry("x", 1.0, index=[])] * 2), "x: repetition [] is there 2 times"),
    (context("settings", "x"), "context.settings: 'x' is not of type 'object'"),
    (context("device", "x"), "context.device: 'x' is not of type 'object'"),
    (context("weights", 3), "context.weights: 3 is not of type 'object'"),
    (context("peaks", [1]), "context.peaks: [1] is not of type 'object'"),
    (context("peaks", {"measured": [1]}), "context.peaks.measured: [1] is not of type"),
    (context("peaks", {"measured": {"f32": 3}}), "context.peaks.measured.f32: 3 is not of"),
    (
        more(entry("x", 1.0) | {"run_type": "aggregate", "aggregate_name": "cv"}),
        "x: neither a repetition nor a median",
    ),
]


@pytest.mark.parametrize(("change", "expected"), FAULTS, ids=[fault[1] for fault in FAULTS])
def test_a_result_with_a_fault(
    change: Change, expected: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(TIMES)
    change(found)
    bad = write(tmp_path / "bad.json", found)
    message = message_of([good, bad], capsys)
    assert str(bad) in message
    assert expected in message


def test_files_that_cannot_be_compared(
    tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = write(tmp_path / "copy.json", json.loads(good.read_text(encoding="utf-8")))
    renamed = {name.replace("/f32/", "/bf16/"): seconds for name, seconds in TIMES.items()}
    other = write(tmp_path / "other.json", document(renamed))
    training = write(tmp_path / "training.json", summary())
    twice = "is there 2 times among the files of the base"
    nothing = "nothing to compare: no case is in both sides"
    for arguments, expected in (
        ([good, "absent.json"], "cannot be read: No such file"),
        ([good, tmp_path], "is a folder"),
        (["--base", good, copy, "--new", good], twice),
        ([good, other], nothing),
        ([good, good, "--filter", "nothing"], "that matches 'nothing'"),
        ([training, good], "is of tiny_llama_train"),
        ([], "0 files"),
        ([good], "1 files"),
        ([good, good, good], "3 files"),
        (["--base", good], "0 of --new"),
        (["--new", good], "0 of --base"),
        ([good, good, "--base", good, "--new", good], "either BASE.json NEW.json, or --base"),
    ):
        assert expected in message_of(arguments, capsys)
    assert main([str(good), str(good), "--output", str(good / "below")]) == 2
    assert "cannot be written" in capsys.readouterr().err


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


def test_what_is_read_of_a_case(tmp_path: Path) -> None:
    entries = [stopped(FFN, skipped="too large"), stopped(LOSS, failed="wrong loss")]
    entries += [entry("a", 0.003, 0, operators=5), entry("a", 0.001, 1, operators=6)]
    entries += [entry("a", 0.001, 2, operators=6), entry("peak/bandwidth", 1.0)]
    entries += [entry("b", 0.004) | {"run_type": "aggregate", "aggregate_name": "median"}]
    units = {"ns": 2e6, "us": 2e3, "s": 2e-3}
    entries += [entry(u, 1.0) | {"real_time": x, "time_unit": u} for u, x in units.items()]
    cases = read_stored(write(tmp_path / "a.json", document({}, more=entries))).cases
    assert cases.keys() == {FFN, LOSS, "a", "b", *units}
    assert (cases[FFN].skipped, cases[LOSS].failed) == ("too large", "wrong loss")
    assert cases["a"].seconds == pytest.approx(0.001)
    assert (cases["a"].counters, cases["a"].varying) == ({"operators": 6}, {"operators"})
    assert (cases["b"].seconds, cases["b"].repetitions) == (pytest.approx(0.004), 10)
    assert [cases[unit].seconds for unit in units] == pytest.approx([0.002] * 3)


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
    measured = PROJECT / "results/reference/tiny_f32_2core_xeon_avx512.json"
    run = read_stored(measured)
    entries = json.loads(measured.read_text(encoding="utf-8"))["benchmarks"]
    medians, rates = {}, {}
    for e in entries:
        name = e["run_name"].removesuffix("/manual_time")
        if e.get("aggregate_name") == "median":
            medians[name] = e
        elif e["run_type"] == "iteration" and "samples_per_second" in e:
            rates.setdefault(name, []).append(e["samples_per_second"])
    assert run.cases.keys() == medians.keys()
    assert len(run.cases) > 10
    for name, case in run.cases.items():
        assert case.seconds == pytest.approx(medians[name]["real_time"] * 1e-3)
        assert case.repetitions == medians[name]["iterations"]
        assert case.counters["operators"] == medians[name]["operators"]
        assert case.counters["samples_per_second"] == statistics.median(rates[name])
        assert "peak_memory_MiB" not in case.varying


def test_a_summary_is_read_as_the_step_and_its_phases(tmp_path: Path) -> None:
    found = summary()
    found["steps"][-1]["time_seconds"] = 1e3
    # profiled steps do not count
    found["steps"][3] |= {"profiled": True, "time_seconds": 1e6}
    times = [step["time_seconds"] for step in found["steps"][1:] if not step["profiled"]]
    cases = read_stored(write(tmp_path / "a.json", found)).cases
    step = cases["training/step"]
    assert step.seconds == statistics.median(times) < 1
    assert step.repetitions == len(times) == len(found["steps"]) - 2
    assert {"training/forward", "training/backward", "training/optimizer"} <= cases.keys()
    assert step.counters["samples_per_second"] == found["summary"]["samples_per_second"]
    assert step.counters["peak_memory_MiB"] == found["summary"]["peak_memory_bytes"] / 2**20
    found["steps"] = [one | {"profiled": True} for one in found["steps"]]
    run = read_stored(write(tmp_path / "b.json", found))
    assert "every step was profiled" in run.warnings[0]


def faulty(**step: object) -> Json:
    found = summary()
    return found | {"steps": [first | step for first in found["steps"]]}


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (faulty(time_seconds=float("inf")), "steps[19].time_seconds: inf is not of type"),
        (faulty(time_seconds=10**400), "0000 is not of type 'number'"),
        (faulty(time_seconds=float("nan")), "NaN"),
        (faulty(time_seconds=-1.0), "-1.0 is less than the minimum of 0"),
        (faulty(time_seconds=0.0), "time_seconds of a step is 0.0, must be positive"),
        (summary() | {"schema_version": 9}, "schema_version is 9, must be 1"),
        (summary() | {"steps": []}, "has no step"),
        (summary() | {"model": {}}, "'total_parameters' is a required property"),
    ],
)
def test_a_bad_summary(
    bad: Json, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "bad.json", bad)
    message = message_of([write(tmp_path / "good.json", summary()), path], capsys)
    assert expected in message
    assert str(path) in message
