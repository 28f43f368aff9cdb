"""What `tiny_llama_bench --dry-run` predicts of training steps that nobody has run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.programs import PROGRAM, CaseCost, SuiteError, ask_costs


@dataclass(frozen=True)
class Question:
    """The steps to predict; batch and seq empty: each size's own."""

    sizes: tuple[str, ...]
    dtype: str = "f32"
    variants: tuple[str, ...] = ("baseline",)
    batch: tuple[int, ...] = ()
    seq: tuple[int, ...] = ()
    device: str = "auto"

    @property
    def options(self) -> list[str]:
        """Of tiny_llama_bench."""
        axes = {
            "components": (STEP,),
            "sizes": self.sizes,
            "dtypes": (self.dtype,),
            "variants": self.variants,
            "batch": self.batch,
            "seq": self.seq,
        }
        given = [f"--{name}={','.join(map(str, v))}" for name, v in axes.items() if v]
        return [f"--device={self.device}", *given]


@dataclass(frozen=True)
class Prediction:
    """One training step. `step_flops`: model_flops. `refusal`: why it cannot run here, empty where
    it can."""

    size: str
    variant: str
    dtype: str
    batch: int
    seq: int
    parameters: int
    step_flops: float
    step_bytes: float
    peak_memory_bytes: float
    refusal: str

    @property
    def fits(self) -> bool:
        """In the memory that was free when it was asked."""
        return not self.refusal


Predictor = Callable[[Question], list[Prediction]]


def _prediction(cost: CaseCost) -> Prediction:
    name = cost.name
    return Prediction(
        name.size,
        name.variant,
        name.dtype,
        name.batch,
        name.seq,
        cost.parameters,
        float(cost.model_flops),
        float(cost.bytes),
        float(cost.predicted_memory_bytes),
        "" if cost.fits else cost.reason,
    )


def predict(question: Question, program: Path = PROGRAM) -> list[Prediction]:
    """In the program's order. SuiteError where it refuses the options or cannot be started."""
    costs = ask_costs(program, question.options)
    steps = [_prediction(cost) for cost in costs if cost.name.is_training_step]
    if not steps:
        raise SuiteError(f"{program.name} --dry-run: no training step in its answer")
    return steps
