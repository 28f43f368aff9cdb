"""Counters that follow from a case's time: those of a result file that `open` cannot give."""

from __future__ import annotations

from collections.abc import Mapping

from tinyllama_tools.data.names import parse_case_name

TERA = 1e-12


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
    flops = counters.get("model_flops", 0.0)
    if flops > 0:
        found["TFLOPS"] = TERA * flops / seconds
    return found
