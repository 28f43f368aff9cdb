"""What one device can do at best, as a run of the suite measured it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.json_file import MEASURE_AGAIN
from tinyllama_tools.reading.json_number import is_number, shown

MEMORY_BANDWIDTH, CACHE_BANDWIDTH = BANDWIDTHS = ("memory_bandwidth", "cache_bandwidth")
AUTOCAST = "amp_"
FLOPS, BYTES = "flops_per_second", "bytes_per_second"


def unit_of(peak: str) -> str:
    """The key that a measured peak's rate is under."""
    return BYTES if peak in BANDWIDTHS else FLOPS


def is_rate(value: object) -> bool:
    """Whether it can be a peak."""
    return is_number(value) and value > 0


def product_type(dtype: str) -> str:
    """The type that matrix products of this dtype run in: `amp_bf16` -> `bf16`."""
    return dtype.removeprefix(AUTOCAST)


@dataclass(frozen=True)
class Machine:
    """`peak_flops`: FLOP/s of matrix products by type; bandwidths in bytes/s, memory's None where
    all cases of the run fit into the cache; `cache_bytes`: of the last-level cache, 0 where the
    device does not tell."""

    peak_flops: Mapping[str, float]
    memory_bandwidth: float | None
    cache_bandwidth: float
    cache_bytes: int

    def attainable_bandwidth(self, bytes_moved: float) -> float:
        """Bytes/s that so much traffic (> 0) can see at best, over and over.

        As the suite's attainable_bandwidth (benchmarks/instruments/bandwidth.cpp): what stayed in
        the last-level cache since the last iteration saves a read and a write of it. BadInputError
        for traffic beyond it where memory's bandwidth was not measured.
        """
        cached = min(bytes_moved, 2 * self.cache_bytes)
        if cached == bytes_moved:
            return self.cache_bandwidth
        if self.memory_bandwidth is None:
            raise BadInputError(
                f"traffic of {bytes_moved:.3g} bytes is more than fits into the last-level cache, "
                "and memory's bandwidth was not measured, since all cases of this run fit; add "
                "peak to its --components"
            )
        return bytes_moved / (
            (bytes_moved - cached) / self.memory_bandwidth + cached / self.cache_bandwidth
        )

    def traffic_seconds(self, bytes_moved: float) -> float:
        """The least time for that traffic; 0 for none."""
        return bytes_moved / self.attainable_bandwidth(bytes_moved) if bytes_moved > 0 else 0.0

    @classmethod
    def from_context(cls, context: Mapping[str, Any]) -> Machine:
        """Of a result file's context. BadInputError naming the key that is missing or no rate."""
        measured = _object(_object(context, "peaks"), "measured")
        rates = {name: _rate(name, measured) for name in {**measured, CACHE_BANDWIDTH: None}}
        memory, cache = rates.pop(MEMORY_BANDWIDTH, None), rates.pop(CACHE_BANDWIDTH)
        cache_bytes = _object(context, "device").get("last_level_cache_bytes") or 0
        if not is_number(cache_bytes) or cache_bytes < 0:
            raise BadInputError(
                f"context.device.last_level_cache_bytes is {shown(cache_bytes)}, must be a number "
                f"of bytes; {MEASURE_AGAIN}"
            )
        return cls(rates, memory, cache, int(cache_bytes))


def _object(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = parent.get(key)
    if not isinstance(found, Mapping):
        raise BadInputError(f"context: '{key}' is {found!r}, must be an object; {MEASURE_AGAIN}")
    return found


def _rate(name: str, measured: Mapping[str, Any]) -> float:
    unit, peak = unit_of(name), measured.get(name)
    value = peak.get(unit) if isinstance(peak, Mapping) else None
    if not is_rate(value):
        raise BadInputError(
            f"context.peaks.measured.{name}.{unit} is {shown(value)}, must be a positive, finite "
            f"number; {MEASURE_AGAIN}"
        )
    return float(value)
