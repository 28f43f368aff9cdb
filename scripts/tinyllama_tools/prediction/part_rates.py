"""The calibrated rates of one part of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tinyllama_tools.prediction.cells import Cell
from tinyllama_tools.prediction.figures import Figures
from tinyllama_tools.prediction.operator_rule import CountedCell, OperatorRule, operator_rule
from tinyllama_tools.prediction.terms import LAUNCH, PRODUCTS, fit_terms
from tinyllama_tools.reading.machine import Machine


@dataclass(frozen=True)
class PartRate:
    """`coefficients`: seconds per unit of each of TERMS. `cells`: how many it was fitted to, of
    `sizes`."""

    component: str
    coefficients: tuple[float, ...]
    operators: OperatorRule
    has_products: bool
    cells: int
    sizes: tuple[str, ...]

    @property
    def launch_seconds(self) -> float:
        """Per operator."""
        return self.coefficients[LAUNCH]

    @property
    def flops_per_second(self) -> float | None:
        """That products attain without what goes beside them; None for a part without products."""
        cost = self.coefficients[PRODUCTS]
        return 1.0 / cost if self.has_products and cost > 0 else None

    def seconds(self, figures: Figures, tokens: int, layers: int, machine: Machine) -> float:
        """Of one iteration, never less than the roofline allows for the traffic."""
        amounts = _amounts(figures, self.operators.at(tokens, layers), machine)
        fitted = sum(c * amount for c, amount in zip(self.coefficients, amounts, strict=True))
        return max(fitted, machine.traffic_seconds(figures.bytes))


def _amounts(figures: Figures, operators: float, machine: Machine) -> tuple[float, ...]:
    """Of TERMS."""
    return (
        operators,
        figures.hardware_flops,
        figures.elementwise_flops,
        machine.traffic_seconds(figures.bytes),
    )


def fit_part_rates(
    parts: Mapping[str, Sequence[Cell]], machine: Machine, peak: float | None
) -> dict[str, PartRate]:
    """By component, each with at least one cell. `peak`: of the products' type, in FLOP/s."""
    systems = {
        component: (
            np.array([_amounts(c.figures, c.operators, machine) for c in cells]),
            np.array([c.seconds for c in cells]),
        )
        for component, cells in parts.items()
    }
    return {
        component: PartRate(
            component,
            tuple(float(value) for value in coefficients),
            operator_rule(
                component,
                [CountedCell(c.operators, c.tokens, c.layers) for c in parts[component]],
            ),
            any(c.figures.hardware_flops > 0 for c in parts[component]),
            len(parts[component]),
            tuple(dict.fromkeys(c.name.size for c in parts[component])),
        )
        for component, coefficients in fit_terms(systems, peak).items()
    }
