"""The measured peaks of a device, and which results may be put together.

A peak is what the device can do, so of several files the best counts for the rows of all: against a
lower one, a case of another round could be above 100 %.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from tinyllama_tools.core.app import MEASURE_AGAIN, BadInputError, is_number
from tinyllama_tools.core.text import value_at
from tinyllama_tools.data.names import CaseName, StoredCase

Context = Mapping[str, Any]
ONE_DEVICE = ("device.name", "device.architecture", "device.backend")
# Results that agree in these have times of one device.
SAME_DEVICE = (*ONE_DEVICE, "threads")
# libraries that --plugin loaded; and the digits of a SHA-256 that tables show
PLUGINS, SHORT_DIGEST = "plugins", 12
# Results that agree in these are rounds of one run. `settings` has the precision of GEMMs,
# affinity, clocks and variables of the environment; `weights` says which model a size without a
# name is.
SAME_RUN = (
    *(*SAME_DEVICE, "device.driver_version", "device.runtime_version", "torch_version"),
    *("git_commit", "git_dirty", "cold_cache", "memory_source", "settings", "weights"),
    PLUGINS,
)


def device_of(context: Context) -> dict[str, Any]:
    """A result's values of SAME_DEVICE: `name`, `architecture`, `backend`, `threads`."""
    return {key.rpartition(".")[2]: value_at(context, key) for key in SAME_DEVICE}


def placed_device(context: Context) -> dict[str, Any]:
    """device_of() and `whole_node`: whether a step had its node to itself. A GPU's has: other GPUs
    do not slow it. A CPU's has where it ran a thread for each core, which may be two logical
    processors, and no other rank was on the node."""
    device, ranks = device_of(context), (context.get("distributed") or {}).get("ranks") or ()
    is_shared = len({rank["node"] for rank in ranks}) < len(ranks)
    has_all = 2 * (device["threads"] or 0) >= context.get("num_cpus", 0) and not is_shared
    return device | {"whole_node": device["backend"] != "cpu" or has_all}


def device_text(device: Mapping[str, Any]) -> str:
    """`Intel(R) Xeon(R) Processor (cpu, threads: 2)`, from what device_of() found."""
    known = {key: value or "unknown" for key, value in device.items()}
    return f"{known['name']} ({known['backend']}, threads: {known['threads']})"


def plugin_texts(context: Context) -> list[str]:
    """`libmy_ops.so (SHA-256 0123456789ab)` of each library that --plugin loaded."""
    libraries = context.get(PLUGINS) or ()
    return [f"{one['file']} (SHA-256 {one['sha256'][:SHORT_DIGEST]})" for one in libraries]


def plugins_text(context: Context) -> str:
    """All of them; `none` without."""
    return ", ".join(plugin_texts(context)) or "none"


def _value(context: Context, name: str) -> object:
    return plugins_text(context) if name == PLUGINS else value_at(context, name)


# a dotted key, and its value in each of two contexts
Difference = tuple[str, object, object]


def _differences(name: str, here: object, there: object) -> Iterator[Difference]:
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in dict.fromkeys((*here, *there)):
            yield from _differences(f"{name}.{key}", here.get(key), there.get(key))
    elif here != there:
        yield name, here, there


def first_difference(here: Context, there: Context, names: Sequence[str]) -> Difference | None:
    """The first of these keys in which two contexts differ; None where they agree in all."""
    every = (_differences(name, _value(here, name), _value(there, name)) for name in names)
    return next((found for differences in every for found in differences), None)


MEMORY_BANDWIDTH, CURVE = "memory_bandwidth", "bandwidth_curve"
AUTOCAST = "amp_"
# The largest possible share of a peak, as in benchmarks/harness/rows.hpp: up to it the peak was
# measured a little too low; above it the time, the FLOPs or the peak are wrong.
LARGEST_SHARE = 1.05
FLOPS, BYTES = "flops_per_second", "bytes_per_second"
Peak = Mapping[str, Any]


