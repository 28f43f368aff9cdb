"""Where a step's time goes: bars that add up to it, whatever was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from result_documents import MEASURED
from roofline_sets import (
    AXES,
    SIZES,
    STEP,
    STEP_FLOPS,
    case,
    name_of,
    result_set,
    step_cases,
)

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.results import MeasuredCase, read_result_set
from tinyllama_tools.models.speed_of_light import Bar, Waterfall, waterfall

FORWARD, BACKWARD, BOTH = (
    f"model/{name}/{AXES}" for name in ("forward_loss", "backward", "forward_backward")
)


def of(cases: list[MeasuredCase]) -> Waterfall:
    return waterfall(result_set(cases), STEP, SIZES)


def shown(bars: tuple[Bar, ...]) -> dict[str, float]:
    """Microseconds by name."""
    return {bar.name: round(1e6 * bar.seconds, 6) for bar in bars}


def test_bars_in_the_order_of_the_step() -> None:
    found = of(step_cases(seconds=1e-3, block=3e-4, loss=2e-4))
    assert list(shown(found.bars).items()) == [
        ("embedding", 10),
        ("2 x block", 600),
        ("final norm", 10),
        ("loss", 200),
        ("optimizer", 10),
        ("rest", 170),
    ]
    assert found.bars[1] == Bar("2 x block", 6e-4, 2, f"block/forward_backward/{AXES}")
    assert found.bars[-1].case == ""
    assert found.missing == ()


def test_layers_taken_apart() -> None:
    parts = [case(f"{name}/forward_backward/{AXES}", 1e-4) for name in ("attention", "ffn")]
    found = of(step_cases(seconds=1e-3) + parts)
    assert list(shown(found.bars)) == [
        "embedding",
        "2 x attention",
        "2 x ffn",
        "5 x rms_norm",
        "loss",
        "optimizer",
        "rest",
    ]
    assert sum(bar.seconds for bar in found.bars) == pytest.approx(1e-3)


def test_parts_that_do_what_the_step_shares_leave_less_than_nothing() -> None:
    found = of(step_cases(seconds=1e-3, block=6e-4))
    assert shown(found.bars)["rest"] == pytest.approx(-240)
    assert sum(bar.seconds for bar in found.bars) == pytest.approx(found.step_seconds)


def test_the_rest_names_what_it_holds_besides() -> None:
    absent = ("block", "optimizer")
    found = of([one for one in step_cases(seconds=1e-3) if one.name.component not in absent])
    # without any layer the step is asked for its finest parts
    assert found.bars[-1].name == "2 x attention, 2 x ffn, optimizer, rest"
    assert found.missing == (
        f"attention/forward_backward/{AXES}",
        f"ffn/forward_backward/{AXES}",
        f"optimizer/update/{AXES}",
    )


@pytest.mark.parametrize(
    ("measured", "expected", "missing"),
    [
        (
            {FORWARD: 300, BOTH: 900},
            {"forward": 300, "backward": 600, "optimizer": 10, "other": 90},
            (),
        ),
        (
            {BACKWARD: 500, BOTH: 900},
            {"forward": 400, "backward": 500, "optimizer": 10, "other": 90},
            (),
        ),
        (
            {FORWARD: 300, BACKWARD: 500},
            {"forward": 300, "backward": 500, "optimizer": 10, "other": 190},
            (),
        ),
        # the difference belongs to the step's pass, not to the backward alone
        (
            {FORWARD: 300, BACKWARD: 500, BOTH: 900},
            {"forward": 300, "backward": 600, "optimizer": 10, "other": 90},
            (),
        ),
        (
            {BOTH: 900},
            {"forward and backward": 900, "optimizer": 10, "other": 90},
            (FORWARD,),
        ),
        # scatter: both take no longer than one
        (
            {FORWARD: 900, BOTH: 800},
            {"forward and backward": 800, "optimizer": 10, "other": 190},
            (),
        ),
        ({FORWARD: 300}, {"forward": 300, "optimizer": 10, "backward, other": 690}, (BOTH,)),
        ({}, {"optimizer": 10, "forward, backward, other": 990}, (FORWARD, BOTH)),
    ],
)
def test_phases(
    measured: dict[str, float], expected: dict[str, float], missing: tuple[str, ...]
) -> None:
    cases = [case(name, 1e-6 * time) for name, time in measured.items()]
    found = of(step_cases(seconds=1e-3) + cases)
    assert list(shown(found.phases).items()) == list(expected.items())
    assert found.phases_missing == missing


def test_phases_without_the_update() -> None:
    cases = [one for one in step_cases(seconds=1e-3) if one.name.component != "optimizer"]
    found = of([*cases, case(FORWARD, 3e-4), case(BOTH, 9e-4)])
    assert shown(found.phases) == {"forward": 300, "backward": 600, "optimizer, other": 100}
    assert found.phases_missing == (f"optimizer/update/{AXES}",)


@pytest.mark.parametrize(
    ("variant", "label", "is_found"),
    [
        ("fused_adamw", "", True),
        ("foreach_adamw", "", True),
        ("qkv", "", False),
        # one of the set's switches is the update's, the others are not
        ("fused", "", False),
        # what that stands for is in the label
        ("optimized", "optimized = fused_adamw", True),
        ("optimized", "optimized = sdpa+fused_adamw", False),
    ],
)
def test_a_switch_of_the_update_leaves_the_model_as_it_is(
    variant: str, label: str, is_found: bool
) -> None:
    step = replace(STEP, variant=variant)
    cases = [case(FORWARD, 3e-4), case(BOTH, 9e-4)]
    cases.append(case(str(step), 1e-3, label, model_flops=STEP_FLOPS))
    found = waterfall(result_set(cases), step, SIZES)
    assert ("forward" in shown(found.phases)) == is_found


def test_what_was_not_measured_is_named() -> None:
    with pytest.raises(BadInputError, match="was not measured"):
        of([])


def test_of_a_real_run() -> None:
    step = name_of("full_step/train/optimized/tiny/f32/batch:8/seq:128")
    found = waterfall(read_result_set([MEASURED]), step)
    assert [bar.count for bar in found.bars] == [1, 4, 1, 1, 1, 1]
    assert sum(bar.seconds for bar in found.bars) == pytest.approx(found.step_seconds)
    assert sum(bar.seconds for bar in found.phases) == pytest.approx(found.step_seconds)
    # the embedding has no switch, so the baseline's stands in the optimized step
    assert found.bars[0].case.split("/")[2] == "baseline"
    assert found.bars[1].case.split("/")[2] == "optimized"
