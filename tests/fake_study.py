"""Predictions of a made-up machine's training steps, in place of tiny_llama_bench --dry-run."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.models.size_predictions import Prediction, Question
from training_figures import Figures

GIB = 2**30


@dataclass
class PlayedPredictor:
    """Answers from Figures; what needs more than `free_bytes` does not fit."""

    free_bytes: float = 8 * GIB
    asked: list[Question] = field(default_factory=list)

    def __call__(self, question: Question) -> list[Prediction]:
        self.asked.append(question)
        return [
            self.one(question, size, variant, batch, seq)
            for size in question.sizes
            for variant in question.variants
            for batch in question.batch or (problem_sizes()[size]["batch"],)
            for seq in question.seq or (problem_sizes()[size]["seq"],)
        ]

    def one(self, question: Question, size: str, variant: str, batch: int, seq: int) -> Prediction:
        figures = Figures(batch, seq, size, variant)
        peak = figures.peak_bytes
        scores = 5 * 4 * batch * figures.dims["n_heads"] * seq**2 * figures.dims["n_layers"] / 2
        if variant != "baseline":
            peak -= scores
        refusal = "" if peak <= self.free_bytes else f"predicted peak memory {peak} exceeds"
        return Prediction(
            size,
            variant,
            question.dtype,
            batch,
            seq,
            figures.parameters,
            figures.flops,
            figures.bytes,
            peak,
            refusal,
        )