def unit_of(peak: str) -> str:
    """The key of a measured peak's rate."""
    return BYTES if peak in (MEMORY_BANDWIDTH, CURVE) else FLOPS


def product_type(dtype: str) -> str:
    """The type that GEMMs of this dtype compute in: `bf16` for `amp_bf16`."""
    return dtype.removeprefix(AUTOCAST)


# what keeps the weights of gemm_rate() finite, in squared logarithms: a factor of 1.25
SAME_SHAPE = 0.05


@dataclass(frozen=True)
class Machine:
    """`peak_flops`: FLOP/s of GEMMs by type. `curve`: pairs of bytes of traffic and bytes/s,
    ascending; empty with --cold-cache. `memory_bandwidth`: None where it was not measured, since no
    case has that much traffic. `products`: rates of GEMMs at their own shapes."""

    peak_flops: Mapping[str, float]
    curve: Sequence[tuple[int, float]]
    memory_bandwidth: float | None
    products: Sequence["ProductRate"] = ()

    @cached_property
    def _shapes(self) -> Mapping[tuple[str, bool], list[tuple[tuple[float, ...], float]]]:
        """By type, and whether by the library that is the default: each shape's logarithms, and
        that of its rate."""
        found: dict[tuple[str, bool], list[tuple[tuple[float, ...], float]]] = {}
        for one in self.products:
            place = _place(one.batch, one.m, one.n, one.k)
            default = one.default_flops_per_second or one.flops_per_second
            for is_default, rate in ((False, one.flops_per_second), (True, default)):
                found.setdefault((one.type_name, is_default), []).append((place, math.log(rate)))
        return found

    def gemm_rate(
        self, type_name: str, shape: tuple[int, int, int, int], *, by_default: bool = False
    ) -> float:
        """FLOP/s of `batch` GEMMs [m, k] x [k, n] at once, `shape` being batch, m, n and k, by the
        best library, or by the one that is the default: the mean of those measured, on a
        logarithmic scale, weighted by the inverse third power of the distance between shapes. Where
        none was measured, the peak; BadInputError without it."""
        if not (measured := self._shapes.get((type_name, by_default))):
            if type_name not in self.peak_flops:
                raise BadInputError(
                    f"no rate of {type_name} GEMMs was measured; measure with peak in --components"
                )
            return self.peak_flops[type_name]
        place, total, weights = _place(*shape), 0.0, 0.0
        for other, rate in measured:
            weight = (SAME_SHAPE + math.dist(place, other) ** 2) ** -1.5
            total, weights = total + weight * rate, weights + weight
        return math.exp(total / weights)

    @cached_property
    def envelope(self) -> Sequence[tuple[int, float]]:
        """The curve with each rate raised to the best of all larger sizes: less traffic cannot have
        a lower attainable bandwidth."""
        best = list(accumulate((rate for _, rate in reversed(self.curve)), max))
        return [(size, rate) for (size, _), rate in zip(self.curve, reversed(best), strict=True)]

    def attainable_bandwidth(self, bytes_moved: float) -> float:
        """The best bytes/s of work that moves so many bytes again and again, by the suite's rule
        (attainable_bandwidth of benchmarks/instruments/bandwidth.cpp). BadInputError for traffic
        beyond the curve where memory's bandwidth is not known."""
        sizes = [size for size, _ in self.curve]
        above = bisect_left(sizes, bytes_moved)
        if above == len(sizes):
            if self.memory_bandwidth is None:
                raise BadInputError(
                    f"memory's bandwidth is not known, and {bytes_moved:.4g} bytes of traffic are "
                    "beyond the measured curve; measure again with peak in --components"
                )
            return self.memory_bandwidth
        size, rate = self.envelope[above]
        if above == 0 or bytes_moved == size:
            return rate
        below, faster = self.envelope[above - 1]
        return faster * (rate / faster) ** (math.log(bytes_moved / below) / math.log(size / below))

    def traffic_seconds(self, bytes_moved: float) -> float:
        """The least time for that traffic; BadInputError as of attainable_bandwidth()."""
        return bytes_moved / self.attainable_bandwidth(bytes_moved) if bytes_moved else 0.0

    @classmethod
    def of_peaks(cls, context: Context) -> "Machine":
        """The machine of a context whose peaks merged_peaks() has checked; it may have none."""
        measured = dict((context.get("peaks") or {}).get("measured") or {})
        points = measured.pop(CURVE, ())
        rates = {name: float(peak[unit_of(name)]) for name, peak in measured.items()}
        # with --cold-cache no data stays in a cache from one iteration to the next
        is_cold = context.get("cold_cache") is True
        curve = [] if is_cold else [(point["bytes"], float(point[BYTES])) for point in points]
        return cls(rates, curve, rates.pop(MEMORY_BANDWIDTH, None))

    @classmethod
    def from_context(cls, context: Context) -> "Machine":
        """As of_peaks(), but BadInputError where no bandwidth curve was measured."""
        if not value_at(context, f"peaks.measured.{CURVE}"):
            raise BadInputError(f"context.peaks.measured has no {CURVE}; {MEASURE_AGAIN}")
        return cls.of_peaks(context)


