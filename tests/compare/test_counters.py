"""Counters: which way each is worse, and which are compared to the last digit."""

from __future__ import annotations

import json

import pytest

from tinyllama_tools.compare.comparison import KINDS, compare_counters, counter_change
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.programs import OWN_KEYS


@pytest.mark.parametrize("name", ["peak_memory_MiB", "allocations", "operators", "kernels"])
def test_the_least_growth_of_a_deterministic_counter_is_worse(name: str) -> None:
    change = counter_change(name, 1000.0, 1000.0000001)
    assert change.exact
    assert change.worse
    assert not change.better
    assert not counter_change(name, 1000.0, 999.0).worse
    assert counter_change(name, 1000.0, 999.0).better
    same = counter_change(name, 1000.0, 1000.0)
    assert not (same.worse or same.better)


@pytest.mark.parametrize("name", ["TFLOPS", "MFU_percent", "MFU_causal_percent", "GB_per_second"])
def test_rates_are_worse_when_they_fall_and_are_not_exact(name: str) -> None:
    assert counter_change(name, 10.0, 9.0).worse
    assert not counter_change(name, 10.0, 11.0).worse
    assert counter_change(name, 10.0, 11.0).better
    assert not counter_change(name, 10.0, 9.0).exact


def test_scratch_of_a_library_may_differ_from_run_to_run() -> None:
    assert not counter_change("library_scratch_MiB", 1.0, 2.0).exact


def test_nobody_can_say_that_an_unknown_counter_got_worse() -> None:
    change = counter_change("of_tomorrow", 1.0, 2.0)
    assert not (change.worse or change.better)
    assert not change.exact


def test_a_counter_that_varies_within_a_side_is_not_exact() -> None:
    (change,) = compare_counters({"allocations": 1.0}, {"allocations": 2.0}, {"allocations"})
    assert not change.exact


def test_the_ones_that_matter_come_first_and_those_that_a_side_lacks_are_there() -> None:
    base = {"operators": 1.0, "zeta": 1.0, "samples_per_second": 1.0, "kernels": 5.0}
    new = {"zeta": 1.0, "samples_per_second": 1.0, "operators": 1.0, "bytes": 1.0}
    changes = {change.name: change for change in compare_counters(base, new)}
    assert list(changes) == ["samples_per_second", "operators", "kernels", "bytes", "zeta"]
    assert [name for name, change in changes.items() if change.is_one_sided] == ["kernels", "bytes"]
    lost, found = changes["kernels"], changes["bytes"]
    assert (lost.base, lost.new, lost.ratio) == (5.0, None, None)
    assert (found.base, found.new, found.ratio) == (None, 1.0, None)
    assert not (lost.worse or lost.better or found.worse or found.better)


def test_a_side_without_any_counter_was_not_measured() -> None:
    assert compare_counters({"operators": 1.0}, {}) == ()
    assert compare_counters({}, {"operators": 1.0}) == ()


def test_a_ratio_over_zero_is_none() -> None:
    assert counter_change("operators", 0.0, 2.0).ratio is None
    assert counter_change("operators", 2.0, 3.0).ratio == 1.5


def test_every_counter_of_the_schema_is_known() -> None:
    schema = json.loads((PROJECT / "results/schema.json").read_text(encoding="utf-8"))
    measured = schema["$defs"]["measured"]["properties"]
    counters = {n for n, rule in measured.items() if isinstance(rule, dict) and "type" in rule}
    assert len(counters) > 20
    assert counters - OWN_KEYS <= KINDS.keys()
