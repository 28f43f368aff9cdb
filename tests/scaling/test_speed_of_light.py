"""The speed of light of a step, and where its time goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from result_documents import MEASURED
from roofline_sets import (
    AXES,
    CACHE,
    MEMORY,
    PEAK,
    PRODUCTS,
    SIZES,
    STEP,
    STEP_FLOPS,
    case,
    least_seconds,
    name_of,
    part,
    products_of,
    rates,
    result_set,
    seconds_of,
    step_cases,
)

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.results import MeasuredCase, ResultSet, read_result_set
from tinyllama_tools.models.speed_of_light import (
    Bar,
    SpeedOfLight,
    Waterfall,
    speed_of_light,
    waterfall,
)

STEP_OF_TINY = 17678991360
# 2000 bytes of the update fit the cache once read and once written, 2000 come from memory
UPDATE_LIGHT = 2000 / CACHE + 2000 / MEMORY
SMALL_LIGHT = 100 / CACHE


def light(found: ResultSet) -> SpeedOfLight:
    return speed_of_light(found, STEP, SIZES)


def test_products_at_the_rates_of_their_shapes() -> None:
    cases = step_cases(block=1e-2, loss=1e-3, optimizer=1e-3, seconds=1)
    found = light(result_set(cases, rates(0.5, PRODUCTS)))
    block = part(found, "block")
    assert block.count == 2
    assert block.measured_seconds == pytest.approx(2e-2)
    expected = least_seconds(PEAK / 2) - seconds_of(products_of("loss"), PEAK / 2)
    assert block.products_seconds == pytest.approx(expected)
    assert block.light_seconds == block.products_seconds
    assert block.lost_seconds == pytest.approx(2e-2 - block.light_seconds)
    assert part(found, "loss").products_seconds == pytest.approx(
        seconds_of(products_of("loss"), PEAK / 2)
    )
    assert part(found, "embedding").products_seconds == 0
    assert part(found, "embedding").light_seconds == pytest.approx(SMALL_LIGHT)
    assert part(found, "optimizer").light_seconds == pytest.approx(UPDATE_LIGHT)
    assert (found.missing, found.errors) == ((), ())


def test_the_step_is_the_sum_of_its_parts() -> None:
    seconds = 1e-2
    cases = step_cases(seconds, block=1e-3, loss=1e-3, optimizer=1e-3)
    found = light(result_set(cases, rates(1.0, PRODUCTS)))
    assert found.errors == ()
    products = least_seconds(PEAK)
    expected = products + 2 * SMALL_LIGHT + UPDATE_LIGHT
    assert found.total.light_seconds == pytest.approx(expected)
    assert found.share_percent == pytest.approx(100 * expected / seconds)
    assert found.products_seconds == pytest.approx(products)
    assert found.other_light_seconds == pytest.approx(expected - products)
    assert found.lost_seconds == pytest.approx(seconds - expected)
    assert found.parts[-1].name == "rest"
    assert sum(one.measured_seconds or 0.0 for one in found.parts) == pytest.approx(seconds)
    assert found.total.lost_seconds == pytest.approx(seconds - expected)
    assert sum(one.lost_seconds or 0.0 for one in found.parts) == pytest.approx(seconds - expected)


def test_the_larger_of_products_and_traffic_is_the_light() -> None:
    cases = step_cases(seconds=1, loss=1e-2)
    index = next(i for i, one in enumerate(cases) if one.name.component == "loss")
    cases[index] = case(str(cases[index].name), 1e-2, bytes=102000.0)
    loss = part(light(result_set(cases, rates(1.0, PRODUCTS))), "loss")
    assert loss.traffic_seconds == pytest.approx(2000 / CACHE + 1e5 / MEMORY)
    assert loss.products_seconds < loss.traffic_seconds
    assert loss.light_seconds == loss.traffic_seconds


def test_shapes_without_a_rate_count_at_the_peak_and_are_named() -> None:
    without = [product for product in PRODUCTS if product.layer != "lm_head"]
    found = light(result_set(step_cases(seconds=1, loss=1), rates(0.5, without)))
    head = products_of("loss")
    assert part(found, "loss").products_seconds == pytest.approx(seconds_of(head))
    (missing,) = found.missing
    assert "the measured f32 peak stands in" in missing
    assert all(product.shape in missing for product in head)
    assert PRODUCTS[0].shape not in missing


def test_without_any_rate_one_sentence_says_so() -> None:
    found = light(result_set(step_cases(seconds=1)))
    assert found.products_seconds == pytest.approx(least_seconds(PEAK))
    assert found.missing == (
        "no rate at their own shape, the measured f32 peak stands in: every f32 product "
        "(measure --components peak at this size)",
    )


def test_rates_of_another_type_are_nobodys() -> None:
    rows = [replace(rate, type_name="bf16") for rate in rates(0.1, PRODUCTS)]
    found = light(result_set(step_cases(seconds=1), rows))
    assert found.products_seconds == pytest.approx(least_seconds(PEAK))


def test_a_step_faster_than_light_is_an_error_and_no_number() -> None:
    found = light(result_set(step_cases(seconds=1e-9, loss=1e-9), rates(1.0, PRODUCTS)))
    assert found.share_percent is None
    assert found.lost_seconds is None
    assert part(found, "loss").lost_seconds is None
    assert any(error.startswith("loss: 1 ns is faster than") for error in found.errors)
    assert any(error.startswith("step: 1 ns is faster than") for error in found.errors)


def test_a_part_that_was_not_measured_is_named() -> None:
    measured = step_cases(seconds=1, block=1e-2, optimizer=1e-3)
    cases = [one for one in measured if one.name.component != "loss"]
    found = light(result_set(cases, rates(1.0, PRODUCTS)))
    loss = part(found, "loss")
    assert (loss.measured_seconds, loss.lost_seconds) == (None, None)
    assert loss.light_seconds == pytest.approx(seconds_of(products_of("loss")))
    assert found.missing == (
        f"loss/forward_backward/{AXES}: not measured, its light is that of its products",
    )
    assert found.share_percent is not None


def test_a_part_without_its_bytes_is_named() -> None:
    cases = [one for one in step_cases(seconds=1) if one.name.component != "embedding"]
    embedding = f"embedding/forward_backward/{AXES}"
    found = light(result_set([*cases, case(embedding, 1e-2, bytes=0.0)], rates(1.0, PRODUCTS)))
    assert found.missing == (
        f"{embedding}: its counters lack bytes, its light is that of its products",
    )
    # what the parts do not have is then no residual addition
    assert part(found, "rest").light_seconds == 0


def test_layers_taken_apart_leave_their_residuals_to_the_rest() -> None:
    cases = [one for one in step_cases(seconds=1) if one.name.component != "block"]
    cases += [case(f"{name}/forward_backward/{AXES}", 1e-2) for name in ("attention", "ffn")]
    index = next(i for i, one in enumerate(cases) if one.name == STEP)
    # 100 of embedding, loss, 5 norms, 2 attentions and networks each; the update's; 4 x 4000 more
    cases[index] = case(str(STEP), 1, model_flops=STEP_FLOPS, bytes=5100.0 + 4 * 4000)
    found = light(result_set(cases, rates(1.0, PRODUCTS)))
    assert [(one.name, one.count) for one in found.parts] == [
        ("embedding", 1),
        ("attention", 2),
        ("ffn", 2),
        ("rms_norm", 5),
        ("loss", 1),
        ("optimizer", 1),
        ("rest", 1),
    ]
    assert part(found, "rest").light_seconds == pytest.approx(4 * UPDATE_LIGHT)
    assert part(found, "rms_norm").light_seconds == pytest.approx(5 * SMALL_LIGHT)
    assert part(found, "ffn").products_seconds == pytest.approx(seconds_of(products_of("ffn")))


def test_the_five_that_lose_most() -> None:
    found = light(
        result_set(
            step_cases(seconds=2e-2, block=4e-3, loss=3e-3, optimizer=2e-3, rms_norm=1e-3),
            rates(1.0, PRODUCTS),
        )
    )
    names = [one.name for one in found.most_lost]
    assert names == ["block", "rest", "loss", "optimizer", "rms_norm"]


def test_parts_that_lose_nothing_are_not_among_them() -> None:
    # the parts alone take longer than the step, so that the rest is below 0
    found = light(result_set(step_cases(seconds=1e-3, block=4e-3), rates(1.0, PRODUCTS)))
    rest = found.parts[-1]
    assert rest.measured_seconds is not None
    assert rest.measured_seconds < 0
    assert not rest.error
    assert "rest" not in [one.name for one in found.most_lost]


def test_a_part_faster_than_light_leaves_a_slow_step_without_a_share() -> None:
    cases = step_cases(seconds=1, loss=1e-9, block=1e-2, optimizer=1e-3)
    found = light(result_set(cases, rates(1.0, PRODUCTS)))
    assert not found.total.error
    (error,) = found.errors
    assert error.startswith("loss: 1 ns is faster than its speed of light")
    assert (found.share_percent, found.lost_seconds) == (None, None)
    # the other parts still say what they lose
    assert part(found, "block").lost_seconds is not None


@pytest.mark.parametrize("variant", ["baseline", "optimized"])
def test_of_a_real_run(variant: str) -> None:
    measured = read_result_set([MEASURED])
    step = name_of(f"full_step/train/{variant}/tiny/f32/batch:8/seq:128")
    found = speed_of_light(measured, step)
    assert found.errors == ()
    assert found.share_percent is not None
    # every product at the peak is the roofline of the step, and updates come on top
    roof = measured.cases[str(step)].counters["roof_percent"]
    masked = 1 - measured.cases[str(step)].counters["causal_flops"] / STEP_OF_TINY
    assert roof * (1 - masked) - 0.5 < found.share_percent < 100
    (missing,) = found.missing
    assert "every f32 product" in missing


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


def test_waterfall_of_a_real_run() -> None:
    step = name_of("full_step/train/optimized/tiny/f32/batch:8/seq:128")
    found = waterfall(read_result_set([MEASURED]), step)
    assert [bar.count for bar in found.bars] == [1, 4, 1, 1, 1, 1]
    assert sum(bar.seconds for bar in found.bars) == pytest.approx(found.step_seconds)
    assert sum(bar.seconds for bar in found.phases) == pytest.approx(found.step_seconds)
    # the embedding has no switch, so the baseline's stands in the optimized step
    assert found.bars[0].case.split("/")[2] == "baseline"
    assert found.bars[1].case.split("/")[2] == "optimized"


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
