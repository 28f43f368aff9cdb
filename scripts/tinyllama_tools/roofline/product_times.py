"""The least time of a step's matrix products, whichever variant runs them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tinyllama_tools.reading.product_rates import ProductRate
from tinyllama_tools.roofline.products import (
    GATE_UP,
    LM_HEAD,
    QKV,
    SCORES,
    VALUES,
    Product,
    chunk_of,
    step_products,
)

# Layers that a switch of the same name makes one product of.
FUSED_LAYERS: Mapping[str, tuple[str, ...]] = {
    QKV: ("q_proj", "k_proj", "v_proj", "qkv_proj"),
    GATE_UP: ("gate_proj", "up_proj", "gate_up_proj"),
}

Shape = tuple[int, int, int, int]
Group = tuple[str, str, str]


@dataclass(frozen=True)
class ProductRates:
    """`peak`: FLOP/s that no product of this type was seen to beat. `by_shape`: batch, m, n, k."""

    peak: float
    by_shape: Mapping[Shape, float]

    @classmethod
    def among(cls, products: Sequence[ProductRate], type_name: str, peak: float) -> ProductRates:
        """Those of one type; of a shape that is there twice, the better."""
        found: dict[Shape, float] = {}
        for row in products:
            if row.type_name == type_name:
                shape = (row.batch, row.m, row.n, row.k)
                found[shape] = max(row.flops_per_second, found.get(shape, 0.0))
        return cls(peak, found)

    def own(self, product: Product) -> float | None:
        """The rate at the product's own shape."""
        return self.by_shape.get((product.batch, product.m, product.n, product.k))


@dataclass(frozen=True)
class ProductTimes:
    """`seconds` of a whole step by component; `at_peak`: shapes that count at the peak since no
    form of them was measured."""

    seconds: Mapping[str, float]
    at_peak: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Form:
    """One way to run a group of products."""

    seconds: float
    unknown: tuple[str, ...] = field(default=())


def _form(products: Sequence[Product], rates: ProductRates) -> _Form:
    seconds, unknown = 0.0, []
    for product in products:
        rate = rates.own(product)
        if rate is None:
            unknown.append(product.shape)
        seconds += product.flops / (rate or rates.peak)
    return _Form(seconds, tuple(unknown))


def _group(product: Product) -> Group:
    """Products that one fused product does at once."""
    names = (name for name, layers in FUSED_LAYERS.items() if product.layer in layers)
    return product.component, next(names, product.layer), product.direction


def _grouped(products: Sequence[Product]) -> dict[Group, list[Product]]:
    groups = defaultdict(list)
    for product in products:
        groups[_group(product)].append(product)
    return groups


def _in_chunks(size: Mapping[str, int], head: Product, rates: ProductRates) -> Iterator[_Form]:
    """The LM head in chunks of tokens, where their rate is known; the last chunk may be smaller,
    which no variant gains by."""
    rate = rates.own(chunk_of(head, size))
    if rate is not None:
        yield _Form(head.flops / rate)


def _best(forms: Sequence[_Form]) -> _Form:
    """The fastest of those that were measured, else the first, whose unknown are at the peak."""
    measured = [form for form in forms if not form.unknown]
    return min(measured, key=lambda form: form.seconds) if measured else forms[0]


def product_times(
    size: Mapping[str, int], batch: int, seq: int, rates: ProductRates
) -> ProductTimes:
    """The least time that a step's products take: the same for every variant.

    Of the forms in which variants run a group (one by one, as one fused product, the LM head in
    chunks), the fastest that was measured counts, each product at the best rate of its own shape;
    at the peak where no form was. Scores and values count at the peak without what the causal mask
    hides, (S + 1) / (2 S) of them: a kernel that never stores them can do with that.
    """
    separate = _grouped(step_products(size, batch, seq))
    together = _grouped(step_products(size, batch, seq, FUSED_LAYERS))
    seconds: dict[str, float] = defaultdict(float)
    at_peak: dict[str, None] = {}
    for (component, group, direction), products in separate.items():
        if group in (SCORES, VALUES):
            flops = sum(product.flops for product in products)
            seconds[component] += flops * (seq + 1) / (2 * seq) / rates.peak
            continue
        forms = [_form(products, rates), _form(together[component, group, direction], rates)]
        if group == LM_HEAD:
            forms += _in_chunks(size, products[0], rates)
        best = _best(forms)
        seconds[component] += best.seconds
        at_peak |= dict.fromkeys(best.unknown)
    return ProductTimes(dict(seconds), tuple(at_peak))
