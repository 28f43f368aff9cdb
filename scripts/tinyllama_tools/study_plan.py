"""Which sizes of a performance study run, and how long they are expected to take."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tinyllama_tools.core.text import duration, markdown_table
from tinyllama_tools.data.programs import TrainingError, TrainingProgram, problem_sizes
from tinyllama_tools.size_predictions import Prediction

# The first is left out of the average.
SAMPLE_STEPS = 3
# A sample of the whole batch that is expected to take longer is made with a quarter of it.
LONG_SAMPLE_SECONDS = 10.0
SEED_SIZE = "tiny"
MIB = 2**20


@dataclass(frozen=True)
class Rate:
    """What a run attained: model FLOPs a second, and of what it was measured."""

    flops_per_second: float
    source: str


@dataclass(frozen=True)
class Settings:
    """What all sizes of a study share. `max_seconds`: of one size."""

    dtype: str = "f32"
    variant: str = "baseline"
    num_steps: int = 50
    max_seconds: float = 900.0
    has_profilers: bool = False

    def options(self, size: str, batch: int, steps: int) -> list[str]:
        """Of tiny_llama_train; batch and sequence are given so that nothing hangs on its
        defaults."""
        return [
            f"--size={size}",
            f"--batch-size={batch}",
            f"--seq-len={problem_sizes()[size]['seq']}",
            f"--num-steps={steps}",
            f"--dtype={self.dtype}",
            f"--variant={self.variant}",
        ]


@dataclass(frozen=True)
class SizePlan:
    """A size before it runs. `rate` is None where nothing was measured to predict from; `refusal`
    says why the size is not attempted, `failure` that its sample already went wrong."""

    prediction: Prediction
    num_steps: int
    rate: Rate | None = None
    refusal: str = ""
    failure: str = ""

    @property
    def size(self) -> str:
        """Its name in fixtures/problem_sizes.json."""
        return self.prediction.size

    @property
    def step_seconds(self) -> float | None:
        """FLOPs of a step over the attained rate."""
        return self.prediction.step_flops / self.rate.flops_per_second if self.rate else None

    @property
    def total_seconds(self) -> float | None:
        """Of all steps."""
        return None if self.step_seconds is None else self.num_steps * self.step_seconds


def attained_rate(program: TrainingProgram, settings: Settings, size: str, batch: int) -> Rate:
    """From a sample of a few steps. TrainingError where it cannot be run or gives no time."""
    with tempfile.TemporaryDirectory(prefix="tiny_llama_study_") as folder:
        run = program.run(settings.options(size, batch, SAMPLE_STEPS), Path(folder))
    if run.exit_status != 0 or not run.summary:
        raise TrainingError(f"the sample of {size} ended with {run.exit_status}")
    seconds = run.summary["summary"]["average_step_seconds"]
    flops = run.summary["model"]["flops_per_step"]
    what = f"{SAMPLE_STEPS} steps of {size} at batch {batch}"
    return Rate(flops / seconds, f"{flops / seconds / 1e9:,.1f} GFLOP/s attained in {what}")


def refuse_for_time(plan: SizePlan, settings: Settings) -> str:
    """Empty where the size is expected to be done in time, or nothing is known."""
    seconds = plan.total_seconds
    if plan.rate is None or seconds is None or seconds <= settings.max_seconds:
        return ""
    return (
        f"{plan.num_steps} steps would take {duration(seconds)}, more than --max-minutes "
        f"{settings.max_seconds / 60:g} ({plan.rate.source})"
    )


def sample_batch(prediction: Prediction, known: Rate) -> int:
    """The whole batch where its sample is quick, else a quarter, which is nearly as efficient."""
    seconds = SAMPLE_STEPS * prediction.step_flops / known.flops_per_second
    whole = prediction.batch
    return whole if seconds <= LONG_SAMPLE_SECONDS else max(1, whole // 4)


def plan_size(
    program: TrainingProgram, settings: Settings, prediction: Prediction, known: Rate
) -> SizePlan:
    """One size; `known` is a rate of a smaller one, which decides whether to sample at all."""
    steps = settings.num_steps
    if not prediction.fits:
        return SizePlan(prediction, steps, refusal=prediction.refusal)
    batch = sample_batch(prediction, known)
    sample_share = batch / prediction.batch * SAMPLE_STEPS
    by_known = prediction.step_flops / known.flops_per_second
    rate = known
    if sample_share * by_known <= settings.max_seconds:
        try:
            rate = attained_rate(program, settings, prediction.size, batch)
        except TrainingError as error:
            return SizePlan(prediction, steps, failure=f"its sample failed: {error}")
    return plan_with_rate(settings, prediction, rate)


def plan_with_rate(settings: Settings, prediction: Prediction, rate: Rate | None) -> SizePlan:
    """Refused where it does not fit, or would take too long at this rate."""
    plan = SizePlan(prediction, settings.num_steps, rate)
    refusal = prediction.refusal or refuse_for_time(plan, settings)
    return replace(plan, refusal=refusal)


def plan_sizes(
    program: TrainingProgram, settings: Settings, predictions: Sequence[Prediction]
) -> list[SizePlan]:
    """Samples every size that fits, the smallest first, and returns them in the order given.

    Raises TrainingError where even the smallest model cannot be trained with these settings.
    """
    if not any(prediction.fits for prediction in predictions):
        return [SizePlan(p, settings.num_steps, refusal=p.refusal) for p in predictions]
    known = attained_rate(program, settings, SEED_SIZE, problem_sizes()[SEED_SIZE]["batch"])
    plans: dict[str, SizePlan] = {}
    for prediction in sorted(predictions, key=lambda p: p.step_flops):
        if prediction.size == SEED_SIZE and prediction.fits:
            plan = plan_with_rate(settings, prediction, known)
        else:
            plan = plan_size(program, settings, prediction, known)
        known = plan.rate or known
        plans[prediction.size] = plan
    return [plans[prediction.size] for prediction in predictions]


def plan_table(plans: Sequence[SizePlan]) -> list[str]:
    """What is said before anything runs."""
    header = ("size", "parameters", "batch x seq", "FLOPs a step", "peak MB", "expected", "runs")
    rows = []
    for plan in plans:
        p, step = plan.prediction, plan.step_seconds
        time = "not known" if step is None else f"{step:.3g} s/iter"
        if plan.total_seconds is not None:
            time += f", {duration(plan.total_seconds)} in all"
        rows.append(
            (
                plan.size,
                f"{p.parameters:,}",
                f"{p.batch} x {p.seq}",
                f"{p.step_flops:.3g}",
                f"{p.peak_memory_bytes / MIB:,.0f}",
                time,
                f"no: {reason}" if (reason := plan.refusal or plan.failure) else "yes",
            )
        )
    return markdown_table(header, rows)
