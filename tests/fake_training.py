"""A fake for tiny_llama_train: complete summaries of made-up runs, and a program that plays."""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyllama_tools.data.programs import TrainingError, TrainingRun
from training_figures import SETS, Figures
from training_parts import flops_part, memory_part, operators_part, steps_part, summary_part

Json = dict[str, Any]
ALL_PROFILERS = ("operators", "memory", "flops")
DIMENSIONS = (
    "vocab_size",
    "hidden_dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "intermediate_dim",
)


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


def made_up_summary(
    changes: Mapping[str, object] | None = None,
    *,
    batch_size: int = 8,
    seq_len: int = 128,
    num_steps: int = 20,
    size: str = "tiny",
    dtype: str = "f32",
    variant: str = "baseline",
    profilers: Sequence[str] = ALL_PROFILERS,
    gpu: bool = False,
    shapes: bool = False,
    **dimensions: int,
) -> Json:
    """performance_summary.json of a run that nobody made; `changes` replaces keys by dotted path.

    `profilers`: any of operators, memory, flops. `shapes`: the operator table has them.
    `dimensions`: hidden_dim and the like.
    """
    figures = Figures(batch_size, seq_len, size, variant, dimensions)
    steps = steps_part(figures, num_steps, profilers)
    summary = {
        "schema_version": 1,
        "program": "tiny_llama_train",
        "command": ["--batch-size", str(batch_size), "--seq-len", str(seq_len)],
        "started": "2026-01-02T03:04:05Z",
        "context": made_up_context(gpu),
        "configuration": {
            "size": "custom" if dimensions else size,
            "batch_size": batch_size,
            "seq_len": seq_len,
            "num_steps": num_steps,
            "gradient_accumulation_steps": 1,
            "learning_rate": 1e-4,
            "dtype": dtype,
            "variant": variant,
            "switches": "+".join(SETS.get(variant) or (variant,)),
            "seed": 42,
            "deterministic": False,
            "data": "synthetic",
        }
        | {name: figures.dims[name] for name in DIMENSIONS},
        "model": {
            "total_parameters": figures.parameters,
            "model_size_bytes": 4 * figures.parameters,
            "flops_per_step": figures.flops,
            "causal_flops_per_step": int(0.9 * figures.flops),
            "bytes_per_step": figures.bytes,
            "predicted_peak_memory_bytes": figures.peak_bytes,
        },
        "steps": steps,
        "summary": summary_part(figures, steps),
        "device_sampling": {
            "interval_seconds": 0.1,
            "source": "/proc/stat",
            "readings": {
                "utilization_percent": {"minimum": 55, "mean": 70, "maximum": 90, "samples": 40}
            },
        },
        "memory": memory_part(figures) if "memory" in profilers else None,
        "operators": operators_part(figures, gpu, shapes) if "operators" in profilers else None,
        "flops": flops_part(figures) if "flops" in profilers else None,
        "files": [],
    }
    summary["files"] = sorted(made_up_files(summary))
    for key, value in (changes or {}).items():
        set_key(summary, key, copy.deepcopy(value))
    return summary


def made_up_context(gpu: bool) -> Json:
    """Of a CPU, or of a GPU."""
    cpu = {
        "name": "Made-up CPU",
        "architecture": "x86-64",
        "backend": "cpu",
        "memory_bytes": 8 << 30,
        "multiprocessors": 2,
        "last_level_cache_bytes": 32 << 20,
        "runtime_version": "",
        "driver_version": "",
    }
    card = {
        "name": "Made-up GPU",
        "architecture": "gfx942",
        "backend": "hip",
        "memory_bytes": 64 << 30,
        "multiprocessors": 110,
        "last_level_cache_bytes": 0,
        "runtime_version": "6.4",
        "driver_version": "6.12",
    }
    return {
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
        "torch_version": "2.13.0",
        "threads": 2,
        "memory_source": "counting allocator",
        "settings": {},
        "device": card if gpu else cpu,
    }


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
        columns = ["seconds", "live_bytes", "phase", "component"]
        rows = [[0.0, memory["baseline_bytes"], "forward", "embedding"]]
        rows.append([memory["peak_seconds"], memory["peak_bytes"], "backward", "attention/core"])
        timeline = {"unit": "bytes", "columns": columns, "events": rows, "phases": []}
        files["memory_timeline.json"] = json.dumps(
            timeline | {"first_step": memory["first_step"], "last_step": memory["last_step"]}
        )
    for name, content in (summary["flops"] or {}).items():
        files[f"flops_analysis/{name}.json"] = json.dumps(content)
    return files


