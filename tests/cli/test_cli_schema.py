"""results/schema.json can fail: it refuses results with something missing or impossible."""

import copy
from pathlib import Path

import pytest
from cli_program import FinishedRun, mappings, not_measured
from jsonschema import Draft202012Validator

from built_programs import Json, read_json
from tinyllama_tools.data.machine import SHARES
from tinyllama_tools.data.results import checked_result

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
    assert len(entries) == 3 * 6
    return copy.deepcopy({"context": smoke_run.result["context"], "benchmarks": entries})


def entry_of(result: Json, name: str) -> Json:
    return next(entry for entry in result["benchmarks"] if entry["name"] == name)


def stopped(result: Json, **reason: Json) -> Json:
    """Makes the step's first entry one that was not measured."""
    entry = entry_of(result, STEP)
    whole = not_measured(entry, **reason)
    entry.clear()
    entry.update(whole)
    return entry


def test_schema_is_a_schema_that_describes_every_property(schema: Json) -> None:
    """Where a key is defined; what only narrows it further down need not say it again."""
    Draft202012Validator.check_schema(schema)
    defined: dict[str, bool] = {}
    for node in mappings(schema):
        for kind in ("properties", "patternProperties"):
            for name, inner in node.get(kind, {}).items():
                described = isinstance(inner, dict) and bool({"description", "$ref"} & set(inner))
                defined[name] = defined.get(name, False) or described
    assert [name for name, described in defined.items() if not described] == []
    assert len(defined) > 80


def test_reference_results_are_of_this_schema(
    project_root: Path, validator: Draft202012Validator
) -> None:
    paths = (project_root / "results" / "reference").glob("*.json")
    documents = {path: read_json(path) for path in paths}
    of_the_suite = {path: found for path, found in documents.items() if "benchmarks" in found}
    assert of_the_suite
    for path, document in of_the_suite.items():
        assert not list(validator.iter_errors(checked_result(document, path)))


@pytest.mark.parametrize("name", [STEP, NORM + "_median"])
def test_a_row_above_its_peak_has_a_reason_in_place_of_shares(
    result: Json, validator: Draft202012Validator, name: str
) -> None:
    entry = entry_of(result, name)
    shares = {key: entry.pop(key) for key in SHARES if key in entry}
    assert not validator.is_valid(result)
    entry["above_peak"] = "107 % of the measured f32 peak: the time, the count or the peak is wrong"
    assert validator.is_valid(result)
    for key, value in shares.items():
        entry[key] = value
        assert not validator.is_valid(result), key
        del entry[key]


def test_missing_keys_are_refused(result: Json, validator: Draft202012Validator) -> None:
    """Whatever the program writes is demanded, but what a case, a machine or an option may lack."""
    rows = [entry_of(result, f"{STEP}{kind}") for kind in ("", "_median", "_stddev", "_cv")]
    for place in (*rows, entry_of(result, NORM), result["context"]):
        for key in set(place) - OPTIONAL:
            value = place.pop(key)
            assert not validator.is_valid(result), key
            place[key] = value
    assert validator.is_valid(result)


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
    (STEP, {"error_occurred": True, "error_message": ""}),
    (STEP, {"skipped": True, "skip_message": "s", "error_occurred": True, "error_message": "e"}),
    (STEP, {"skipped": True, "skip_message": "s", "real_time": 1.0}),
    (STEP, {"skipped": True, "skip_message": "s", "TFLOPS": 1.0}),
]


@pytest.mark.parametrize(("place", "values"), IMPOSSIBLE)
def test_impossible_result_is_refused(
    result: Json, validator: Draft202012Validator, place: str, values: Json
) -> None:
    if {"error_occurred", "skipped"} & set(values):
        stopped(result)
    found = result
    for key in place.split():
        found = found[key] if place.startswith("context") else entry_of(result, place)
    found.update(values)
    assert not validator.is_valid(result)


def test_what_was_not_measured_or_not_verified_is_accepted(
    result: Json, validator: Draft202012Validator
) -> None:
    entry = stopped(result, skipped=True, skip_message="predicted peak memory exceeds the limit")
    assert validator.is_valid(result)
    entry.update(error_occurred=True, error_message="wrong result")
    del entry["skipped"], entry["skip_message"]
    assert validator.is_valid(result)
    for entry in result["benchmarks"]:
        entry.pop("max_rel_error", None)
    assert not validator.is_valid(result)
    result["context"]["verify"] = "off"
    assert validator.is_valid(result)
