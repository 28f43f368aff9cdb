"""What one iteration of a measured case has to do, and the least time that this takes."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllama_tools.reading.machine import Machine, product_type
from tinyllama_tools.reading.result_set import MeasuredCase


@dataclass(frozen=True)
class CaseWork:
    """Of one iteration. `product_flops`: hardware_flops, those of the matrix products that really
    ran. `operators`: None where they were not counted."""

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


def work_of(case: MeasuredCase) -> CaseWork | None:
    """None for a case whose costs are not in its counters."""
    counters = case.counters
    work = CaseWork(
        counters.get("hardware_flops", 0.0),
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
