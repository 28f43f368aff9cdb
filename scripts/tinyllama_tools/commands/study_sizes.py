"""The training part of a study: which sizes run, how long they take, and what they left."""

from __future__ import annotations

import datetime
import json
import math
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinyllama_tools.core.app import Json, problem_sizes, write_whole
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.text import duration, markdown_table
from tinyllama_tools.data.profiles import BadProfileError, read_profile
from tinyllama_tools.data.programs import TrainingError, TrainingProgram, TrainingRun, command_line

if TYPE_CHECKING:
    from tinyllama_tools.core.process import Progress
    from tinyllama_tools.models.size_predictions import Prediction

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


CONFIG, LOG, SUMMARY = "config.json", "training_output.log", "performance_summary.json"
PROFILES = "pytorch_profiles"
PROFILERS = ("--enable-pytorch-profiler", "--profile-memory", "--enable-deepspeed-flops")


@dataclass(frozen=True)
class SizeResult:
    """A size that was run or left out. `summary`: performance_summary.json, None where there is
    none; `failure`: why a run gave nothing to compare; `is_earlier`: from a study before this."""

    size: str
    folder: Path | None = None
    summary: Json | None = None
    seconds: float = 0.0
    failure: str = ""
    refusal: str = ""
    is_interrupted: bool = False
    is_earlier: bool = False
    config: Json = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether it has figures to compare."""
        return self.summary is not None and not self.failure


def study_folder(results: Path, size: str) -> Path:
    """results/performance_results_<size>_<UTC time>, not yet made."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return results / f"performance_results_{size}_{now.strftime('%Y%m%d_%H%M%S')}"


def run_options(settings: Settings, plan: SizePlan, folder: Path) -> list[str]:
    """Of tiny_llama_train."""
    options = settings.options(plan.size, plan.prediction.batch, plan.num_steps)
    if settings.has_profilers:
        return [*options, *PROFILERS, f"--output-dir={folder}"]
    return options


def typed_command(
    program: TrainingProgram, settings: Settings, plan: SizePlan, folder: Path
) -> str:
    """What repeats the run, typed in the checkout."""
    place = Path(shown(folder))
    kind, target = (
        ("--profile-dir", place / PROFILES) if settings.has_profilers else ("--output-dir", place)
    )
    options = run_options(settings, plan, place)
    return command_line([*program.arguments, *options, f"{kind}={target}"])


def configuration(settings: Settings, plan: SizePlan, command: str) -> Json:
    """config.json of a run about to begin."""
    expected = {
        "step_seconds": plan.step_seconds,
        "total_seconds": plan.total_seconds,
        "source": plan.rate.source if plan.rate else None,
        "peak_memory_bytes": plan.prediction.peak_memory_bytes,
    }
    dimensions = {
        key: value
        for key, value in problem_sizes()[plan.size].items()
        if key not in {"batch", "seq"}
    }
    return {
        "problem_size": plan.size,
        **dimensions,
        "seq_len": plan.prediction.seq,
        "batch_size": plan.prediction.batch,
        "num_steps": plan.num_steps,
        "parameters": plan.prediction.parameters,
        "dtype": settings.dtype,
        "variant": settings.variant,
        "profilers_enabled": settings.has_profilers,
        "command": command,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "expected": expected,
        "measured": None,
    }


def measured(run: TrainingRun) -> Json:
    """What config.json says beside what was expected."""
    found = (run.summary or {}).get("summary", {})
    keys = ("average_step_seconds", "samples_per_second", "peak_memory_bytes", "steps_completed")
    return {"total_seconds": run.seconds, **{key: found.get(key) for key in keys}}


