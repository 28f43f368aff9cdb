"""Rates of matrix products at their own shapes, as rows peak/gemm/<type>/<shape> have them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tinyllama_tools.reading.stored_run import StoredCase

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
