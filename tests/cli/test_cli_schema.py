"""results/schema.json can fail: it refuses results with something missing or impossible."""

import copy
from pathlib import Path

import pytest
from cli_program import not_measured
from jsonschema import Draft202012Validator

from built_programs import FinishedRun, Json, read_json
from tinyllama_tools.data.machine import SHARES

STEP = "full_step/train/baseline/custom/bf16/batch:2/seq:8/manual_time"
NORM = "rms_norm/forward/baseline/custom/f32/batch:2/seq:8/manual_time"
PEAK = "peak/gemm/f32/manual_time"
# of a row, and of the context
OPTIONAL = {
    *("label", "median_ns", "median_interval_ns", "samples_ns", "speedup", "library_scratch_MiB"),
    *("load_avg", "sizes", "weights"),
}


@pytest.fixture
def result(smoke_run: FinishedRun) -> Json:
    """One case of each kind, so that hundreds of checks stay quick."""
    runs = {STEP, NORM, PEAK}
    entries = [e for e in smoke_run.result["benchmarks"] if e["run_name"] in runs]
    return copy.deepcopy({"context": smoke_run.result["context"], "benchmarks": entries})


def entry_of(result: Json, name: str) -> Json:
    return next(entry for entry in result["benchmarks"] if entry["name"] == name)


def test_published_results_are_of_this_schema(
    project_root: Path, validator: Draft202012Validator
) -> None:
    Draft202012Validator.check_schema(validator.schema)
    documents = {path: read_json(path) for path in project_root.glob("results/reference/*.json")}
    of_the_suite = [path for path, found in documents.items() if "benchmarks" in found]
    assert of_the_suite
    assert [path for path in of_the_suite if not validator.is_valid(documents[path])] == []


def test_missing_keys_are_refused(result: Json, validator: Draft202012Validator) -> None:
    """Whatever the program writes is demanded, but what a case, a machine or an option may lack."""
    rows = [entry_of(result, f"{STEP}{kind}") for kind in ("", "_median", "_stddev", "_cv")]
    for place in (*rows, entry_of(result, NORM), result["context"]):
        for key in set(place) - OPTIONAL:
            value = place.pop(key)
            assert not validator.is_valid(result), key
            place[key] = value
    assert validator.is_valid(result)


SKIPPED = {"skipped": True, "skip_message": "predicted peak memory exceeds the limit"}
FAILED = {"error_occurred": True, "error_message": "wrong result"}
ABOVE = "107 % of the measured f32 peak: the time, the count or the peak is wrong"
# What is put into a row of that name, or into that place of the context.
IMPOSSIBLE: list[tuple[str, Json]] = [
    (STEP, {"real_time": -1.0}),
    (STEP + "_cv", {"bytes": None}),
    (STEP, {"peak_percent": 106.0}),
    (STEP, {"max_rel_error": -1e-9}),
    (STEP, {"GFLOPS": 1.0}),
    (STEP + "_cv", {"GFLOPS": "x"}),
    (PEAK, {"speedup": 1.0}),
    (STEP + "_cv", {"aggregate_name": "best"}),
    (NORM, {"MFU_percent": 50.0}),
    (NORM, {"run_name": "Nose/" + NORM[9:]}),
    (PEAK, {"run_name": "peak/gemm/f8"}),
    ("context", {"schema_version": 2}),
    ("context device", {"backend": "tpu"}),
    # which has to say what its kernels were built for
    ("context device", {"backend": "hip"}),
    ("context peaks measured f32", {"flops_per_second": 0}),
    # in place of its shares
    (STEP, {"above_peak": ABOVE}),
    (NORM + "_median", {"above_peak": ABOVE}),
    (STEP, FAILED | {"error_message": ""}),
    (STEP, SKIPPED | FAILED),
    (STEP, SKIPPED | {"real_time": 1.0}),
    (STEP, SKIPPED | {"TFLOPS": 1.0}),
]


def put(result: Json, place: str, values: Json) -> None:
    found = result if place.startswith("context") else {place: entry_of(result, place)}
    for key in place.split():
        found = found[key]
    if {"error_occurred", "skipped"} & set(values):
        values = not_measured(found, **values)
        found.clear()
    found.update(values)


@pytest.mark.parametrize(("place", "values"), IMPOSSIBLE)
def test_impossible_result_is_refused(
    result: Json, validator: Draft202012Validator, place: str, values: Json
) -> None:
    put(result, place, values)
    assert not validator.is_valid(result)


def test_what_was_not_measured_not_verified_or_above_its_peak_is_accepted(
    result: Json, validator: Draft202012Validator
) -> None:
    for reason in (SKIPPED, FAILED):
        stopped = copy.deepcopy(result)
        put(stopped, STEP, reason)
        assert validator.is_valid(stopped)
    for key in SHARES:
        entry_of(result, STEP).pop(key, None)
    assert not validator.is_valid(result)
    put(result, STEP, {"above_peak": ABOVE})
    assert validator.is_valid(result)
    for entry in result["benchmarks"]:
        entry.pop("max_rel_error", None)
    assert not validator.is_valid(result)
    result["context"]["verify"] = "off"
    assert validator.is_valid(result)
