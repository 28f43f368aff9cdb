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
    ModelQuestion,
    Prediction,
    Question,
    find_target,
    longest_accepted,
    predict,
    time_factor,
)
from tinyllama_tools.stats.laws import GridPoint, LawRefusedError

REFUSAL = "predicted peak memory 54.13 GiB exceeds 21.39 GiB (free on the device)"


def case(name: str, parameters: int, flops: int, memory: int, reason: str = "") -> dict:
    kinds = ("model_flops", "causal_flops", "hardware_flops", "elementwise_flops")
    told = {"name": name, "parameters": parameters, **dict.fromkeys(kinds, flops)}
    rest = {"bytes": 284166148, "predicted_memory_bytes": memory}
    return told | rest | {"fits": not reason, "reason": reason}


CASES = [
    case("full_step/train/baseline/tiny/f32/batch:8/seq:128", 2873600, 17678991360, 138215688),
    case("ffn/forward/baseline/tiny/f32/batch:8/seq:128", 393216, 805306368, 9437184),
    case("full_step/train/sdpa/large/f32/batch:8/seq:1024", 1300203520, 67 * 10**12, 1, REFUSAL),
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
    question = Question(("tiny", "large"), seq=(64, 128), device="cpu")
    tiny, large = predict(question, program(tmp_path, CASES))
    assert dataclasses.astuple(tiny) == (
        *("tiny", "baseline", "f32", 8, 128, 2873600, 17678991360, 284166148, 138215688, ""),
    )
    assert tiny.fits
    assert (large.variant, large.fits, large.refusal) == ("sdpa", False, REFUSAL)
    asked = (tmp_path / "asked").read_text().split()
    assert {"--dry-run", "--benchmark_format=json", "--components=full_step"} <= set(asked)
    assert {"--sizes=tiny,large", "--seq=64,128", "--device=cpu"} <= set(asked)
    assert not [option for option in asked if option.startswith("--batch=")]


@pytest.mark.parametrize(
    ("cases", "status", "said"), [([], 2, "^bad option$"), (CASES[1:2], 0, "no training step")]
)
def test_an_answer_without_steps_is_an_error(
    tmp_path: Path, cases: list[dict], status: int, said: str
) -> None:
    with pytest.raises(SuiteError, match=said):
        predict(Question(("tiny",)), program(tmp_path, cases, status))


SIZES = ((4, 128), (8, 128), (16, 128), (8, 64), (8, 256), (4, 512))
BASE, LINEAR, QUADRATIC = 46e6, 70e3, 300.0


def points(off: float = 0.0, base: float = BASE) -> list[GridPoint]:
    """Exactly on the law; the last one `off` times away from it."""
    peaks = [base + b * (LINEAR * s + QUADRATIC * s * s) for b, s in SIZES]
    peaks[-1] *= 1 + off
    return [GridPoint(*size, (peak,)) for size, peak in zip(SIZES, peaks, strict=True)]


@pytest.mark.parametrize("base", [BASE, -1e6, 0.0])
def test_the_law_of_memory_comes_back_with_every_coefficient(base: float) -> None:
    law = MemoryLaw.fitted_to(points(base=base))
    assert (law.base, law.linear, law.quadratic) == pytest.approx((base, LINEAR, QUADRATIC), abs=1)
    assert law.largest_residual_percent < 1e-6
    assert law.at(8, 128) == pytest.approx(points(base=base)[1].value)
    shares = law.shares_percent(8, 64)
    assert sum(shares.values()) == pytest.approx(100)
    assert shares["base"] == pytest.approx(100 * base / points(base=base)[3].value, abs=1e-6)


def test_what_does_not_follow_the_law_shows_in_the_residuals() -> None:
    law = MemoryLaw.fitted_to(points(off=0.2))
    assert law.largest_residual_percent > 1
    assert len(law.residuals_percent) == len(SIZES)


@pytest.mark.parametrize(
    ("sizes", "peak", "reason"),
    [
        ([(8, 128), (8, 256)], 1e6, "2 sizes"),
        ([(4, 128), (8, 128), (16, 128)], 1e6, "too alike"),
        ([(8, 128), (8, 128), (8, 128)], 1e6, "1 size"),
    ],
)
def test_sizes_that_decide_no_law_are_an_error(
    sizes: list[tuple[int, int]], peak: float, reason: str
) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        MemoryLaw.fitted_to([GridPoint(b, s, (peak and peak + b * s,)) for b, s in sizes])


FREE = 10e9
QUESTION = ModelQuestion(sizes=("custom",), batch=(8,), seq=(512,), model=("--n-layers=2",))


def prediction(seq: int, free: float = FREE) -> Prediction:
    """Memory with a quadratic part, FLOPs nearly linear."""
    peak = 50e6 + 8 * (70e3 * seq + 300 * seq**2)
    flops = 1e9 * seq * (1 + seq / 4096)
    refusal = "" if peak <= free else "too much"
    return Prediction("custom", "baseline", "f32", 8, seq, 1, flops, 1e6 * seq, peak, refusal)


class Played:
    """Answers questions and counts them."""

    def __init__(self, free: float = FREE) -> None:
        self.free, self.questions = free, 0

    def __call__(self, question: Question) -> list[Prediction]:
        self.questions += 1
        assert "--n-layers=2" in question.options
        assert len(question.seq) <= 20
        return [prediction(seq, self.free) for seq in question.seq]


def test_the_longest_sequence_is_found_to_the_token_in_few_questions() -> None:
    played = Played()
    target = find_target(played, QUESTION, (prediction(512), 0.5), most_seconds=1e9)
    assert target.fitting is not None and target.confirmable is not None
    limits = (FREE, CONFIRMED_SHARE * target.fitting.peak_memory_bytes)
    assert (target.fitting.seq, target.confirmable.seq) == tuple(
        max(s for s in range(2, 4000) if prediction(s).peak_memory_bytes <= limit)
        for limit in limits
    )
    assert target.held_back_by == "memory"
    assert played.questions < 15


def test_time_holds_the_confirmation_back() -> None:
    known = prediction(512)
    target = find_target(Played(), QUESTION, (known, 0.5), most_seconds=2.0)
    assert target.held_back_by == "time"
    assert target.confirmable is not None and target.fitting is not None
    assert target.confirmable_seconds is not None and target.confirmable_seconds <= 2.0
    assert 0.5 * time_factor(prediction(target.confirmable.seq + 1), known) > 2.0
    assert target.fitting.seq > target.confirmable.seq


def test_nothing_fits_or_everything_does() -> None:
    target = find_target(Played(free=1e6), QUESTION, (prediction(512), 0.5), 60)
    assert (target.fitting, target.confirmable) == (None, None) and target.held_back_by
    best = longest_accepted(
        lambda lengths: [prediction(s, 1e30) for s in lengths], lambda _: True, 512
    )
    assert best is not None and best.seq == LONGEST


def test_the_time_follows_what_grows_fastest() -> None:
    short, long = prediction(512), prediction(2048)
    by_memory = long.peak_memory_bytes / short.peak_memory_bytes
    assert time_factor(long, short) == pytest.approx(by_memory)
    slow = dataclasses.replace(long, step_flops=100 * short.step_flops)
    assert time_factor(slow, short) == pytest.approx(100)