def last_step_line(log: Path) -> str:
    """The newest `Step n/N: ...` of a run in progress; empty where there is none yet."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    steps = [line for line in text.split("\n")[:-1] if line.startswith("Step ")]
    return steps[-1] if steps else ""


@contextmanager
def followed(log: Path, progress: Progress) -> Iterator[None]:
    """Shows the newest step of the log while the block runs, on a terminal only."""
    is_done = threading.Event()

    def follow() -> None:
        while not is_done.wait(1.0):
            line = last_step_line(log)
            if line:
                print(f"\r{line}\033[K", end="", file=progress.stream, flush=True)

    if not progress.stream.isatty():
        yield
        return
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
        progress.end()


def failure_of(run: TrainingRun) -> str:
    """Empty where the run has figures."""
    if run.exit_status != 0:
        words = [line for line in run.output.splitlines() if line.strip()]
        return f"ended with {run.exit_status}: {words[-1] if words else 'it said nothing'}"
    if not run.summary or not run.summary["summary"]["steps_completed"]:
        return "no step was completed"
    return ""


def interrupted_result(plan: SizePlan, folder: Path, target: Path, config: Json) -> SizeResult:
    """What the program wrote when Ctrl-C ended it is kept, and is no result to compare."""
    try:
        summary = read_profile(target).summary
    except BadProfileError:
        summary = None
    done = summary["summary"]["steps_completed"] if summary else 0
    what = f"interrupted after {done} of {plan.num_steps} steps"
    return SizeResult(plan.size, folder, summary, 0.0, what, is_interrupted=True, config=config)


def run_size(
    program: TrainingProgram, settings: Settings, plan: SizePlan, folder: Path, progress: Progress
) -> SizeResult:
    """Trains one size into its folder, which must exist. An interruption keeps what was written.

    Raises OSError where the files cannot be written.
    """
    options = run_options(settings, plan, folder)
    target = folder / PROFILES if settings.has_profilers else folder
    command = typed_command(program, settings, plan, folder)
    config = configuration(settings, plan, command)
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    try:
        with followed(folder / LOG, progress):
            run = program.run(options, target, folder / LOG)
    except TrainingError as error:
        return SizeResult(plan.size, folder, failure=str(error), config=config)
    except KeyboardInterrupt:
        return interrupted_result(plan, folder, target, config)
    config["measured"] = measured(run)
    write_whole(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    if run.summary and not (folder / SUMMARY).is_file():
        write_whole(folder / SUMMARY, json.dumps(run.summary, indent=2) + "\n")
    return SizeResult(plan.size, folder, run.summary, run.seconds, failure_of(run), config=config)


# Of a folder's name: 20251014_123456.
TIME_LENGTH = 15


def read_earlier(folder: Path) -> SizeResult | None:
    """A size of an earlier study of which all steps were made, with a last loss that is a number;
    None where the folder is not one."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        whole = (folder / SUMMARY).is_file()
        summary = read_profile(folder if whole else folder / PROFILES).summary
        means, wanted = summary["summary"], summary["configuration"]["num_steps"]
        is_finished = means["steps_completed"] == wanted and means["final_loss"] is not None
        if not is_finished or not means["average_step_seconds"]:
            return None
        return SizeResult(config["problem_size"], folder, summary, config=config, is_earlier=True)
    except (OSError, ValueError, KeyError, TypeError, BadProfileError):
        return None


def _setting(result: SizeResult) -> tuple[object, ...]:
    """Dtype, variant and profilers, device, threads and libtorch: what must be alike in a table."""
    context = (result.summary or {})["context"]
    names = (result.config.get(name) for name in ("dtype", "variant", "profilers_enabled"))
    device = context["device"]["name"]
    return (*names, device, context.get("threads"), context.get("torch_version"))


def with_earlier(found: Sequence[SizeResult], results: Path) -> list[SizeResult]:
    """The results and the newest earlier ones of other sizes with the same settings, by size."""
    measured = [result for result in found if result.is_measured]
    all_sizes = list(problem_sizes())
    by_size = {result.size: result for result in found}
    if measured:
        for folder in newest_first(results):
            earlier = read_earlier(folder)
            is_new = earlier is not None and earlier.size not in by_size
            if earlier and is_new and _setting(earlier) == _setting(measured[0]):
                by_size[earlier.size] = earlier
    return sorted(by_size.values(), key=lambda result: all_sizes.index(result.size))


def newest_first(results: Path) -> list[Path]:
    """The folders of all studies."""
    folders = results.glob("performance_results_*")
    return sorted(folders, key=lambda path: path.name[-TIME_LENGTH:], reverse=True)


def earlier_rate(results: Path, settings: Settings, prediction: Prediction) -> Rate | None:
    """Of the newest earlier run of that dtype and variant, the nearest in size; None of none.

    It may be of another device: its name stands in the source.
    """
    found: dict[str, SizeResult] = {}
    for folder in newest_first(results):
        run = read_earlier(folder)
        wanted = (settings.dtype, settings.variant)
        if run and (run.config.get("dtype"), run.config.get("variant")) == wanted:
            found.setdefault(run.size, run)

    def distance(run: SizeResult) -> float:
        flops = (run.summary or {})["model"]["flops_per_step"]
        return abs(math.log(flops / prediction.step_flops))

    nearest = min(found.values(), key=distance, default=None)
    if nearest is None or nearest.summary is None or nearest.folder is None:
        return None
    seconds = nearest.summary["summary"]["average_step_seconds"]
    rate = nearest.summary["model"]["flops_per_step"] / seconds
    device = nearest.summary["context"]["device"]["name"]
    source = f"{rate / 1e9:,.1f} GFLOP/s attained in {nearest.folder.name}, on {device}"
    return Rate(rate, source)
