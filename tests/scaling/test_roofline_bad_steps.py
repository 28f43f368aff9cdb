"""Steps without a speed of light: each is refused with what is wrong and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from roofline_sets import (
    AXES,
    SIZES,
    STEP,
    STEP_FLOPS,
    case,
    context,
    name_of,
    result_set,
    step_cases,
)

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.results import MeasuredCase
from tinyllama_tools.models.speed_of_light import speed_of_light


@pytest.mark.parametrize(
    ("cases", "step", "words"),
    [
        (step_cases(), name_of(f"block/forward_backward/{AXES}"), "is no training step"),
        (step_cases(), replace(STEP, batch=3), "was not measured; the measured steps are: full_"),
        ([], STEP, "the measured steps are: none"),
        (
            [case(str(replace(STEP, size="custom")), 1.0)],
            replace(STEP, size="custom"),
            "dimensions of size 'custom' are not known; known are toy",
        ),
        ([case(str(STEP), 1.0, model_flops=5.0)], STEP, "model_flops is 5.0, by the dimensions"),
        ([case(str(STEP), 1.0)], STEP, "model_flops is 0.0"),
        (
            [case(str(replace(STEP, dtype="bf16")), 1.0, model_flops=STEP_FLOPS)],
            replace(STEP, dtype="bf16"),
            "no peak of bf16 products was measured, the file has those of f32",
        ),
    ],
)
def test_what_has_no_speed_of_light_is_named(
    cases: list[MeasuredCase], step: CaseName, words: str
) -> None:
    with pytest.raises(BadInputError, match=words):
        speed_of_light(result_set(cases), step, SIZES)


def test_a_context_without_peaks_is_named() -> None:
    bare = {**context(), "peaks": None}
    with pytest.raises(BadInputError, match="'peaks' is None"):
        speed_of_light(result_set(step_cases(), of=bare), STEP, SIZES)
