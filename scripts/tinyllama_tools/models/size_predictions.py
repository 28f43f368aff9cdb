"""What the program predicts of training steps that nobody has run, and the longest sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.programs import PROGRAM, SuiteError, ask_costs
from tinyllama_tools.stats.laws import BASE, LINEAR, QUADRATIC, Fit, GridPoint


@dataclass(frozen=True)
class Question:
    """The steps to predict; batch and seq empty: each size's own. `model`: options of a model given
    by its dimensions (--n-layers=2), which is size `custom`."""

    sizes: tuple[str, ...]
    dtype: str = "f32"
    variants: tuple[str, ...] = ("baseline",)
    batch: tuple[int, ...] = ()
    seq: tuple[int, ...] = ()
    device: str = "auto"
    model: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """Of tiny_llama_bench."""
        axes = {"components": (STEP,), "sizes": self.sizes, "dtypes": (self.dtype,)}
        axes |= {"variants": self.variants, "batch": self.batch, "seq": self.seq}
        given = [f"--{name}={','.join(map(str, v))}" for name, v in axes.items() if v]
        return [f"--device={self.device}", *given, *self.model]


@dataclass(frozen=True)
class Prediction:
    """One training step. `step_flops`: model_flops. `refusal`: why it cannot run in the memory that
    was free when it was asked, empty where it can."""

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
        return not self.refusal


Predictor = Callable[[Question], list[Prediction]]


def predict(question: Question, program: Path = PROGRAM) -> list[Prediction]:
    """In the program's order. SuiteError where it refuses the options or cannot be started."""
    steps = [
        Prediction(
            *(of.name.size, of.name.variant, of.name.dtype, of.name.batch, of.name.seq),
            *(of.parameters, of.model_flops, of.bytes, of.predicted_memory_bytes),
            "" if of.fits else of.reason,
        )
        for of in ask_costs(program, question.options)
        if of.name.is_training_step
    ]
    if not steps:
        raise SuiteError(f"{program.name} --dry-run: no training step in its answer")
    return steps


@dataclass(frozen=True)
class MemoryLaw:
    """memory(B, S) = base + B (linear S + quadratic S^2), as the workshop's exercise 2 describes
    it; coefficients in bytes, bytes a token, and bytes a pair of tokens, which may be below 0.

    fit_memory_law chooses among more terms: the exercise fills in exactly these three, whether or
    not its few sizes support each. The law describes the sizes that were measured; what other sizes
    need is predicted by the program.

    `residuals_percent`: measured minus fitted, of the measured, in the order of the points.
    """

    base: float
    linear: float
    quadratic: float
    residuals_percent: tuple[float, ...]

    @classmethod
    def fitted_to(cls, points: Sequence[GridPoint]) -> MemoryLaw:
        """LawRefusedError where the points do not decide the three coefficients."""
        fit = Fit(points, (BASE, LINEAR, QUADRATIC), is_bounded=False)
        return cls(*fit.coefficients.tolist(), tuple((100 * fit.residuals).tolist()))

    def at(self, batch: int, seq: int) -> float:
        """Fitted bytes at a size."""
        return self.base + batch * seq * (self.linear + seq * self.quadratic)

    def shares_percent(self, batch: int, seq: int) -> dict[str, float]:
        """Of each part at a size."""
        tokens = batch * seq
        parts = {"base": self.base, "linear": self.linear * tokens}
        parts["quadratic"] = self.quadratic * tokens * seq
        return {name: 100 * part / self.at(batch, seq) for name, part in parts.items()}

    @property
    def largest_residual_percent(self) -> float:
        """By magnitude."""
        return max(map(abs, self.residuals_percent))


# What tiny_llama_bench takes at most, as batch or as sequence.
LONGEST, SHORTEST = 2**20, 2
VALUES_A_QUESTION = 16
# An allocator's rounding, a BLAS's scratch memory and the program itself need room of their own.
CONFIRMED_SHARE = 0.9
Ask = Callable[[Sequence[int]], list[Prediction]]


@dataclass(frozen=True)
class Target:
    """The lengths found. `fitting`: the longest that fits; `confirmable`: the longest that is safe
    to run, at most CONFIRMED_SHARE of that memory and within the time; None where none is."""

    fitting: Prediction | None
    confirmable: Prediction | None
    confirmable_seconds: float | None
    held_back_by: str


def longest_accepted(
    ask: Ask, accept: Callable[[Prediction], bool], first: int
) -> Prediction | None:
    """The longest accepted sequence, to the token; None where even length 2 is not.

    `accept` must hold up to some length and not beyond it. `first`: where to begin looking.
    """
    lengths = {SHORTEST, *(min(first * 2**i, LONGEST) for i in range(VALUES_A_QUESTION))}
    best, accepted, refused = None, SHORTEST - 1, LONGEST + 1
    while lengths:
        for found in sorted(ask(sorted(lengths)), key=lambda one: one.seq):
            if not accept(found):
                refused = found.seq
                break
            best, accepted = found, found.seq
        # values that divide the open range between them
        width = refused - accepted
        parts = min(VALUES_A_QUESTION + 1, width)
        lengths = {accepted + width * i // parts for i in range(1, parts)} - {accepted, refused}
    return best


def time_factor(long: Prediction, known: Prediction) -> float:
    """How many times longer than a known step: the fastest growing of its FLOPs, bytes and memory.

    Long sequences spend their time in the scores, which count in memory more than in FLOPs.
    """
    figures = ("step_flops", "step_bytes", "peak_memory_bytes")
    return max(getattr(long, of) / getattr(known, of) for of in figures)


def find_target(
    predictor: Predictor,
    question: Question,
    known: tuple[Prediction, float],
    most_seconds: float,
) -> Target:
    """What fits and what can be confirmed by one step. `known`: a step and its measured seconds."""
    reference, seconds = known

    def ask(lengths: Sequence[int]) -> list[Prediction]:
        return predictor(replace(question, seq=tuple(lengths)))

    fitting = longest_accepted(ask, lambda found: found.fits, reference.seq)
    if fitting is None:
        return Target(None, None, None, "not even two tokens fit")
    room = CONFIRMED_SHARE * fitting.peak_memory_bytes

    def is_safe(found: Prediction) -> bool:
        return found.fits and found.peak_memory_bytes <= room

    def is_in_time(found: Prediction) -> bool:
        return is_safe(found) and seconds * time_factor(found, reference) <= most_seconds

    longest = longest_accepted(ask, is_in_time, reference.seq)
    if longest is None:
        return Target(fitting, None, None, "not even two tokens fit into the time")
    longer = ask([longest.seq + 1]) if longest.seq < LONGEST else []
    held_back = "time" if any(map(is_safe, longer)) else "memory"
    return Target(fitting, longest, seconds * time_factor(longest, reference), held_back)
