"""The longest sequence on exercise 2's worksheet: predicted, confirmed, or why there is none."""

from tinyllama_tools.study.size_predictions import Prediction, Target
from tinyllama_tools.workshop.exercise_2_figures import Limit, limit_section
from tinyllama_tools.workshop.runs import MeasuredRun
from tinyllama_tools.workshop.worksheet import unanswered

MB = 2**20


def predicted(seq: int, peak: float) -> Prediction:
    return Prediction("custom", "baseline", "f32", 8, seq, 1, 1.0, 1.0, peak, "")


def confirmation(reason: str = "") -> MeasuredRun:
    summary = {
        "summary": {"peak_memory_bytes": 90 * MB, "first_step_seconds": 12.0},
        "model": {"predicted_peak_memory_bytes": 100 * MB},
    }
    return MeasuredRun("longest_sequence", "", None if reason else summary, 0, reason)


def limit(held_back_by: str, run: MeasuredRun | None) -> str:
    target = Target(predicted(3560, 99 * MB), predicted(3369, 90 * MB), 34.0, held_back_by)
    return "\n".join(limit_section(Limit(8, target, "", run)))


def test_the_limit_is_predicted_and_confirmed() -> None:
    text = limit("memory", confirmation())
    assert "longest that fits is 3560 tokens" in text
    assert "Confirmed by one step at 3369 tokens (the rule is at most 90%" in text
    assert "peak 90.0 MB, predicted 100.0 MB, -10.0 % apart" in text
    assert unanswered(text) == []
    assert "--max-minutes" in limit("time", confirmation())
    assert "failed: killed" in limit("memory", confirmation("killed"))
    assert "Not confirmed" in limit("memory", None)


def test_the_limit_says_why_there_is_none() -> None:
    assert "not predicted: no bench" in "\n".join(limit_section(Limit(8, None, "no bench")))
    nothing = Target(None, None, None, "not even two tokens fit")
    assert "not even two tokens fit" in "\n".join(limit_section(Limit(8, nothing)))
