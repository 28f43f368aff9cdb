"""Counters that follow from a case's time: those of a result file that `open` cannot give."""

from __future__ import annotations

from collections.abc import Mapping

from tinyllama_tools.reading.case_name import parse_case_name
from tinyllama_tools.reading.whole_and_parts import CHECKPOINT, switches_named

TERA = 1e-12


def _useful_flops(variant: str, counters: Mapping[str, float]) -> float:
    """What the variant computes of model_flops; 0 where that is not known.

    Builds from before useful_flops was counted say it only of what computes nothing twice.
    """
    if "useful_flops" in counters:
        return counters["useful_flops"]
    if CHECKPOINT in switches_named(variant):
        return 0.0
    asked, done = counters.get("model_flops", 0.0), counters.get("hardware_flops", 0.0)
    return min(asked, done)


def rates(case: str, seconds: float, counters: Mapping[str, float]) -> dict[str, float]:
    """samples_per_second, tokens_per_second, and TFLOPS where there are products.

    `seconds`: of an iteration, above 0. `counters`: of the case's opening.
    """
    axes = parse_case_name(case)
    # of a data-parallel step, the mode decides how many samples there are
    if axes is None or axes.is_data_parallel:
        return {}
    found = {
        "samples_per_second": axes.batch / seconds,
        "tokens_per_second": axes.batch * axes.seq / seconds,
    }
    useful = _useful_flops(axes.variant, counters)
    if useful > 0:
        found["TFLOPS"] = TERA * useful / seconds
    return found
