"""What a device can do at best, as measured, and which results may be put together.

The peaks of several files as one: of each the best that was measured, with where it is from.

A peak says what the device can do, so the best of all rounds is the denominator of every round's
percentages; a lower one would put another round's case above 100 %.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyllama_tools.core.app import MEASURE_AGAIN, BadInputError, is_number, shown_value
from tinyllama_tools.data.names import CaseName, StoredCase

Context = Mapping[str, Any]
Keys = Sequence[tuple[str, ...]]
# A time of one is a time of the other's device.
SAME_DEVICE: Keys = (
    ("device", "name"),
    ("device", "architecture"),
    ("device", "backend"),
    ("threads",),
)
# Rates and peaks of one hold for the other.
SAME_MACHINE: Keys = (
    *SAME_DEVICE,
    ("device", "driver_version"),
    ("device", "runtime_version"),
    ("torch_version",),
)
# Rounds of one run. Of `settings`, every one that either has: precision of products, affinity,
# clocks, variables of the environment.
SAME_RUN: Keys = (
    *SAME_MACHINE,
    ("git_commit",),
    ("git_dirty",),
    ("cold_cache",),
    ("memory_source",),
    ("settings",),
)


@dataclass(frozen=True)
class Difference:
    """`name`: the key with dots, as in the file."""

    name: str
    here: object
    there: object


def value_at(context: Context, keys: Sequence[str]) -> object:
    """None where a context does not say it."""
    found: object = context
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _differences(name: str, here: object, there: object) -> Iterator[Difference]:
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in dict.fromkeys((*here, *there)):
            yield from _differences(f"{name}.{key}", here.get(key), there.get(key))
    elif here != there:
        yield Difference(name, here, there)


def first_difference(here: Context, there: Context, keys: Keys) -> Difference | None:
    """The first of the keys that two contexts do not say the same of; None where all agree."""
    for path in keys:
        for found in _differences(".".join(path), value_at(here, path), value_at(there, path)):
            return found
    return None


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
    """The type that GEMMs of this dtype run in: `amp_bf16` -> `bf16`."""
    return dtype.removeprefix(AUTOCAST)


@dataclass(frozen=True)
class Machine:
    """`peak_flops`: FLOP/s of GEMMs by type; bandwidths in bytes/s, memory's None where
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
                f"context.device.last_level_cache_bytes is {shown_value(cache_bytes)}, must be a "
                f"number of bytes; {MEASURE_AGAIN}"
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
            f"context.peaks.measured.{name}.{unit} is {shown_value(value)}, must be a positive, "
            f"finite number; {MEASURE_AGAIN}"
        )
    return float(value)


# what Google Benchmark appends where the number of iterations is fixed
ITERATIONS = "/iterations:"
# peak/gemm/f32/1024x256x512, or peak/gemm/f32/64x128x128x32: so many products at once
PRODUCT = re.compile(
    rf"peak/gemm/(?P<type>[^/]+)/(?:(?P<batch>\d+)x)?(\d+)x(\d+)x(\d+)(?:{ITERATIONS}\d+)?"
)
TERA = 1e12


@dataclass(frozen=True)
class ProductRate:
    """The best that `batch` products [m, k] x [k, n] at once reach on this device."""

    type_name: str
    batch: int
    m: int
    n: int
    k: int
    flops_per_second: float
    source: str

    @property
    def name(self) -> str:
        """Of its row."""
        batch = f"{self.batch}x" if self.batch != 1 else ""
        return f"peak/gemm/{self.type_name}/{batch}{self.m}x{self.n}x{self.k}"


def product_rate(name: str, row: StoredCase) -> ProductRate | None:
    """None for a row that measures something else, and for one without a rate."""
    found = PRODUCT.fullmatch(name)
    rate = row.counters.get("TFLOPS")
    if found is None or rate is None or rate <= 0:
        return None
    m, n, k = (int(text) for text in found.groups()[2:])
    return ProductRate(found["type"], int(found["batch"] or 1), m, n, k, rate * TERA, row.label)


def best_products(products: Iterable[ProductRate]) -> tuple[ProductRate, ...]:
    """Of each shape its best rate: it is what the device can do."""
    best: dict[str, ProductRate] = {}
    for product in products:
        known = best.get(product.name)
        if known is None or known.flops_per_second < product.flops_per_second:
            best[product.name] = product
    return tuple(best.values())


SHARES = ("MFU_percent", "MFU_causal_percent", "peak_percent", "roof_percent")
# Percent of a measured peak: a row above it has no shares, since something in it is wrong.
LARGEST_SHARE = 105.0
Peak = Mapping[str, Any]


