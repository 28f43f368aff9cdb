"""The reader of result files against the schema, and against results that were really measured."""

from __future__ import annotations

import json
import statistics

import pytest
from stored_samples import CONTEXT

from tinyllama_tools.compare.stored import read_stored
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.programs import OWN_KEYS, UNITS
from tinyllama_tools.data.results import SCHEMA_VERSION

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
