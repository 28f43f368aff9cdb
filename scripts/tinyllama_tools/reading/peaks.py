"""The peaks of several files as one: of each the best that was measured, with where it is from.

A peak says what the device can do, so the best of all rounds is the denominator of every round's
percentages; a lower one would put another round's case above 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.reading.circumstances import Context, value_at
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.json_number import shown
from tinyllama_tools.reading.machine import FLOPS, Machine, is_rate, product_type, unit_of
from tinyllama_tools.reading.product_rates import TERA, ProductRate

GIGA = 1e9

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


def _against(
    name: CaseName, counters: Mapping[str, float], context: Context, machine: Machine
) -> dict[str, float]:
    """The percentages among a case's counters, as the program computes them."""
    type_name = product_type(name.dtype)
    peak = machine.peak_flops.get(type_name)
    rate, moved = counters.get("TFLOPS"), counters.get("GB_per_second")
    found = {}
    if peak and rate:
        found["peak_percent"] = 100.0 * rate * TERA / peak
        limit = _datasheet(context, type_name)
        found["MFU_percent"] = 100.0 * rate * TERA / (limit if math.isfinite(limit) else peak)
    if moved and counters.get("bytes") and (peak or not rate):
        bandwidth = machine.attainable_bandwidth(counters["bytes"])
        of_traffic = 100.0 * moved * GIGA / bandwidth
        found["roof_percent"] = max(of_traffic, found.get("peak_percent", 0.0))
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
