"""results/schema.json can fail: it refuses results with something missing or impossible."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_program import FinishedRun, Json, read_json
from jsonschema import Draft202012Validator

from tinyllama_tools.data.machine import SHARES
from tinyllama_tools.data.results import checked_result

STEP = "full_step/train/baseline/custom/bf16/batch:2/seq:8/manual_time"
NORM = "rms_norm/forward/baseline/custom/f32/batch:2/seq:8/manual_time"
PEAK = "peak/gemm/f32/manual_time"
EVERYWHERE = [
    "samples_per_second",
    "tokens_per_second",
    "GB_per_second",
    "roof_percent",
    "parameters",
    "model_flops",
    "causal_flops",
    "hardware_flops",
    "counted_flops",
    "lookup_flops",
    "opaque_flops",
    "elementwise_flops",
    "bytes",
    "flop_per_byte",
    "peak_memory_MiB",
    "predicted_memory_MiB",
    "allocations",
    "operators",
    "max_rel_error",
]
OF_PRODUCTS = ["TFLOPS", "MFU_percent", "MFU_causal_percent", "peak_percent"]
CONTEXT = [
    "schema_version",
    "git_commit",
    "git_dirty",
    "device",
    "torch_version",
    "threads",
    "seed",
    "verify",
    "cold_cache",
    "memory_source",
    "settings",
    "peaks",
    "library_build_type",
    "date",
]


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
    kept = "name family_index per_family_instance_index run_name run_type repetitions threads"
    shape = {key: entry[key] for key in [*kept.split(), "repetition_index", "time_unit"]}
    times = {"iterations": 0, "real_time": 0.0, "cpu_time": 0.0}
    entry.clear()
    entry.update(shape | times | reason)
    return entry


def test_schema_is_a_schema(schema: Json) -> None:
    Draft202012Validator.check_schema(schema)


def test_every_property_is_described(schema: Json) -> None:
    """Where a key is defined; what only narrows it further down need not say it again."""
    defined: dict[str, bool] = {}

    def visit(node: Any) -> None:  # noqa: ANN401 - any part of a schema
        if isinstance(node, list):
            for inner in node:
                visit(inner)
        if not isinstance(node, dict):
            return
        for kind in ("properties", "patternProperties"):
            for name, inner in node.get(kind, {}).items():
                described = isinstance(inner, dict) and ("description" in inner or "$ref" in inner)
                defined[name] = defined.get(name, False) or described
        for inner in node.values():
            visit(inner)

    visit(schema)
    assert [name for name, described in defined.items() if not described] == []
    assert len(defined) > 80


def test_unchanged_result_is_accepted(result: Json, validator: Draft202012Validator) -> None:
    assert validator.is_valid(result)


def test_reference_results_are_of_this_schema(
    project_root: Path, validator: Draft202012Validator
) -> None:
    """As their readers see them: they were measured before version 3."""
    paths = (project_root / "results" / "reference").glob("*.json")
    references = {path: read_json(path.read_text(encoding="utf-8")) for path in paths}
    of_the_suite = {path: found for path, found in references.items() if "benchmarks" in found}
    assert of_the_suite
    for path, reference in of_the_suite.items():
        assert not list(validator.iter_errors(checked_result(reference, path)))


@pytest.mark.parametrize("name", [STEP, NORM])
@pytest.mark.parametrize("suffix", ["", "_median", "_stddev", "_cv"])
def test_a_row_above_its_peak_has_a_reason_in_place_of_shares(
    result: Json, validator: Draft202012Validator, name: str, suffix: str
) -> None:
    entry = entry_of(result, name + suffix)
    shares = {key: entry.pop(key) for key in SHARES if key in entry}
    assert not validator.is_valid(result)
    entry["above_peak"] = "107 % of the measured f32 peak: the time, the count or the peak is wrong"
    assert validator.is_valid(result)
    for key, value in shares.items():
        entry[key] = value
        assert not validator.is_valid(result), key
        del entry[key]


@pytest.mark.parametrize("counter", [*EVERYWHERE, *OF_PRODUCTS])
def test_missing_counter_is_refused(
    result: Json, validator: Draft202012Validator, counter: str
) -> None:
    for suffix in ("", "_mean", "_median", "_stddev", "_cv"):
        changed = copy.deepcopy(result)
        del entry_of(changed, STEP + suffix)[counter]
        assert not validator.is_valid(changed), suffix


@pytest.mark.parametrize("counter", EVERYWHERE)
def test_missing_counter_of_a_case_without_products_is_refused(
    result: Json, validator: Draft202012Validator, counter: str
) -> None:
    del entry_of(result, NORM)[counter]
    assert not validator.is_valid(result)


def test_counters_of_products_where_there_are_none_are_refused(
    result: Json, validator: Draft202012Validator
) -> None:
    entry_of(result, NORM)["MFU_percent"] = 50.0
    assert not validator.is_valid(result)


@pytest.mark.parametrize("key", CONTEXT)
def test_missing_context_is_refused(
    result: Json, validator: Draft202012Validator, key: str
) -> None:
    del result["context"][key]
    assert not validator.is_valid(result)


Change = Callable[[Json], object]
IMPOSSIBLE: dict[str, Change] = {
    "negative time": lambda r: entry_of(r, STEP).update(real_time=-1.0),
    "no time": lambda r: entry_of(r, STEP).update(real_time=0.0),
    "time as text": lambda r: entry_of(r, STEP).update(real_time="1.0"),
    "null where NaN was": lambda r: entry_of(r, STEP).update(TFLOPS=None),
    "null in a cv": lambda r: entry_of(r, STEP + "_cv").update(bytes=None),
    "half an allocation": lambda r: entry_of(r, STEP).update(allocations=0.5),
    "no operator": lambda r: entry_of(r, STEP).update(operators=0),
    "far above the peak": lambda r: entry_of(r, STEP).update(peak_percent=106.0),
    "above its peak without a reason": lambda r: entry_of(r, STEP).update(above_peak=""),
    "FLOPs of version 2": lambda r: entry_of(r, STEP).update(useful_flops=1),
    "peaks of version 2": lambda r: r["context"]["peaks"].update(superseded=[]),
    "far above the roof": lambda r: entry_of(r, STEP).update(roof_percent=120.0),
    "speedup of zero": lambda r: entry_of(r, STEP).update(speedup=0.0),
    "negative error": lambda r: entry_of(r, STEP).update(max_rel_error=-1e-9),
    "no product in a step": lambda r: entry_of(r, STEP).update(model_flops=0),
    "unknown counter": lambda r: entry_of(r, STEP).update(GFLOPS=1.0),
    "unknown unit": lambda r: entry_of(r, STEP).update(time_unit="min"),
    "unknown statistic": lambda r: entry_of(r, STEP + "_cv").update(aggregate_name="best"),
    "repetition without number": lambda r: entry_of(r, STEP).pop("repetition_index"),
    "malformed component": lambda r: entry_of(r, NORM).update(run_name="Nose/" + NORM[9:]),
    "unknown pass": lambda r: entry_of(r, NORM).update(run_name=NORM.replace("forward", "up")),
    "case without batch": lambda r: entry_of(r, NORM).update(run_name=NORM.split("/batch")[0]),
    "unknown peak": lambda r: entry_of(r, PEAK).update(run_name="peak/gemm/f8"),
    "peak without figure": lambda r: entry_of(r, PEAK).pop("TFLOPS"),
    "peak without source": lambda r: entry_of(r, PEAK).pop("label"),
    "older schema": lambda r: r["context"].update(schema_version=2),
    "no device name": lambda r: r["context"]["device"].update(name=""),
    "unknown backend": lambda r: r["context"]["device"].update(backend="tpu"),
    "peak of zero": lambda r: r["context"]["peaks"]["measured"]["f32"].update(flops_per_second=0),
    "peak of nowhere": lambda r: r["context"]["peaks"]["measured"]["f32"].pop("source"),
    "no bandwidth": lambda r: r["context"]["peaks"]["measured"].pop("cache_bandwidth"),
    "datasheet of nowhere": lambda r: r["context"]["peaks"].update(datasheet={"device": "x"}),
    "MFU against nothing": lambda r: r["context"]["peaks"].pop("mfu_is_against"),
    "GPU without kernels": lambda r: r["context"]["device"].update(backend="hip"),
    "entries as object": lambda r: r.update(benchmarks={}),
    "skip without reason": lambda r: stopped(r, skipped=True),
    "failure without reason": lambda r: stopped(r, error_occurred=True, error_message=""),
    "skipped and failed": lambda r: stopped(
        r, skipped=True, skip_message="s", error_occurred=True, error_message="e"
    ),
    "skipped and fast": lambda r: stopped(r, skipped=True, skip_message="s").update(real_time=1.0),
    "skipped with counters": lambda r: stopped(r, skipped=True, skip_message="s").update(bytes=1),
}


@pytest.mark.parametrize("change", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_impossible_result_is_refused(
    result: Json, validator: Draft202012Validator, change: Change
) -> None:
    change(result)
    assert not validator.is_valid(result)


def test_skipped_and_failed_cases_are_accepted(
    result: Json, validator: Draft202012Validator
) -> None:
    stopped(result, skipped=True, skip_message="predicted peak memory exceeds the limit")
    assert validator.is_valid(result)
    entry_of(result, STEP).update(error_occurred=True, error_message="wrong result")
    del entry_of(result, STEP)["skipped"], entry_of(result, STEP)["skip_message"]
    assert validator.is_valid(result)


def test_error_may_be_missing_only_without_verification(
    result: Json, validator: Draft202012Validator
) -> None:
    for entry in result["benchmarks"]:
        entry.pop("max_rel_error", None)
    assert not validator.is_valid(result)
    result["context"]["verify"] = "off"
    assert validator.is_valid(result)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_reader_refuses_what_json_does_not_have(smoke_run: FinishedRun, constant: str) -> None:
    text = json.dumps(smoke_run.result)
    time = json.dumps(entry_of(smoke_run.result, STEP)["real_time"])
    assert time in text
    with pytest.raises(ValueError, match="is not"):
        read_json(text.replace(time, constant, 1))
