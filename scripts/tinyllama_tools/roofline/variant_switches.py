"""Which switches a measured case ran with."""

from __future__ import annotations

from tinyllama_tools.ablation_variants import resolved_switches
from tinyllama_tools.reading.result_set import MeasuredCase
from tinyllama_tools.reading.whole_and_parts import OPTIMIZED, switches_named


def switches_of(case: MeasuredCase) -> frozenset[str]:
    """Of its variant; what `optimized` stands for is in the case's label."""
    variant = case.name.variant
    if variant == OPTIMIZED:
        return frozenset(resolved_switches(case.label) or ())
    return switches_named(variant)
