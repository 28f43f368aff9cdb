"""The peaks of several files as one: of each the best that was measured, with where it is from.

A peak says what the device can do, so the best of all rounds is the denominator of every round's
percentages; a lower one would put another round's case above 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.reading.circumstances import Context, value_at
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.json_number import shown
from tinyllama_tools.reading.machine import FLOPS, Machine, is_rate, product_type, unit_of
from tinyllama_tools.reading.product_rates import TERA, ProductRate

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
                f"{limit / TERA:.4g}: it is no peak of {product.type_name} products"
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
                    f"context.peaks.measured.{name}.{unit} is {shown(value)}, must be a positive, "
                    "finite number: left out"
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
    """FLOP/s of matrix products of one type. `measured`: what peak_percent and the roofline are
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
