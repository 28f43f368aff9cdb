"""Steps that nobody has run: predictions, memory's law, the longest sequence."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tinyllama_tools.data.programs import SuiteError
from tinyllama_tools.stats.laws import GridPoint, LawRefusedError
from tinyllama_tools.study.size_predictions import (
    CONFIRMED_SHARE,
    LONGEST,
    MemoryLaw,
    ModelQuestion,
    Prediction,
    Question,
    between,
    find_target,
    longest_accepted,
    predict,
    time_factor,
)

REFUSAL = "predicted peak memory 54.13 GiB exceeds 21.39 GiB (free on the device)"


def case(
    name: str, parameters: int, flops: int, memory: int, reason: str = ""
) -> dict[str, object]:
    return {
        "name": name,
        "parameters": parameters,
        "model_flops": flops,
        "causal_flops": flops,
        "hardware_flops": flops,
        "elementwise_flops": 166107136,
        "bytes": 284166148,
        "predicted_memory_bytes": memory,
        "fits": not reason,
        "reason": reason,
    }


CASES = [
    case("full_step/train/baseline/tiny/f32/batch:8/seq:128", 2873600, 17678991360, 138215688),
    case("ffn/forward/baseline/tiny/f32/batch:8/seq:128", 393216, 805306368, 9437184),
    case("full_step/train/sdpa/large/f32/batch:8/seq:1024", 1300203520, 67 * 10**12, 1, REFUSAL),
]


def program(folder: Path, cases: list[dict[str, object]], status: int = 0) -> Path:
    """Answers with the cases, and writes down what it was asked."""
    document = {"memory_budget_bytes": 1, "memory_budget_source": "made up", "cases": cases}
    path = folder / "bench"
    path.write_text(
        f"#!/bin/sh\necho \"$@\" >{folder}/asked\ncat <<'END'\n{json.dumps(document)}\nEND\n"
        f"echo bad option >&2\nexit {status}\n"
    )
    path.chmod(0o755)
    return path


def test_reads_each_step(tmp_path: Path) -> None:
    tiny, large = predict(Question(("tiny", "large")), program(tmp_path, CASES))
    assert (tiny.size, tiny.variant, tiny.dtype) == ("tiny", "baseline", "f32")
    assert (tiny.batch, tiny.seq, tiny.parameters) == (8, 128, 2873600)
    assert (tiny.step_flops, tiny.step_bytes) == (17678991360, 284166148)
    assert tiny.peak_memory_bytes == 138215688
    assert tiny.fits
    assert (large.variant, large.fits, large.refusal) == ("sdpa", False, REFUSAL)


def test_asks_for_json_of_the_steps_alone(tmp_path: Path) -> None:
    predict(Question(("tiny",), seq=(64, 128), device="cpu"), program(tmp_path, CASES))
    asked = (tmp_path / "asked").read_text().split()
    assert {"--dry-run", "--benchmark_format=json", "--components=full_step"} <= set(asked)
    assert {"--sizes=tiny", "--seq=64,128", "--device=cpu"} <= set(asked)
    assert not [option for option in asked if option.startswith("--batch=")]


def test_a_refused_option_is_told_in_the_programs_words(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"^bad option$"):
        predict(Question(("tiny",)), program(tmp_path, [], 2))


def test_an_answer_without_steps_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no training step"):
        predict(Question(("tiny",)), program(tmp_path, CASES[1:2]))


SIZES = ((4, 128), (8, 128), (16, 128), (8, 64), (8, 256), (4, 512))
BASE, LINEAR, QUADRATIC = 46e6, 70e3, 300.0


def points(off: float = 0.0, base: float = BASE) -> list[GridPoint]:
    """Exactly on the law; the last one `off` times away from it."""
    peaks = [base + b * (LINEAR * s + QUADRATIC * s * s) for b, s in SIZES]
    peaks[-1] *= 1 + off
    return [GridPoint(*size, (peak,)) for size, peak in zip(SIZES, peaks, strict=True)]


def test_the_coefficients_come_back() -> None:
    law = MemoryLaw.fitted_to(points())
    assert law.base == pytest.approx(BASE)
    assert law.linear == pytest.approx(LINEAR)
    assert law.quadratic == pytest.approx(QUADRATIC)
    assert law.largest_residual_percent < 1e-6
    assert law.at(8, 128) == pytest.approx(points()[1].value)


def test_no_coefficient_is_left_out_and_one_may_be_negative() -> None:
    law = MemoryLaw.fitted_to(points(base=-1e6))
    assert law.base == pytest.approx(-1e6)
    assert MemoryLaw.fitted_to(points(base=0.0)).base == pytest.approx(0, abs=1)


def test_shares_add_up_and_the_quadratic_part_grows() -> None:
    law = MemoryLaw.fitted_to(points())
    short, long = law.shares_percent(8, 64), law.shares_percent(4, 512)
    assert sum(short.values()) == pytest.approx(100)
    assert long["quadratic"] > short["quadratic"]
    assert long["base"] < short["base"]
    assert short["base"] == pytest.approx(100 * BASE / points()[3].value)


def test_what_does_not_follow_the_law_shows_in_the_residuals() -> None:
    law = MemoryLaw.fitted_to(points(off=0.2))
    assert law.largest_residual_percent > 1
    assert len(law.residuals_percent) == len(SIZES)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([(8, 128), (8, 256)], "2 sizes"),
        ([(4, 128), (8, 128), (16, 128)], "too alike"),
        ([(8, 128), (8, 128), (8, 128)], "1 size"),
    ],
)
def test_too_few_sizes_are_an_error(sizes: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(LawRefusedError, match=reason):
        MemoryLaw.fitted_to([GridPoint(b, s, (1e6 + b * s,)) for b, s in sizes])


def test_a_peak_of_nothing_is_an_error() -> None:
    with pytest.raises(LawRefusedError, match="batch 4, sequence 128: 0 in round 1"):
        MemoryLaw.fitted_to([GridPoint(b, s, (0.0,)) for b, s in SIZES])


FREE = 10e9


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
        assert isinstance(question, ModelQuestion)
        assert "--n-layers=2" in question.options
        assert len(question.seq) <= 20
        return [prediction(seq, self.free) for seq in question.seq]


QUESTION = ModelQuestion(sizes=("custom",), batch=(8,), seq=(512,), model=("--n-layers=2",))


def longest_by_trial(limit: float) -> int:
    return max(s for s in range(2, 4000) if prediction(s).peak_memory_bytes <= limit)


def test_it_is_found_to_the_token_in_few_questions() -> None:
    played = Played()
    known = (prediction(512), 0.5)
    target = find_target(played, QUESTION, known, most_seconds=1e9)
    assert target.fitting is not None
    assert target.fitting.seq == longest_by_trial(FREE)
    assert target.confirmable is not None
    assert target.confirmable.seq == longest_by_trial(
        CONFIRMED_SHARE * target.fitting.peak_memory_bytes
    )
    assert target.held_back_by == "memory"
    assert played.questions < 15


def test_time_holds_the_confirmation_back() -> None:
    known = (prediction(512), 0.5)
    target = find_target(Played(), QUESTION, known, most_seconds=2.0)
    assert target.held_back_by == "time"
    assert target.confirmable is not None
    assert target.confirmable_seconds is not None
    assert target.confirmable_seconds <= 2.0
    longer = prediction(target.confirmable.seq + 1)
    assert 0.5 * time_factor(longer, known[0]) > 2.0
    assert target.fitting is not None
    assert target.fitting.seq > target.confirmable.seq


def test_nothing_fits() -> None:
    target = find_target(Played(free=1e6), QUESTION, (prediction(512), 0.5), 60)
    assert target.fitting is None
    assert target.confirmable is None
    assert target.held_back_by


def test_everything_fits() -> None:
    best = longest_accepted(
        lambda lengths: [prediction(s, 1e30) for s in lengths], lambda _: True, 512
    )
    assert best is not None
    assert best.seq == LONGEST


@pytest.mark.parametrize(("low", "high"), [(2, 3), (2, 4), (100, 117), (100, 118), (1, 2**20)])
def test_between_stays_inside_and_ends(low: int, high: int) -> None:
    found = between(low, high)
    assert all(low < seq < high for seq in found)
    assert bool(found) == (high - low > 1)
    assert len(found) <= 16


def test_the_time_follows_what_grows_fastest() -> None:
    short, long = prediction(512), prediction(2048)
    by_memory = long.peak_memory_bytes / short.peak_memory_bytes
    assert time_factor(long, short) == pytest.approx(by_memory)
    slow = dataclasses.replace(long, step_flops=100 * short.step_flops)
    assert time_factor(slow, short) == pytest.approx(100)
