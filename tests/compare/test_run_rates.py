"""Counters that `compare run` computes from times."""

from __future__ import annotations

import pytest
from turns_stand_in import FFN

from tinyllama_tools.compare.rates import rates


def test_rates_are_those_of_a_result_file() -> None:
    counters = {"model_flops": 4e9, "hardware_flops": 4e9}
    assert rates(FFN, 0.01, counters) == pytest.approx(
        {"samples_per_second": 800.0, "tokens_per_second": 102_400.0, "TFLOPS": 0.4}
    )
    # masked scores that are not computed are not useful
    fewer = rates(FFN, 0.01, {"model_flops": 4e9, "hardware_flops": 3e9})
    assert fewer["TFLOPS"] == pytest.approx(0.3)


def test_a_build_that_counts_useful_flops_knows_them_of_every_variant() -> None:
    counters = {"model_flops": 4e9, "hardware_flops": 5e9, "useful_flops": 3e9}
    found = rates(FFN.replace("baseline", "sdpa+checkpoint"), 0.01, counters)
    assert found["TFLOPS"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("case", "counters"),
    [
        (FFN, {}),
        (FFN, {"model_flops": 0.0, "hardware_flops": 0.0}),
        # done twice, which its counters do not tell from what is useful
        (FFN.replace("baseline", "sdpa+checkpoint"), {"model_flops": 4e9, "hardware_flops": 5e9}),
    ],
)
def test_what_is_not_known_is_left_out(case: str, counters: dict[str, float]) -> None:
    assert set(rates(case, 0.01, counters)) == {"samples_per_second", "tokens_per_second"}
    assert rates("peak/bandwidth", 0.01, counters) == {}
