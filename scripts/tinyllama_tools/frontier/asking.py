"""Asks tiny_llama_bench --dry-run what training steps need, and what memory there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tinyllama_tools.case_costs import CaseCost, DryRun, ask_dry_run
from tinyllama_tools.frontier.axis import Axis
from tinyllama_tools.reading.case_name import STEP, TRAIN
from tinyllama_tools.suite_run import SuiteError

# Words of benchmarks/harness/plan.cpp and admission.cpp.
UNCOUNTED = "which the cost formulas do not count"
TOO_LARGE = "predicted peak memory"

# Takes options of tiny_llama_bench that choose cases; raises SuiteError where it refuses them.
Asker = Callable[[Sequence[str]], DryRun]


def ask_program(program: Path, device: str = "auto") -> Asker:
    """Asks the built program, in a process for each question."""
    return lambda options: ask_dry_run(program, [f"--device={device}", *options])


def refusal(cost: CaseCost) -> str:
    """Why the step cannot run here in whatever memory; empty where it can."""
    return "" if cost.fits or cost.reason.startswith(TOO_LARGE) else cost.reason


def step_options(
    axis: Axis,
    sizes: Sequence[str],
    variants: Sequence[str],
    dtypes: Sequence[str],
    values: Sequence[int],
    given: Sequence[int],
) -> list[str]:
    """Options that choose the training step at all combinations; `values`: on the searched axis."""
    axes = {
        "components": [STEP],
        "passes": [TRAIN],
        "sizes": sizes,
        "variants": variants,
        "dtypes": dtypes,
        axis.searched: map(str, values),
        axis.given: map(str, given),
    }
    return [f"--{name}={','.join(chosen)}" for name, chosen in axes.items()]


def free_memory(asker: Asker) -> DryRun:
    """What is free now, which every answer says; asked with the smallest step."""
    return asker([f"--components={STEP}", "--sizes=tiny", "--batch=1", "--seq=2"])


def ask_countable(
    asker: Asker, options_of: Callable[[Sequence[int]], Sequence[str]], values: Sequence[int]
) -> tuple[tuple[CaseCost, ...], int | None]:
    """About as many of the values, from the smallest, as the formulas count; and the smallest value
    that is known to be beyond counting, None where there is none.

    SuiteError where they count not even the smallest, or the program refuses the options.
    """
    asked, uncounted = sorted(values), None
    while True:
        try:
            return asker(options_of(asked)).cases, uncounted
        except SuiteError as error:
            if UNCOUNTED not in str(error) or len(asked) == 1:
                raise
            uncounted = asked[-1]
            asked = asked[: len(asked) // 2]
