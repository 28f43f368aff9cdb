"""What one iteration of a measured case has to do, and the least time that this takes."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllama_tools.reading.machine import Machine, product_type
from tinyllama_tools.reading.result_set import MeasuredCase

TERA = 1e12
# Rounding of the counters; the least score left out of the largest step is far more.
ROUNDING = 1e-9


@dataclass(frozen=True)
class CaseWork:
    """Of one iteration. `product_flops`: model_flops, less masked scores that the variant leaves
    out, as the suite's rates count. `operators`: None where they were not counted."""

    product_flops: float
    elementwise_flops: float
    bytes: float
    operators: float | None

    @property
    def flops(self) -> float:
        """Those of its intensity: of products, else elementwise."""
        return self.product_flops or self.elementwise_flops


@dataclass(frozen=True)
class LeastTime:
    """Seconds that products and traffic take at best; `products` 0 where there are none."""

    products: float
    traffic: float

    @property
    def seconds(self) -> float:
        """Of both: they may overlap, so the larger; their sum would be no bound."""
        return max(self.products, self.traffic)


def useful_product_flops(case: MeasuredCase) -> float:
    """model_flops without the masked scores that the variant leaves out: the counter useful_flops.

    Files from before it was written have TFLOPS, those over time, and samples_per_second, the batch
    over the same time: their quotient has no time in it.
    """
    counters = case.counters
    if "useful_flops" in counters:
        return counters["useful_flops"]
    model = counters.get("model_flops", 0.0)
    rate, samples = counters.get("TFLOPS"), counters.get("samples_per_second")
    if not model or not rate or not samples:
        return model
    useful = float(round(rate * TERA * case.name.batch / samples))
    return model if useful > model * (1.0 - ROUNDING) else useful


def work_of(case: MeasuredCase) -> CaseWork | None:
    """None for a case whose costs are not in its counters."""
    counters = case.counters
    work = CaseWork(
        useful_product_flops(case),
        counters.get("elementwise_flops", 0.0),
        counters.get("bytes", 0.0),
        counters.get("operators"),
    )
    return work if work.bytes > 0 and work.flops > 0 else None


def least_time(work: CaseWork, dtype: str, machine: Machine) -> LeastTime | None:
    """At the machine's peaks; None where products have none of their type."""
    products = 0.0
    if work.product_flops > 0:
        peak = machine.peak_flops.get(product_type(dtype))
        if peak is None:
            return None
        products = work.product_flops / peak
    return LeastTime(products, machine.traffic_seconds(work.bytes))