def _place(batch: int, *dimensions: int) -> tuple[float, ...]:
    """Where a GEMM lies among others: GEMMs done at once count half as much as a dimension."""
    return (math.log(batch) / 2, *map(math.log, dimensions))


# what Google Benchmark appends where the number of iterations is fixed
ITERATIONS = "/iterations:"
# peak/gemm/f32/1024x256x512, or peak/gemm/f32/64x128x128x32 for a batch of 64
PRODUCT = re.compile(
    rf"peak/gemm/(?P<type>[^/]+)/(?:(?P<batch>\d+)x)?(\d+)x(\d+)x(\d+)(?:{ITERATIONS}\d+)?"
)
TERA = 1e12


@dataclass(frozen=True)
class ProductRate:
    """The best rate of `batch` GEMMs [m, k] x [k, n] at once, and that of the library which
    at::linear calls; 0 where an older program did not say it."""

    type_name: str
    batch: int
    m: int
    n: int
    k: int
    flops_per_second: float
    source: str
    default_flops_per_second: float = 0.0

    @property
    def name(self) -> str:
        """The name of its row."""
        batch = f"{self.batch}x" if self.batch != 1 else ""
        return f"peak/gemm/{self.type_name}/{batch}{self.m}x{self.n}x{self.k}"


def product_rate(name: str, row: StoredCase) -> ProductRate | None:
    """The rate of a row; None where that measures something else, or has no rate."""
    found = PRODUCT.fullmatch(name)
    rate = row.counters.get("TFLOPS", 0.0)
    if found is None or rate <= 0:
        return None
    m, n, k = (int(text) for text in found.groups()[2:])
    default = row.counters.get("default_TFLOPS", 0.0) * TERA
    batch = int(found["batch"] or 1)
    return ProductRate(found["type"], batch, m, n, k, rate * TERA, row.label, default)


def best_products(products: Iterable[ProductRate]) -> tuple[ProductRate, ...]:
    """Each shape with its best rates."""
    best: dict[str, ProductRate] = {}
    for product in products:
        known = best.get(product.name, product)
        better = max(known, product, key=lambda one: one.flops_per_second)
        default = max(known.default_flops_per_second, product.default_flops_per_second)
        best[product.name] = replace(better, default_flops_per_second=default)
    return tuple(best.values())


def _is_rate(value: object) -> bool:
    return is_number(value) and value > 0


def _datasheet(context: Context, type_name: str) -> float | None:
    found = value_at(context, f"peaks.datasheet.{FLOPS}.{type_name}")
    return float(found) if _is_rate(found) else None


