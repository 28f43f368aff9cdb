"""Fakes for tiny_llama_train and for tiny_llama_bench's --dry-run, on a machine of one speed.

A made-up summary is training_summary.json, which the program wrote of tiny, with the figures that
options decide set anew: work and memory by formulas, times from both.
"""

import copy
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.profiles import MeasuredRun
from tinyllama_tools.data.programs import CaseCost, TrainingError
from tinyllama_tools.models.step_ratios import Evidence, StepRatio
from tinyllama_tools.stats.rank_tests import Interval

Json = dict[str, Any]
GIB = 2**30
STORED: Json = json.loads(Path(__file__).with_name("training_summary.json").read_text("utf-8"))
PROFILER_OPTIONS = {
    "operators": "--enable-pytorch-profiler",
    "memory": "--profile-memory",
    "flops": "--enable-deepspeed-flops",
}
FLOPS_PER_SECOND, STEP_SECONDS = 80e9, 0.02
# of a step, against a plain step of the baseline
FIRST_STEP, PROFILED_STEP, OTHER_VARIANT = 3.0, 1.1, 0.7
PROFILED_STEPS = range(2, 5)
FOUR_RANKS = {
    **{"world_size": 4, "backend": "gloo", "started_by": "torchrun"},
    **{"bucket_MiB": 25, "overlap": True, "share": "ddp"},
}


def score_bytes(batch: int, seq: int, variant: str, of: Mapping[str, int]) -> int:
    """What is no baseline keeps no attention scores."""
    return 12 * batch * seq**2 * of["n_heads"] * of["n_layers"] * (variant == "baseline")