def write_profile(folder: Path, summary: Json) -> Path:
    """The summary and the files that belong to it; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in made_up_files(summary).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    (folder / "performance_summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--variant", default="baseline")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--seq-len", type=int)
    parser.add_argument("--num-steps", type=int, default=50)
    for name in DIMENSIONS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--use-amp", action="store_true")
    parser.add_argument("--enable-pytorch-profiler", dest="operators", action="store_true")
    parser.add_argument("--profile-memory", dest="memory", action="store_true")
    parser.add_argument("--enable-deepspeed-flops", dest="flops", action="store_true")
    return parser


@dataclass
class PlayedProgram:
    """Stands in for TrainingProgram: run() writes what Figures computes of the options.

    `changes`: replaced in every summary that has the key. `refuses`: an option -> the error that a
    run with it ends in. `interrupt_after`: runs before Ctrl-C. `calls`: options of each run so far.
    """

    arguments: tuple[str, ...] = ()
    changes: Mapping[str, object] = field(default_factory=dict)
    refuses: Mapping[str, str] = field(default_factory=dict)
    interrupt_after: int = 10**9
    gpu: bool = False
    exit_status: int = 0
    calls: list[list[str]] = field(default_factory=list)

    def run(self, options: Sequence[str], folder: Path, log: Path | None = None) -> TrainingRun:
        if len(self.calls) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.calls.append(list(options))
        for option, message in self.refuses.items():
            if option in options:
                if log is not None:
                    log.write_text(f"{message}\n", encoding="utf-8")
                raise TrainingError(f"tiny_llama_train: {message}", 2)
        summary = self._summary([*self.arguments, *options])
        write_profile(folder, summary)
        output = played_output(summary)
        if log is not None:
            log.write_text(output, encoding="utf-8")
        seconds = 1.0 + sum(step["time_seconds"] for step in summary["steps"])
        command = ("tiny_llama_train", *self.arguments, *options)
        return TrainingRun(command, self.exit_status, output, seconds, folder, summary)

    def _summary(self, options: Sequence[str]) -> Json:
        given, _ = _parser().parse_known_args(options)
        sizes = Figures(size=given.size).dims
        summary = made_up_summary(
            batch_size=given.batch_size or sizes["batch"],
            seq_len=given.seq_len or sizes["seq"],
            num_steps=given.num_steps,
            size=given.size,
            dtype="amp_bf16" if given.use_amp else given.dtype,
            variant=given.variant,
            profilers=[name for name in ALL_PROFILERS if getattr(given, name)],
            gpu=self.gpu,
            shapes="--profile-operators" in options,
            **{n: v for n in DIMENSIONS if (v := getattr(given, n)) is not None},
        )
        summary["command"] = list(options)
        for key, value in self.changes.items():
            if summary.get(key.split(".")[0]) is not None:
                set_key(summary, key, copy.deepcopy(value))
        return summary


def played_output(summary: Json) -> str:
    """The lines that others look for."""
    means, steps = summary["summary"], summary["steps"]
    lines = []
    for step in steps:
        result = f"Loss = {step['loss']:.4f}, Time = {step['time_seconds']:.3f} seconds"
        lines.append(f"Step {step['step']}/{len(steps)}: {result}")
    speed = means["samples_per_second"]
    lines += [
        f"Training speed: {speed:.1f} samples/sec",
        f"Throughput: {speed:.1f} samples/sec",
        f"Peak memory usage: {means['peak_memory_bytes'] / 2**20:.1f} MB",
    ]
    return "\n".join(lines) + "\n"
