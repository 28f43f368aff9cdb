"""Which parts a case has, under which names, and which part a change is put down to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from stored_samples import ATTENTION, BLOCK, EMBEDDING, FFN, LOSS, NORM, OPTIMIZER, STEP, TIMES

from tinyllama_tools.compare.comparison import attributions, layers_by_size
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.data.parts import Parts, parts_of
from tinyllama_tools.stats.looks import BlockSummary

LAYERS = 4


def counts(parts: Parts) -> dict[str, int]:
    return {part.case: part.count for part in parts.measured}


def parts(whole: str, measured: list[str], layers: int | None = LAYERS) -> Parts:
    name = parse_case_name(whole)
    assert name is not None
    return parts_of(name, layers, measured)


def at(name: str, variant: str) -> str:
    return name.replace("/baseline/", f"/{variant}/")


def blocks(
    seconds: float, slowdown: float, generator: np.random.Generator, count: int = 20
) -> list[BlockSummary]:
    logs = math.log1p(slowdown) + generator.normal(0, 0.01, count)
    return [BlockSummary(x, 0.003, seconds, seconds * math.exp(x)) for x in logs]


def slowed(ffn: float, step: float, count: int = 20) -> dict[str, list[BlockSummary]]:
    generator = np.random.default_rng(7)
    change = {FFN: ffn, STEP: step}
    return {n: blocks(s, change.get(n, 0.0), generator, count) for n, s in TIMES.items()}


def test_a_step_is_its_layers_and_what_is_around_them() -> None:
    found = parts(STEP, list(TIMES))
    assert counts(found) == {
        EMBEDDING: 1,
        ATTENTION: LAYERS,
        FFN: LAYERS,
        NORM: 2 * LAYERS + 1,
        LOSS: 1,
        OPTIMIZER: 1,
    }
    assert found.missing == ()


def test_the_parts_of_a_step_add_up_to_its_time() -> None:
    total = sum(TIMES[part.case] * part.count for part in parts(STEP, list(TIMES)).measured)
    assert total == pytest.approx(TIMES[STEP], rel=0.01)


def test_the_block_stands_in_where_a_part_of_the_layer_is_missing() -> None:
    measured = [STEP, BLOCK, ATTENTION, NORM, EMBEDDING]
    found = parts(STEP, measured)
    assert counts(found) == {EMBEDDING: 1, BLOCK: LAYERS, NORM: 1}
    assert found.missing == (LOSS, OPTIMIZER)


def test_missing_parts_are_named() -> None:
    found = parts(STEP, [STEP, FFN])
    assert counts(found) == {FFN: LAYERS}
    assert found.missing == (EMBEDDING, ATTENTION, NORM, LOSS, OPTIMIZER)


def test_a_block_and_an_attention_have_parts_of_their_pass() -> None:
    forward = [name.replace("forward_backward", "forward") for name in (FFN, ATTENTION, NORM)]
    block = BLOCK.replace("forward_backward", "forward")
    assert counts(parts(block, [*forward, FFN])) == dict(zip(forward, (1, 1, 2), strict=True))
    rotary = ATTENTION.replace("attention", "rotary")
    assert counts(parts(ATTENTION, [rotary])) == {rotary: 1}
    assert parts(FFN, list(TIMES)) == Parts((), ())


def test_the_parts_of_a_model() -> None:
    model = STEP.replace("full_step/train", "model/forward_backward")
    assert OPTIMIZER not in counts(parts(model, list(TIMES)))
    assert counts(parts(model, list(TIMES)))[LOSS] == 1
    with_loss = model.replace("forward_backward", "forward_loss")
    forward = [name.replace("forward_backward", "forward") for name in (FFN, LOSS)]
    assert counts(parts(with_loss, forward)) == dict(zip(forward, (LAYERS, 1), strict=True))
    logits = model.replace("forward_backward", "forward")
    assert counts(parts(logits, forward)) == {forward[0]: LAYERS}


def test_a_part_that_the_variant_leaves_alone_was_measured_as_the_baseline() -> None:
    step = at(STEP, "qkv+fused_norm")
    measured = [at(ATTENTION, "qkv+fused_norm"), at(NORM, "qkv+fused_norm"), FFN, NORM, ATTENTION]
    assert counts(parts(step, measured)) == {
        at(ATTENTION, "qkv+fused_norm"): LAYERS,
        FFN: LAYERS,
        at(NORM, "qkv+fused_norm"): 2 * LAYERS + 1,
    }


def test_a_part_that_the_variant_changes_is_not_replaced_by_the_baseline() -> None:
    for variant in ("qkv", "fused", "optimized"):
        found = parts(at(STEP, variant), [ATTENTION, EMBEDDING])
        assert counts(found) == {EMBEDDING: 1}
        assert at(ATTENTION, variant) in found.missing


def test_a_checkpointed_layer_is_only_its_block() -> None:
    step, block = at(STEP, "checkpoint"), at(BLOCK, "checkpoint")
    assert counts(parts(step, [block, ATTENTION, FFN])) == {block: LAYERS}
    assert parts(block, [ATTENTION, FFN, NORM]) == Parts((), ())


def test_without_the_number_of_layers_a_step_has_no_parts() -> None:
    assert parts(STEP, list(TIMES), None) == Parts((), ())


def test_a_slowdown_of_the_ffn_is_put_down_to_it() -> None:
    share = 4 * TIMES[FFN] / TIMES[STEP]
    found = attributions(slowed(0.05 / share, 0.05), layers_by_size())[STEP]
    assert found.culprit == FFN
    assert found.parts[0].case == FFN
    assert found.parts[0].share == pytest.approx(1.0, abs=0.15)
    assert abs(found.unexplained) < 0.15


def test_a_slowdown_outside_all_parts_has_no_culprit() -> None:
    found = attributions(slowed(0.0, 0.05), layers_by_size())[STEP]
    assert found.culprit is None
    assert found.unexplained == pytest.approx(1.0, abs=0.2)


def test_layers_are_those_of_the_problem_sizes() -> None:
    assert layers_by_size()["tiny"] == LAYERS


def test_single_blocks_and_steps_that_did_not_change_are_left_out() -> None:
    assert attributions(slowed(0.15, 0.05, count=1), layers_by_size()) == {}
    cases = slowed(0.15, 0.05)
    cases[STEP] = [BlockSummary(0.0, 0.0, 0.09, 0.09)] * 5
    assert STEP not in attributions(cases, layers_by_size())


def test_a_training_step_is_its_phases() -> None:
    generator = np.random.default_rng(3)
    cases = {
        "training/step": blocks(0.1, 0.1, generator),
        "training/forward": blocks(0.03, 0.0, generator),
        "training/backward": blocks(0.06, 1 / 6, generator),
        "training/optimizer": blocks(0.01, 0.0, generator),
    }
    found = attributions(cases, {})["training/step"]
    assert found.culprit == "training/backward"
    assert found.missing == ()