def merged_peaks(
    contexts: Sequence[Context], products: Sequence[ProductRate] = ()
) -> tuple[Context, tuple[str, ...]]:
    """The first context, with the best peaks of all contexts and GEMMs; and warnings about peaks
    that are no positive, finite number, and GEMMs above the datasheet's peak."""
    peaks: dict[str, Any] = {}
    curve: dict[int, Peak] = {}
    warnings: list[str] = []
    first = contexts[0]

    def keep(best: dict[Any, Any], key: str | int, peak: Peak, unit: str, words: str) -> None:
        value = peak.get(unit)
        if not _is_rate(value):
            warnings.append(
                f"context.peaks.measured.{words}.{unit} is {value!r}, must be a "
                "positive, finite number: left out"
            )
        elif key not in best or best[key][unit] < value:
            best[key] = peak

    for name, peak in (p for c in contexts for p in (value_at(c, "peaks.measured") or {}).items()):
        if name != CURVE:
            keep(peaks, name, peak, unit_of(name), name)
            continue
        for point in peak:
            keep(curve, point["bytes"], point, BYTES, f"{CURVE} at {point['bytes']} bytes")
    if curve:
        peaks[CURVE] = [curve[size] for size in sorted(curve)]
    for product in products:
        rate, limit = product.flops_per_second, _datasheet(first, product.type_name) or math.inf
        if product.type_name not in peaks or rate <= peaks[product.type_name][FLOPS]:
            continue
        if rate <= limit:
            peaks[product.type_name] = {FLOPS: rate, "source": product.source or product.name}
        else:
            warnings.append(
                f"{product.name}: {rate / TERA:.4g} TFLOP/s is above the datasheet's "
                f"{limit / TERA:.4g}: it is no peak of {product.type_name} GEMMs"
            )
    if "peaks" in first:
        first = {**first, "peaks": {**(first["peaks"] or {}), "measured": peaks}}
    return first, tuple(dict.fromkeys(warnings))


ROOF = "roof_percent"
SHARES = ("MFU_percent", "MFU_causal_percent", "peak_percent", ROOF)


def _restated(
    name: CaseName, counters: Mapping[str, float], context: Context, machine: Machine
) -> Mapping[str, float]:
    """The counters with their shares of peaks computed anew, as benchmarks/harness/rows.cpp does. A
    share that the case does not have, as above its peak, is not added. MFU is of the datasheet's
    peak where that is known."""
    peak = machine.peak_flops.get(product_type(name.dtype), 0.0)
    of_mfu = _datasheet(context, product_type(name.dtype)) or peak
    model, causal, hardware, moved = (
        counters.get(key, 0.0) for key in ("model_flops", "causal_flops", "hardware_flops", "bytes")
    )
    # the shortest possible seconds of an iteration, by the share that they make
    least = dict.fromkeys(SHARES, 0.0)
    if peak:
        least |= zip(SHARES, (model / of_mfu, causal / of_mfu, hardware / peak), strict=False)
    if peak or not hardware:
        try:
            least[ROOF] = max(machine.traffic_seconds(moved), least["peak_percent"])
        except BadInputError:
            counters = {key: value for key, value in counters.items() if key != ROOF}
    rate = counters.get("samples_per_second", 0.0) / name.batch
    known = {key: seconds for key, seconds in least.items() if key in counters and seconds and rate}
    return {**counters, **{key: 100 * rate * seconds for key, seconds in known.items()}}


def restated(
    counters_of: Iterable[tuple[CaseName, Mapping[str, float]]], context: Context
) -> list[Mapping[str, float]]:
    """The counters of cases, with percentages of the context's peaks. Where it has none, those of
    the files stay; where the bandwidth is not known, there is no share of the roofline."""
    if not value_at(context, "peaks.measured"):
        return [counters for _, counters in counters_of]
    machine = Machine.of_peaks(context)
    return [_restated(name, counters, context, machine) for name, counters in counters_of]