def _measured(context: Context) -> Mapping[str, Peak]:
    found = value_at(context, ("peaks", "measured"))
    return found if isinstance(found, Mapping) else {}


def _datasheet(context: Context, type_name: str) -> float:
    """Infinity where it is not known."""
    found = value_at(context, ("peaks", "datasheet", FLOPS, type_name))
    return float(found) if is_rate(found) else math.inf


def _raised(
    peaks: dict[str, Peak], context: Context, products: Sequence[ProductRate], warnings: list[str]
) -> None:
    """By products that beat the peak of their type; not above what the datasheet allows."""
    for product in products:
        peak, rate = peaks.get(product.type_name), product.flops_per_second
        if peak is None or rate <= peak[FLOPS]:
            continue
        limit = _datasheet(context, product.type_name)
        if rate > limit:
            warnings.append(
                f"{product.name}: {rate / TERA:.4g} TFLOP/s is above the datasheet's "
                f"{limit / TERA:.4g}: it is no peak of {product.type_name} GEMMs"
            )
        else:
            peaks[product.type_name] = {FLOPS: rate, "source": product.source or product.name}


def merged_peaks(
    contexts: Sequence[Context], products: Sequence[ProductRate] = ()
) -> tuple[Context, tuple[str, ...]]:
    """The first context with the best peaks of all and of the products; and warnings.

    A peak that is no positive, finite number is left out, which a warning says.
    """
    peaks: dict[str, Peak] = {}
    warnings: list[str] = []
    for context in contexts:
        for name, peak in _measured(context).items():
            unit = unit_of(name)
            value = peak.get(unit)
            if not is_rate(value):
                warnings.append(
                    f"context.peaks.measured.{name}.{unit} is {shown_value(value)}, must be a "
                    "positive, finite number: left out"
                )
            elif name not in peaks or peaks[name][unit] < value:
                peaks[name] = peak
    _raised(peaks, contexts[0], products, warnings)
    first = contexts[0]
    if "peaks" not in first:
        return first, tuple(warnings)
    whole = {**(first.get("peaks") or {}), "measured": peaks}
    return {**first, "peaks": whole}, tuple(dict.fromkeys(warnings))


@dataclass(frozen=True)
class ProductPeaks:
    """FLOP/s of GEMMs of one type. `measured`: what peak_percent and the roofline are
    of; `of_mfu`: what MFU is of, the datasheet's where it is known."""

    measured: float
    of_mfu: float


def product_peaks(context: Context, machine: Machine, type_name: str) -> ProductPeaks | None:
    """None where no peak of that type was measured."""
    measured = machine.peak_flops.get(type_name)
    if measured is None:
        return None
    limit = _datasheet(context, type_name)
    return ProductPeaks(measured, limit if math.isfinite(limit) else measured)


def shares(
    costs: Mapping[str, float], rate: float, peaks: ProductPeaks | None, machine: Machine
) -> dict[str, float]:
    """The percentages of a case that does `rate` iterations a second, as the program computes them
    (benchmarks/harness/rows.cpp). Those that take a peak of products only where it is known.
    """
    model, causal, hardware, moved = (
        costs.get(name, 0.0) for name in ("model_flops", "causal_flops", "hardware_flops", "bytes")
    )
    found = {}
    least = machine.traffic_seconds(moved)
    if peaks is not None and model:
        found["MFU_percent"] = 100.0 * rate * model / peaks.of_mfu
        found["MFU_causal_percent"] = 100.0 * rate * causal / peaks.of_mfu
    if peaks is not None and hardware:
        found["peak_percent"] = 100.0 * rate * hardware / peaks.measured
        least = max(least, hardware / peaks.measured)
    if moved and (peaks is not None or not hardware):
        found["roof_percent"] = 100.0 * rate * least
    return found


def _against(
    name: CaseName, counters: Mapping[str, float], context: Context, machine: Machine
) -> dict[str, float]:
    """The percentages among a case's counters: a row above its peak has none."""
    rate = counters.get("samples_per_second", 0.0) / name.batch
    peaks = product_peaks(context, machine, product_type(name.dtype))
    found = shares(counters, rate, peaks, machine) if rate else {}
    return {key: value for key, value in found.items() if key in counters}


def restated(
    counters_of: Iterable[tuple[CaseName, Mapping[str, float]]], context: Context
) -> list[Mapping[str, float]]:
    """The counters of cases with their percentages against the context's own peaks."""
    try:
        machine = Machine.from_context(context)
    except BadInputError:
        # without peaks the percentages stay those of their files
        return [counters for _, counters in counters_of]
    return [
        {**counters, **_against(name, counters, context, machine)} for name, counters in counters_of
    ]