def step_cost(
    size: str = "tiny",
    batch: int = 0,
    seq: int = 0,
    variant: str = "baseline",
    dtype: str = "f32",
    free_bytes: float = 8 * GIB,
) -> CaseCost:
    """Of a training step; batch and sequence 0: the size's own."""
    of = problem_sizes()[size]
    batch, seq, d = batch or of["batch"], seq or of["seq"], of["hidden_dim"]
    kv = d // of["n_heads"] * of["n_kv_heads"]
    block = 2 * d * d + 2 * d * kv + 3 * d * of["intermediate_dim"]
    products = of["n_layers"] * block + d * of["vocab_size"]
    parameters = products + d * of["vocab_size"] + (2 * of["n_layers"] + 1) * d
    tokens, width = batch * seq, of["n_layers"] * (8 * d + 4 * of["intermediate_dim"])
    flops = 3 * tokens * (2 * products + 4 * seq * d * of["n_layers"])
    kept = tokens * (4 * width + 8 * of["vocab_size"])
    peak = 16 * parameters + kept + score_bytes(batch, seq, variant, of)
    name = CaseName("full_step", "train", variant, size, dtype, batch, seq)
    traffic, reason = flops // 60, f"predicted peak memory {peak} exceeds"
    fits = peak <= free_bytes
    return CaseCost(name, parameters, *[flops] * 3, traffic // 4, traffic, peak, fits, reason)


@dataclass
class PlayedPredictor:
    """In place of ask_costs(); what needs more than `free_bytes` does not fit."""

    free_bytes: float = 8 * GIB

    def __call__(self, options: Sequence[str]) -> list[CaseCost]:
        given = dict(option.removeprefix("--").split("=") for option in options)
        axes = [given.get(name, "0").split(",") for name in ("sizes", "batch", "seq", "variants")]
        return [
            step_cost(size, int(b), int(s), variant, given["dtypes"], self.free_bytes)
            for size, b, s, variant in itertools.product(*axes)
        ]


def set_key(document: Json, dotted: str, value: object) -> None:
    """Replaces `a.b.0.c`; KeyError where there is no such key to replace."""
    *parents, last = dotted.split(".")
    place: Any = document
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    key = int(last) if isinstance(place, list) else last
    if isinstance(place, dict) and key not in place:
        raise KeyError(dotted)
    place[key] = value


def changed(summary: Json, changes: Mapping[str, Any]) -> Json:
    """A copy with these keys replaced; those of a part that is not there are left out.
    `components` takes shares by name, `step_seconds` the time of every step."""
    found = copy.deepcopy(summary)
    for key, value in changes.items():
        if key == "components":
            for component in (found["operators"] or {"components": []})["components"]:
                component["percent"] = value.get(component["name"], component["percent"])
        elif key == "step_seconds":
            for step in found["steps"]:
                step["time_seconds"] = value
        elif found.get(key.split(".")[0]) is not None:
            set_key(found, key, copy.deepcopy(value))
    return found


def operator_table(rows: Sequence[tuple[str, int, float, float]]) -> list[Json]:
    """`operators.table` of name, calls, seconds and share."""
    names = ("name", "calls", "cpu_self_seconds", "share_percent")
    rest = {"device_self_seconds": None, "device_total_seconds": None, "self_memory_bytes": 0}
    return [
        {**dict(zip(names, row, strict=True)), "cpu_total_seconds": row[2], **rest} for row in rows
    ]


def made_up_steps(count: int, seconds: float, peak: int, is_profiled: bool) -> list[Json]:
    """The first is slow, and a profiler touches PROFILED_STEPS."""
    stored, found = STORED["steps"][0], []
    for step in range(1, count + 1):
        profiled = is_profiled and step in PROFILED_STEPS
        factor = (FIRST_STEP if step == 1 else 1) * (PROFILED_STEP if profiled else 1)
        of = {"step": step, "loss": 6.9 - 0.01 * step, "peak_memory_bytes": peak}
        phases = {f"{phase}_seconds": seconds * factor / 4 for phase in ("forward", "backward")}
        at = {"time_seconds": seconds * factor, **phases, "profiled": profiled}
        found.append(stored | of | at)
    return found


def averages(steps: list[Json], samples: int, tokens: int) -> Json:
    """`summary` of steps, whose averages are those of a plain one."""
    seconds = min(step["time_seconds"] for step in steps)
    return STORED["summary"] | {
        "steps_completed": len(steps),
        "steps_averaged": max(1, len(steps) - 1),
        "first_step_seconds": steps[0]["time_seconds"],
        **{f"{kind}_step_seconds": seconds for kind in ("average", "median", "plain_average")},
        "stddev_step_seconds": 0.01 * seconds,
        "samples_per_second": samples / seconds,
        "tokens_per_second": tokens / seconds,
        "peak_memory_bytes": steps[0]["peak_memory_bytes"],
        "final_loss": steps[-1]["loss"],
    }


def memory_part(cost: CaseCost, scores: int) -> Json:
    """`memory`, whose peak, weights and scores are those of the formulas."""
    weights, peak = 4 * cost.parameters, cost.predicted_memory_bytes
    found = copy.deepcopy(STORED["memory"])
    found["breakdown_at_peak"] |= {
        **{"parameters": weights, "gradients": weights, "optimizer_states": 2 * weights},
        **{"activations": peak - 4 * weights - scores, "attention_scores": scores, "temporary": 0},
    }
    found["component_activation_bytes"]["attention/core"] = scores
    return found | {
        **{"peak_bytes": peak, "average_bytes": 0.7 * peak, "peak_to_average": 1 / 0.7},
        **{"baseline_bytes": 3 * weights, "live_bytes_after_steps": [3 * weights] * 3},
    }


def operators_part(gpu: bool, shapes: bool) -> Json:
    """`operators`; with `shapes` every operator has two rows, as --profile-operators gives some."""
    found = copy.deepcopy(STORED["operators"])
    if gpu:
        kernels = {"kernels_per_step": found["operator_calls_per_step"], "distinct_kernels": 40}
        found |= {"device_time": "gpu", "transfers_per_step": 1, **kernels}
        for row in found["table"]:
            row["device_self_seconds"] = row["cpu_self_seconds"]
            row["device_total_seconds"] = row["cpu_total_seconds"]
    if shapes:
        sums = {key for key, value in found["table"][0].items() if isinstance(value, (int, float))}
        found["table"] = [
            row | {key: type(row[key])(row[key] * part) for key in sums} | {"input_shapes": shape}
            for row in found["table"]
            for part, shape in ((0.75, "[1024, 256], [256, 512]"), (0.25, "[1024, 512]"))
        ]
        found["table"].sort(key=lambda row: -row["share_percent"])
    return found


def made_up_summary(
    changes: Mapping[str, Any] | None = None,
    *,
    batch_size: int = 8,
    seq_len: int = 128,
    num_steps: int = 20,
    size: str = "tiny",
    dtype: str = "f32",
    variant: str = "baseline",
    profilers: Collection[str] = tuple(PROFILER_OPTIONS),
    gpu: bool = False,
    shapes: bool = False,
) -> Json:
    """performance_summary.json of a run that nobody made, with `changes` as of changed().

    `profilers`: any of operators, memory, flops.
    """
    found, cost = copy.deepcopy(STORED), step_cost(size, batch_size, seq_len, variant)
    seconds = STEP_SECONDS + cost.model_flops / FLOPS_PER_SECOND
    seconds *= 1 if variant == "baseline" else OTHER_VARIANT
    peak = cost.predicted_memory_bytes
    if gpu:
        device = {"name": "Made-up GPU", "backend": "hip", "architecture": "gfx942"}
        found["context"]["device"] |= device | {"memory_bytes": 64 * GIB}
    of = problem_sizes()[size]
    scores = score_bytes(batch_size, seq_len, variant, of)
    found["configuration"] |= {
        **{"size": size, "dtype": dtype, "variant": variant},
        **{"batch_size": batch_size, "seq_len": seq_len, "num_steps": num_steps},
        **{"switches": "qkv+gate_up+sdpa" if variant == "fused" else variant},
        **{name: value for name, value in of.items() if name not in ("batch", "seq")},
    }
    found["model"] = {
        "total_parameters": cost.parameters,
        "model_size_bytes": 4 * cost.parameters,
        "flops_per_step": cost.model_flops,
        "causal_flops_per_step": cost.model_flops * 9 // 10,
        "bytes_per_step": cost.bytes,
        "predicted_peak_memory_bytes": peak,
    }
    steps = made_up_steps(num_steps, seconds, peak, bool(profilers))
    found |= {"steps": steps, "summary": averages(steps, batch_size, batch_size * seq_len)}
    found["memory"] = memory_part(cost, scores) if "memory" in profilers else None
    found["operators"] = operators_part(gpu, shapes) if "operators" in profilers else None
    if "flops" not in profilers:
        found["flops"] = None
    found["files"] = sorted(made_up_files(found))
    return changed(found, changes or {})


def measured_ratio(value: float, low: float = 0.0, high: float = 0.0) -> StepRatio:
    """With this 95 % interval; without one given, the same in every block."""
    return StepRatio(value, Interval(low or value, high or value, 0.95))


def evidence(**speedups: float) -> Evidence:
    """An ablation at the profiled step that measured these switches, the same in every block."""
    ratios = {name: measured_ratio(value) for name, value in speedups.items()}
    return Evidence(Path("ablation.json"), "a step", ratios)


def made_up_files(summary: Json) -> dict[str, str]:
    """Content of each file beside the summary, by name."""
    files: dict[str, str] = {}
    if operators := summary["operators"]:
        first, last = operators["first_step"], operators["last_step"]
        trace = json.dumps({"traceEvents": []})
        files[f"trace_step_{first}_{last}.json"] = trace
        files["tiny_llama_train.1.pt.trace.json"] = trace
        files["events.out.tfevents.1.host"] = ""
    if memory := summary["memory"]:
        rows = [[0.0, memory["baseline_bytes"], "forward", "embedding"]]
        rows.append([memory["peak_seconds"], memory["peak_bytes"], "backward", "attention/core"])
        steps = {"first_step": memory["first_step"], "last_step": memory["last_step"]}
        steps["phases"] = [
            {"phase": name, "step": 3, "begin_seconds": at, "end_seconds": at + 1e-3}
            for at, name in enumerate(("forward", "optimizer"))
        ]
        files["memory_timeline.json"] = json.dumps({"events": rows, **steps})
    for name, content in (summary["flops"] or {}).items():
        files[f"flops_analysis/{name}.json"] = json.dumps(content)
    return files


def write_profile(folder: Path, summary: Json) -> Path:
    """The summary and the files that belong to it; returns the folder."""
    for name, content in made_up_files(summary).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "performance_summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def summary_of(options: Sequence[str], *, gpu: bool = False) -> Json:
    """What a run with these options of the program leaves."""
    given = dict(text.removeprefix("--").split("=") for text in options if "=" in text)
    size = given.get("size", "tiny")
    own = problem_sizes()[size]
    return made_up_summary(
        batch_size=int(given.get("batch-size", own["batch"])),
        seq_len=int(given.get("seq-len", own["seq"])),
        num_steps=int(given.get("num-steps", 50)),
        size=size,
        dtype=given.get("dtype", "f32"),
        variant=given.get("variant", "baseline"),
        profilers=[name for name, flag in PROFILER_OPTIONS.items() if flag in options],
        gpu=gpu,
        shapes="--profile-operators" in options,
    ) | {"command": list(options)}


@dataclass
class PlayedProgram:
    """In place of TrainingProgram: run() writes a made-up summary of its options.

    `changes`: replaced in every summary that has the key. `refuses`: an option -> the error that a
    run with it ends in. `interrupt_after`: runs before Ctrl-C. `calls`: options of each run so far.
    """

    arguments: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    refuses: Mapping[str, str] = field(default_factory=dict)
    interrupt_after: int = 10**9
    gpu: bool = False
    exit_status: int = 0
    calls: list[list[str]] = field(default_factory=list)

    def run(self, options: Sequence[str], folder: Path, log: Path | None = None) -> MeasuredRun:
        if len(self.calls) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.calls.append(list(options))
        for option, message in self.refuses.items():
            if option in options:
                if log is not None:
                    log.write_text(f"{message}\n", encoding="utf-8")
                raise TrainingError(f"tiny_llama_train: {message}", 2)
        summary = changed(summary_of([*self.arguments, *options], gpu=self.gpu), self.changes)
        write_profile(folder, summary)
        means, count = summary["summary"], len(summary["steps"])
        said = "".join(f"Step {n}/{count}: Loss = 6.9\n" for n in range(1, count + 1))
        speed = f"{means['samples_per_second']:.1f} samples/sec"
        peak = f"Peak memory usage: {means['peak_memory_bytes'] / 2**20:.1f} MB"
        # the lines that others look for
        output = f"{said}Training speed: {speed}\nThroughput: {speed}\n{peak}\n"
        if log is not None:
            log.write_text(output, encoding="utf-8")
        seconds = 1.0 + sum(step["time_seconds"] for step in summary["steps"])
        return MeasuredRun(
            summary=summary, exit_status=self.exit_status, seconds=seconds, output=output
        )
