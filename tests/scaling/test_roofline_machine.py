"""The measured machine: peaks, and the bandwidth that traffic of a size can see."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from result_documents import document
from roofline_sets import CACHE, CACHE_BYTES, MEMORY, PEAK, context, name_of

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.machine import Machine, product_type
from tinyllama_tools.data.names import OWN_KEYS, UNITS
from tinyllama_tools.data.results import MeasuredCase
from tinyllama_tools.models.roofline import point_of

DOCUMENT = document()
# those whose counters belong to their time: means and deviations do not
ROWS = [
    row
    for row in DOCUMENT["benchmarks"]
    if row["run_type"] == "iteration" or row.get("aggregate_name") == "median"
]


def test_it_has_what_was_measured() -> None:
    machine = Machine.from_context(context(f32=PEAK, bf16=4 * PEAK))
    assert machine == Machine({"f32": PEAK, "bf16": 4 * PEAK}, MEMORY, CACHE, CACHE_BYTES)


def test_memory_is_unknown_where_all_cases_fit_into_the_cache() -> None:
    without_memory = context(f32=PEAK)
    del without_memory["peaks"]["measured"]["memory_bandwidth"]
    machine = Machine.from_context(without_memory)
    assert machine.memory_bandwidth is None
    assert machine.attainable_bandwidth(2 * CACHE_BYTES) == pytest.approx(CACHE)
    with pytest.raises(BadInputError, match="add peak to its --components"):
        machine.attainable_bandwidth(2 * CACHE_BYTES + 1)


def test_traffic_within_twice_the_cache_sees_its_bandwidth() -> None:
    machine = Machine({}, MEMORY, CACHE, CACHE_BYTES)
    assert machine.attainable_bandwidth(1) == pytest.approx(CACHE)
    assert machine.attainable_bandwidth(2 * CACHE_BYTES) == pytest.approx(CACHE)
    # half of it from the cache, half from memory
    seconds = 2 * CACHE_BYTES / CACHE + 2 * CACHE_BYTES / MEMORY
    assert machine.traffic_seconds(4 * CACHE_BYTES) == pytest.approx(seconds)
    assert machine.attainable_bandwidth(1e15) == pytest.approx(MEMORY, rel=1e-6)
    assert machine.traffic_seconds(0) == 0


def test_a_cache_of_unknown_size_holds_nothing() -> None:
    found = context()
    found["device"]["last_level_cache_bytes"] = 0
    assert Machine.from_context(found).attainable_bandwidth(8) == pytest.approx(MEMORY)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("peaks",), None, "'peaks' is None, must be an object"),
        (("peaks", "measured"), [], r"'measured' is \[\], must be an object"),
        (("peaks", "measured", "memory_bandwidth"), None, "memory_bandwidth.bytes_per_second"),
        (("peaks", "measured", "f32"), {"flops_per_second": 0}, "f32.flops_per_second is 0"),
        (("peaks", "measured", "f32"), {"flops_per_second": float("nan")}, "is nan"),
        (("peaks", "measured", "f32"), {"flops_per_second": "1"}, "is '1'"),
        (("peaks", "measured", "f32"), {"flops_per_second": 10**400}, "is of 401 digits"),
        (("device", "last_level_cache_bytes"), -1, "last_level_cache_bytes is -1"),
        (("device", "last_level_cache_bytes"), 10**400, "last_level_cache_bytes is of 401 digits"),
    ],
)
def test_a_context_without_a_rate_is_refused(
    path: tuple[str, ...], value: object, words: str
) -> None:
    found = copy.deepcopy(context())
    parent: Any = found
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(BadInputError, match=words):
        Machine.from_context(found)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("f32", "f32"), ("bf16", "bf16"), ("amp_bf16", "bf16")]
)
def test_autocast_multiplies_in_its_narrow_type(dtype: str, expected: str) -> None:
    assert product_type(dtype) == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"].replace("/manual_time", ""))
def test_it_reproduces_what_the_suite_wrote(row: dict[str, Any]) -> None:
    numbers = (int, float)
    counters = {k: v for k, v in row.items() if type(v) in numbers and k not in OWN_KEYS}
    name = name_of(row["run_name"].removesuffix("/manual_time"))
    seconds = row["real_time"] * UNITS[row["time_unit"]]
    measured = MeasuredCase(name, (seconds,), counters, row.get("label", ""))
    point = point_of(measured, Machine.from_context(DOCUMENT["context"]), None)
    assert not isinstance(point, str)
    assert point.percent == pytest.approx(row["roof_percent"], rel=1e-6)
    assert point.flops_per_second / point.attainable == pytest.approx(point.percent / 100)
