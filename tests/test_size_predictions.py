"""What is predicted of training steps that nobody has run: costs, memory's law, the longest
sequence."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tinyllama_tools.data.programs import SuiteError
from tinyllama_tools.models.size_predictions import (
    CONFIRMED_SHARE,
    LONGEST,
    MemoryLaw,
    Prediction,
    Question,
    find_target,
    longest_accepted,
    predict,
    time_factor,
)
from tinyllama_tools.stats.laws import GridPoint, LawRefusedError

KINDS = ("model_flops", "causal_flops", "hardware_flops", "elementwise_flops")
REFUSAL = "predicted peak memory 54.13 GiB exceeds 21.39 GiB (free on the device)"
CASES = [
    {"name": name, "parameters": 2873600, **dict.fromkeys(KINDS, flops), "bytes": 284166148}
    | {"predicted_memory_bytes": 138215688, "fits": not reason, "reason": reason}
    for name, flops, reason in (
        ("full_step/train/baseline/tiny/f32/batch:8/seq:128", 17678991360, ""),
        ("ffn/forward/baseline/tiny/f32/batch:8/seq:128", 805306368, ""),
        ("full_step/train/sdpa/large/f32/batch:8/seq:1024", 67 * 10**12, REFUSAL),
    )
]


def program(folder: Path, cases: list[dict], status: int = 0) -> Path:
    """Answers with the cases, and writes down what it was asked."""
    document = {"memory_budget_bytes": 1, "memory_budget_source": "made up", "cases": cases}
    path = folder / "bench"
    path.write_text(
        f"#!/bin/sh\necho \"$@\" >{folder}/asked\ncat <<'END'\n{json.dumps(document)}\nEND\n"
        f"echo bad option >&2\nexit {status}\n"
    )
    path.chmod(0o755)
    return path


def test_the_steps_alone_are_asked_for_and_read(tmp_path: Path) -> None:
    question = Question(("tiny", "large"), seq=(64, 128), device="cpu", model=("--n-layers=2",))
    tiny, large = predict(question, program(tmp_path, CASES))
    assert dataclasses.astuple(tiny) == (
        *("tiny", "baseline", "f32", 8, 128, 2873600, 17678991360, 284166148, 138215688, ""),
    )
    assert tiny.fits
    assert (large.variant, large.fits, large.refusal) == ("sdpa", False, REFUSAL)
    asked = (tmp_path / "asked").read_text().split()
    assert {"--dry-run", "--benchmark_format=json", "--components=full_step"} <= set(asked)
    assert {"--sizes=tiny,large", "--seq=64,128", "--device=cpu", "--n-layers=2"} <= set(asked)
    assert not [option for option in asked if option.startswith("--batch=")]
    for cases, status, said in (([], 2, "bad option"), (CASES[1:2], 0, "no training step")):
        with pytest.raises(SuiteError, match=said):
            predict(question, program(tmp_path, cases, status))


SIZES = ((4, 128), (8, 128), (16, 128), (8, 64), (8, 256), (4, 512))


@pytest.mark.parametrize("base", [46e6, -1e6, 0.0])
def test_the_law_of_memory_comes_back_with_every_coefficient(base: float) -> None:
    points = [GridPoint(b, s, (base + b * (70e3 * s + 300 * s * s),)) for b, s in SIZES]
    law = MemoryLaw.fitted_to(points)
    assert (law.base, law.linear, law.quadratic) == pytest.approx((base, 70e3, 300), abs=1)
    assert law.largest_residual_percent < 1e-6
    assert law.at(8, 128) == pytest.approx(points[1].value)
    of = [100 * part / points[3].value for part in (base, 8 * 64 * 70e3, 8 * 64**2 * 300)]
    assert [*law.shares_percent(8, 64).values()] == pytest.approx(of, abs=1e-6)
    points[-1] = GridPoint(*SIZES[-1], (1.2 * points[-1].value,))
    # what does not follow the law shows in the residuals
    law = MemoryLaw.fitted_to(points)
    assert law.residuals_percent[-1] == pytest.approx(100 * (1 - law.at(4, 512) / points[-1].value))
    assert law.largest_residual_percent > 1
    for sizes, reason in (
        ([(8, 128), (8, 256)], "2 sizes"),
        ([(4, 128), (8, 128), (16, 128)], "too alike"),
        ([(8, 128)] * 3, "1 size"),
    ):
        with pytest.raises(LawRefusedError, match=reason):
            MemoryLaw.fitted_to([GridPoint(b, s, (1e6 + b * s,)) for b, s in sizes])


FREE = 10e9
QUESTION = Question(sizes=("custom",), batch=(8,), seq=(512,), model=("--n-layers=2",))


def prediction(seq: int, free: float = FREE) -> Prediction:
    """Memory with a quadratic part, FLOPs nearly linear."""
    peak = 50e6 + 8 * (70e3 * seq + 300 * seq**2)
    flops = 1e9 * seq * (1 + seq / 4096)
    refusal = "" if peak <= free else "too much"
    return Prediction("custom", "baseline", "f32", 8, seq, 1, flops, 1e6 * seq, peak, refusal)


def test_the_longest_sequence_is_found_to_the_token_in_few_questions() -> None:
    questions = []

    def play(question: Question, free: float = FREE) -> list[Prediction]:
        questions.append(question)
        assert question.model == QUESTION.model and len(question.seq) <= 20
        return [prediction(seq, free) for seq in question.seq]

    known = prediction(512)
    target = find_target(play, QUESTION, (known, 0.5), most_seconds=1e9)
    assert target.fitting is not None and target.confirmable is not None
    limits = (FREE, CONFIRMED_SHARE * target.fitting.peak_memory_bytes)
    assert (target.fitting.seq, target.confirmable.seq) == tuple(
        max(s for s in range(2, 4000) if prediction(s).peak_memory_bytes <= limit)
        for limit in limits
    )
    assert target.held_back_by == "memory"
    assert len(questions) < 12
    # time holds it back
    in_time = find_target(play, QUESTION, (known, 0.5), most_seconds=2.0)
    assert in_time.held_back_by == "time" and in_time.fitting == target.fitting
    assert in_time.confirmable is not None and in_time.confirmable_seconds is not None
    assert in_time.confirmable_seconds <= 2.0
    assert 0.5 * time_factor(prediction(in_time.confirmable.seq + 1), known) > 2.0
    # nothing fits, or everything does
    nothing = find_target(lambda asked: play(asked, 1e6), QUESTION, (known, 0.5), 60)
    assert (nothing.fitting, nothing.confirmable) == (None, None) and nothing.held_back_by
    best = longest_accepted(lambda of: [prediction(s, 1e30) for s in of], lambda _: True, 512)
    assert best is not None and best.seq == LONGEST
    # the time follows what grows fastest
    long = prediction(2048)
    by_memory = long.peak_memory_bytes / known.peak_memory_bytes
    assert time_factor(long, known) == pytest.approx(by_memory)
    slow = dataclasses.replace(long, step_flops=100 * known.step_flops)
    assert time_factor(slow, known) == pytest.approx(100)
