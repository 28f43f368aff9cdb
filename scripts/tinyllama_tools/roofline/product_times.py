"""The least time of a step's matrix products: each at the best rate of its own shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tinyllama_tools.reading.result_set import ProductRate
from tinyllama_tools.roofline.products import (
    GATE_UP,
    LM_HEAD,
    QKV,
    SCORES,
    VALUES,
    Product,
    step_products,
)

# Layers that a switch of the same name makes one product of.
FUSED_LAYERS: Mapping[str, tuple[str, ...]] = {
    QKV: ("q_proj", "k_proj", "v_proj", "qkv_proj"),
    GATE_UP: ("gate_proj", "up_proj", "gate_up_proj"),
}
# These never store the scores, so they may beat any product that does.
ATTENTION_KERNELS = frozenset({"sdpa", "fused_attention"})
FUSED_LOSS = "fused_loss"

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Rates:
    """`peak`: FLOP/s that no product of this type was seen to beat. `by_shape`: batch, m, n, k."""

    type_name: str
    peak: float
    by_shape: Mapping[Shape, float]

    @classmethod
    def among(cls, products: Sequence[ProductRate], type_name: str, peak: float) -> Rates:
        """Those of one type; of a shape that is there twice, the better."""
        found: dict[Shape, float] = {}
        for row in products:
            if row.type_name == type_name:
                shape = (row.batch, row.m, row.n, row.k)
                found[shape] = max(row.flops_per_second, found.get(shape, 0.0))
        # a product's own row may have beaten the peak by the scatter of both
        return cls(type_name, max([peak, *found.values()]), found)

    def own(self, product: Product) -> float | None:
        """The rate at the product's own shape."""
        return self.by_shape.get((product.batch, product.m, product.n, product.k))


@dataclass(frozen=True)
class ProductTimes:
    """`seconds` of a whole step by component; `at_peak`: shapes, or what they stand for, that count
    at the peak since no rate of their own is known."""

    seconds: Mapping[str, float]
    at_peak: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Form:
    """One way to run a group of products."""

    seconds: float
    unknown: tuple[str, ...] = field(default=())


def _form(products: Sequence[Product], rates: Rates) -> _Form:
    seconds, unknown = 0.0, []
    for product in products:
        rate = rates.own(product)
        if rate is None:
            unknown.append(product.shape)
        seconds += product.flops / (rate or rates.peak)
    return _Form(seconds, tuple(unknown))


def _group(product: Product) -> tuple[str, str, str]:
    """Products that one fused product does at once."""
    names = (name for name, layers in FUSED_LAYERS.items() if product.layer in layers)
    return product.component, next(names, product.layer), product.direction


def _grouped(products: Sequence[Product]) -> dict[tuple[str, str, str], list[Product]]:
    groups = defaultdict(list)
    for product in products:
        groups[_group(product)].append(product)
    return groups


def _best_form(
    separate: Sequence[Product], together: Sequence[Product], is_fused: bool, rates: Rates
) -> _Form:
    """The fastest of the forms that were measured, and of the one that the variant runs."""
    forms = [_form(separate, rates)]
    if list(together) != list(separate):
        fused = _form(together, rates)
        if is_fused or not fused.unknown:
            forms.append(fused)
    return min(forms, key=lambda form: form.seconds)


def product_times(
    size: Mapping[str, int],
    batch: int,
    seq: int,
    switches: Collection[str],
    rates: Rates,
    score_share: float = 1.0,
) -> ProductTimes:
    """The least time that a step's products take, whichever way they are run.

    Each at the best rate measured at its own shape. At the peak instead: shapes without a rate,
    scores of variants that never store them, and the LM head where the loss takes it in chunks.
    `score_share`: of the scores' FLOPs, those that the variant does not leave out as masked.
    """
    rates_at_peak = replace(rates, by_shape={})
    separate = _grouped(step_products(size, batch, seq))
    together = _grouped(step_products(size, batch, seq, FUSED_LAYERS))
    seconds: dict[str, float] = defaultdict(float)
    at_peak: dict[str, None] = {}
    for (component, group, direction), products in separate.items():
        is_scores = group in (SCORES, VALUES)
        if is_scores and (score_share < 1.0 or ATTENTION_KERNELS & set(switches)):
            form = _Form(
                score_share * _form(products, rates_at_peak).seconds,
                ("attention's scores and values, which this variant never stores",),
            )
        elif group == LM_HEAD and FUSED_LOSS in switches:
            form = _Form(
                _form(products, rates_at_peak).seconds,
                ("the LM head, which this variant runs in chunks",),
            )
        else:
            fused = together[component, group, direction]
            form = _best_form(products, fused, group in switches, rates)
        seconds[component] += form.seconds
        at_peak |= dict.fromkeys(form.unknown)
    return ProductTimes(dict(seconds), tuple(at_peak))
