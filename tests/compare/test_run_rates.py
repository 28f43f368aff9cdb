"""Counters that `compare run` computes from times."""

from __future__ import annotations

import pytest
from turns_stand_in import FFN

from tinyllama_tools.compare.run import rates


def test_rates_are_those_of_a_result_file() -> None:
    counters = {"model_flops": 4e9, "hardware_flops": 4e9}
    assert rates(FFN, 0.01, counters) == pytest.approx(
        {"samples_per_second": 800.0, "tokens_per_second": 102_400.0, "TFLOPS": 0.4}
    )
    # whatever the variant computes, leaves out or computes again
    for hardware_flops in (3e9, 5e9):
        other = rates(FFN, 0.01, counters | {"hardware_flops": hardware_flops})
        assert other["TFLOPS"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("case", "counters"),
    [
        (FFN, {}),
        (FFN, {"model_flops": 0.0, "hardware_flops": 0.0}),
    ],
)
def test_what_is_not_known_is_left_out(case: str, counters: dict[str, float]) -> None:
    assert set(rates(case, 0.01, counters)) == {"samples_per_second", "tokens_per_second"}
    assert rates("peak/bandwidth", 0.01, counters) == {}
