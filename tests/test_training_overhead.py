"""What the training program adds to a step: ratios of sides in turn, and what they prove."""

from __future__ import annotations

import pytest

from tinyllama_tools import training_overhead
from tinyllama_tools.training_overhead import compare, step_seconds, table


def summary(plain: float, profiled: float) -> dict[str, object]:
    """Five steps, of which the first is slow and two are profiled."""
    times = [(9.0, False), (plain, False), (plain, False), (profiled, True), (profiled, True)]
    return {
        "steps": [
            {"step": n, "time_seconds": t + 5, "evaluation_seconds": 5, "profiled": p}
            for n, (t, p) in enumerate(times, start=1)
        ]
    }


def test_the_first_step_and_evaluations_do_not_count() -> None:
    assert step_seconds(summary(1.0, 2.0), False) == pytest.approx(1.0)
    assert step_seconds(summary(1.0, 2.0), True) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [([1.0] * 8, "yes"), ([1.1] * 8, "no"), ([1.0, 1.1] * 4, "not shown")],
)
def test_a_limit_holds_only_where_the_whole_interval_keeps_it(
    ratios: list[float], verdict: str
) -> None:
    turns = [{"tiny_llama_train": (r, 1.0), "memory": (1.0, 1.0)} for r in ratios]
    own, memory = compare(turns)
    assert (own.against, own.limit, own.holds()) == ("full_step", 1.02, verdict)
    assert (memory.limit, memory.holds()) == (1.15, "yes")
    assert verdict in table("baseline", [own])[2]


def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in ((["--steps=3"], "--steps 3"), (["--turns=0"], "'0'")):
        with pytest.raises(SystemExit) as refused:
            training_overhead.main(arguments)
        assert refused.value.code == 2
        assert words in capsys.readouterr().err
