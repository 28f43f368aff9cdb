"""What a prediction rests on, in words."""

from __future__ import annotations

import math
import statistics

from tinyllama_tools.prediction.rates import Rates
from tinyllama_tools.prediction.spread import ASSUMED_DEGREES, ASSUMED_OFF

# Less than this beyond the calibrated range is not worth a word.
WORTH_SAYING = 1.05


def _joined(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _rates(rates: Rates) -> str:
    found = [
        f"{part.component} {rate / 1e9:.3g} GFLOP/s"
        for part in rates.parts.values()
        if (rate := part.flops_per_second) is not None
    ]
    launch = statistics.median(part.launch_seconds for part in rates.parts.values())
    return ", ".join([*found, f"{1e6 * launch:.2g} us an operator"])


def _closure(rates: Rates, flops_a_token: float) -> str:
    closure = rates.closure
    if not closure.steps:
        return "no step was measured, so the parts are taken to add up"
    scatter = 100 * math.expm1(closure.scatter)
    steps = f"{closure.steps} step" + ("s" if closure.steps > 1 else "")
    return (
        f"a step takes {closure.ratio_at(flops_a_token):.3f} times its parts, as the large steps "
        f"of the nearest size did ({steps} of all sizes, scatter {scatter:.1f} %)"
    )


def _beyond(rates: Rates, flops: float, tokens: int) -> str:
    (_, most_a_token), (_, most_tokens) = rates.range.flops_a_token, rates.range.tokens
    ratios = (flops / tokens / most_a_token, "FLOPs a token"), (tokens / most_tokens, "tokens")
    words = [f"{ratio:.3g} times the {what}" for ratio, what in ratios if ratio > WORTH_SAYING]
    return f"{_joined(words)} of the largest calibrated step" if words else ""


def _range(rates: Rates) -> str:
    spread = rates.spread
    assumed = f"{100 * (ASSUMED_OFF - 1):.0f} % for each factor of 10 in FLOPs"
    by_size: dict[str, list[float]] = {}
    for step in spread.held_out:
        by_size.setdefault(step.size, []).append(step.error)
    if not by_size:
        known = "one size was" if len(rates.sizes) == 1 else "too few parts of other sizes were"
        return (
            f"{spread.words}: only {known} measured ({', '.join(rates.sizes)}), so how errors grow "
            f"is assumed: {assumed}"
        )
    words = [
        f"{size} from the others {100 * math.expm1(statistics.median(errors)):+.1f} %"
        for size, errors in by_size.items()
    ]
    return (
        f"{spread.words} from predicting measured sizes: {_joined(words)}, together with an "
        f"assumed {assumed}, which counts as {ASSUMED_DEGREES} sizes would"
    )


def _memory(rates: Rates) -> str:
    return f"memory: {rates.memory.in_words()}"


def basis_of(rates: Rates, flops: float, tokens: int) -> str:
    """Of the prediction of a step of these model_flops and tokens."""
    cells = sum(part.cells for part in rates.parts.values())
    where = f"{cells} cells of {_joined(list(rates.sizes))} ({rates.dtype}, {rates.variant})"
    facts = (
        f"predicted, not run: rates of {where}: {_rates(rates)}",
        _closure(rates, flops / tokens),
        _beyond(rates, flops, tokens),
        _range(rates),
        _memory(rates),
    )
    return "; ".join(fact for fact in facts if fact)
