"""Costs of training steps that the suite is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.programs import CaseCost

# The costs of the cases that these options of tiny_llama_bench name: ask_costs() of a program.
Predictor = Callable[[Sequence[str]], list[CaseCost]]


def step_options(device: str, **axes: str) -> list[str]:
    """Of tiny_llama_bench, naming training steps: sizes, dtypes, variants, batch, seq, as text. Of
    an axis that is left out or empty each size's own is meant."""
    given = [f"--{name}={values}" for name, values in axes.items() if values]
    return [f"--device={device}", f"--components={STEP}", *given]
