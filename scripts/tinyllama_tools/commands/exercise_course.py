"""Exercises 4 to 8, of the course's versions 2 to 4: their runs and numbers (docs/course.md).

What is a ratio there is measured in one process of the suite, whose variants take turns and are
proved before they are timed. A run of the training program proves no operator."""

import math
import shutil
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.commands.profile import Shape, measure_all, shaped
from tinyllama_tools.commands.worksheet import growth_exponent, make_sheet, ratio
from tinyllama_tools.core.app import BadInputError, Json, problem_sizes
from tinyllama_tools.core.process import program_in
from tinyllama_tools.core.text import say
from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.profiles import INTERRUPTED_REASON, MeasuredRun, Runs, operator_shares
from tinyllama_tools.data.programs import SuiteError, SuiteProgram, TrainingProgram
from tinyllama_tools.data.results import read_result_set
from tinyllama_tools.stats.rank_tests import Quotient

KERNELS = "libcourse_kernels.so"
ROUNDS, STEPS, SHORT_STEPS = 7, 30, 6
HIDDEN = "hidden::rms_norm"
# part that version 3 replaces: the component that has it, our switch, the published speedup
PARTS = {
    "RMSNorm": ("rms_norm", "fused_norm", 2.2, 2.9),
    "SwiGLU": ("ffn", "gate_up+fused_swiglu", 2.9, 4.0),
    "Attention": ("attention", "sdpa", 2.0, 3.3),
}
# stage of the debugging exercise: its kernel, and the component that shows it
STAGES = {
    "1 broken loss": ("broken_loss::rms_norm", "block"),
    "2 non-contiguous input": ("non_contiguous::rms_norm", "rms_norm"),
    "3 fake timing": ("fake_timing::rms_norm", "block"),
    "4 slow kernel": ("slow_kernel::linear", "ffn"),
    "5 fixed": ("fixed::rms_norm", "rms_norm"),
}
# tool: its program, and what it is asked for
TOOLS = {
    "rocprofv3": ("rocprofv3", "kernel hotspots"),
    "rocprof-sys": ("rocprof-sys-run", "timeline"),
    "rocprof-compute": ("rocprof-compute", "roofline"),
    "Nsight Systems": ("nsys", "timeline"),
    "Nsight Compute": ("ncu", "counters of a kernel"),
}


@dataclass(frozen=True)
class Timed:
    """A case of the suite; its speedup is None for the baseline. `reason`: why it has no time, the
    words of its proof among them."""

    speedup: Quotient | None = None
    reason: str = ""

    def __str__(self) -> str:
        """The speedup with its interval, or the reason."""
        return self.speedup.marked_text() if self.speedup else self.reason or "the baseline"

    @property
    def factor(self) -> float | None:
        """The speedup alone."""
        return self.speedup and self.speedup.median


@dataclass
class Suite:
    """tiny_llama_bench at the worksheet's shape; its results go to `folder`."""

    program: SuiteProgram
    shape: Sequence[str]
    folder: Path

    def time(
        self, name: str, component: str, variants: Sequence[str], *more: str
    ) -> dict[str, Timed]:
        """The training pass of a component by variant. A case that fails has its reason."""
        passes = "train" if component == STEP else "forward_backward"
        given = [
            f"--components={component}",
            f"--passes={passes}",
            f"--variants={','.join(variants)}",
        ]
        say(f"{name}: {component}, {', '.join(variants)}")
        self.folder.mkdir(parents=True, exist_ok=True)
        out = self.folder / f"{name}.json"
        rounds = f"--benchmark_repetitions={ROUNDS}"
        options = [*given, *self.shape, *self.program.arguments, rounds, *more]
        self.program.result(options, out)
        found = read_result_set([out])
        timed = {case.name.variant: Timed(case.speedup) for case in found.cases.values()}
        return timed | {
            variant: Timed(reason=row.reason)
            for text, row in found.left_out.items()
            for variant in variants
            if f"/{variant}/" in text
        }


def suite_of(options: Namespace) -> Suite:
    """The suite with this call's device, threads and shape."""
    program = SuiteProgram(options.shared, program_in(options.build_folder, "tiny_llama_bench"))
    shape = (
        f"--sizes={options.size}",
        f"--batch={options.batch}",
        f"--seq={options.seq}",
        "--dtypes=f32",
    )
    return Suite(program, shape, options.profile_dir)


def plugin_of(options: Namespace) -> str:
    """The option that loads the course's kernels. BadInputError where they are not built."""
    path = program_in(options.build_folder, "tiny_llama_bench").parent / KERNELS
    if not path.is_file():
        raise BadInputError(
            f"{path}: not there; exercises 7 and 8 need the kernels of examples/course, which a "
            "build of a checkout makes: scripts/bench --setup-only"
        )
    return f"--plugin={path}"


# ---- exercise 4, three ways of a step; 5, memory over the sequence; 6, the vendors' tools


# of the course's program, as its text types them
UNFUSED, COMPILED = "--disable-all-fusion", "--enable-torch-compile"


def throughput_shapes(options: Namespace) -> dict[str, Shape]:
    """The three runs of the text, and two whose attention is counted."""
    shape = (options.batch, options.seq, STEPS)
    counted = (
        options.batch,
        options.seq,
        10,
        "--enable-pytorch-profiler",
        "--profile-attention-only",
    )
    return {
        "bench_no_fusion": (*shape, UNFUSED),
        "bench_fused": (*shape, "--variant=fused"),
        "bench_torch_compile": (*shape, COMPILED),
        "attention_no_fusion": (*counted, UNFUSED),
        "attention_fused": (*counted, "--variant=fused"),
    }


def attention_calls(run: MeasuredRun) -> float | None:
    """Operators of attention that a layer calls in a step, forward and backward."""
    operators, layers = run("operators"), run("configuration.n_layers")
    if not operators or not layers:
        return None
    return sum(row["calls"] for row in operator_shares(operators)) / layers


def throughput_values(runs: Runs, options: Namespace) -> Json:
    """The template's values: speedups of the same three ways, interleaved and proved."""
    before, after = (attention_calls(runs[f"attention_{n}"]) for n in ("no_fusion", "fused"))
    return {
        "timed": suite_of(options).time("three_ways", STEP, ["baseline", "fused", "optimized"]),
        "calls": (before, after),
        "fewer_calls": None if not before or not after else 100 * (1 - after / before),
    }


def sequence_shapes(options: Namespace) -> dict[str, Shape]:
    """Three ways at the worksheet's sequence and twice, four and eight times that, with half of
    its batch."""
    flags = {"unfused": UNFUSED, "flash": "--variant=fused", "compiled": COMPILED}
    return {
        f"{way}_seq{seq}": (options.batch // 2, seq, SHORT_STEPS, "--profile-memory", flag)
        for way, flag in flags.items()
        for seq in (options.seq << doubling for doubling in range(4))
    }


def sequence_values(runs: Runs, options: Namespace) -> Json:
    """The template's values: a row for each sequence, and how each way's activations grow."""
    lengths = [options.seq << doubling for doubling in range(4)]
    ways = ("unfused", "flash", "compiled")
    peaks = {way: [runs[f"{way}_seq{seq}"]("memory.peak_bytes") for seq in lengths] for way in ways}
    kept = {
        way: [
            None
            if peak is None
            else peak - 4 * (runs[f"{way}_seq{seq}"]("model.model_size_bytes") or 0)
            for seq, peak in zip(lengths, peaks[way], strict=True)
        ]
        for way in ways
    }
    rows = [
        {
            "seq": seq,
            **{way: peaks[way][i] for way in ways},
            "ratio": ratio(peaks["unfused"][i], peaks["flash"][i]),
        }
        for i, seq in enumerate(lengths)
    ]
    growth = {way: growth_exponent(lengths[-2:], kept[way][-2:]) for way in ways}
    return {"rows": rows, "growth": growth, "longest": lengths[-1], "runs": runs}


def tools_shapes(options: Namespace) -> dict[str, Shape]:
    """The profiles that answer the tools' questions on any machine."""
    shape = (options.batch, options.seq, 12)
    return {
        "hotspots": (*shape, "--enable-pytorch-profiler", "--sort-by=self_device_time_total"),
        "roofline": (*shape, "--enable-deepspeed-flops"),
    }


def tools_values(_: Runs, __: Namespace) -> Json:
    """The template's values: which tools this machine has."""
    found = {name: shutil.which(program) is not None for name, (program, _) in TOOLS.items()}
    return {"tools": TOOLS, "found": found}


# ---- exercise 7, what versions 3 and 4 measure; 8, the debugging exercise


def gain_values(options: Namespace) -> Json:
    """The template's values: the hidden kernel with and without the gate, the honest gains of a
    step, and of version 3's parts."""
    suite, plugin = suite_of(options), plugin_of(options)
    hidden = ["baseline", HIDDEN]
    return {
        "refused": suite.time("hidden_proved", STEP, hidden, plugin)[HIDDEN].reason,
        "hidden": suite.time("hidden_unproved", STEP, hidden, plugin, "--verify=off")[HIDDEN],
        "honest": suite.time("honest", STEP, ["baseline", "fused", "optimized"]),
        "parts": {
            part: (suite.time(part, component, ["baseline", switch])[switch], low, high)
            for part, (component, switch, low, high) in PARTS.items()
        },
    }


def debugging_shapes(options: Namespace) -> dict[str, Shape]:
    """A few steps with each kernel of the exercise, and with none of them."""
    plugin = plugin_of(options)
    profiled = ("--enable-pytorch-profiler", "--warmup-steps=2", "--profile-steps=1")
    kernels = {"baseline": "baseline"} | {name: kernel for name, (kernel, _) in STAGES.items()}
    return {
        name.replace(" ", "_"): (
            *(options.batch, options.seq, SHORT_STEPS),
            *(plugin, f"--variant={kernel}", *profiled),
        )
        for name, kernel in kernels.items()
    }


def debugging_values(runs: Runs, options: Namespace) -> Json:
    """The template's values: a row for each stage."""
    suite, plugin = suite_of(options), plugin_of(options)
    rows = []
    for name, (kernel, component) in STAGES.items():
        run = runs[name.replace(" ", "_")]
        timed = suite.time(name.replace(" ", "_"), component, ["baseline", kernel], plugin)[kernel]
        table = operator_shares(run("operators")) if run("operators") else []
        own = next((row for row in table if row["name"] == kernel), None)
        rows.append(
            {
                "stage": name,
                "kernel": kernel,
                "component": component,
                "first_loss": (run("steps") or [{}])[0].get("loss"),
                "last_loss": run("summary.final_loss"),
                "step": run.step_seconds,
                "own_share": own and own["share_percent"],
                "timed": str(timed),
                "factor": timed.factor,
                "proof": timed.reason,
            }
        )
    vocabulary = problem_sizes()[options.size]["vocab_size"]
    return {
        "rows": rows,
        "stage": {row["stage"][0]: row for row in rows},
        "guess": math.log(vocabulary),
    }


# ---- the command

Sheet = tuple[str, int]
# by exercise: the runs of the training program, and the parts of their summaries that are needed
SHAPES = {4: throughput_shapes, 5: sequence_shapes, 6: tools_shapes, 8: debugging_shapes}
WANTED: dict[int, dict[str, tuple[str, ...]]] = {
    4: {
        "attention_no_fusion": ("operators",),
        "attention_fused": ("operators",),
        "bench_fused": (),
    },
    6: {"hotspots": ("operators",), "roofline": ("flops",)},
    7: {"plain": ()},
    8: {"baseline": ("operators",)},
}


def run_exercise(options: Namespace, program: TrainingProgram) -> Sheet:
    """The page and the exit status of exercise `options.number`, 4 to 8."""
    number = options.number
    shapes = (
        SHAPES[number](options)
        if number in SHAPES
        else {"plain": (options.batch, options.seq, STEPS)}
    )
    runs = measure_all(
        shaped(options.size, shapes), program, options.profile_dir, options.out.parent
    )
    wanted = WANTED.get(number) or dict.fromkeys(shapes, ("memory",))
    name = f"exercise_{number}.md.j2"

    def values() -> Json:
        found = {4: throughput_values, 5: sequence_values, 6: tools_values, 8: debugging_values}
        return gain_values(options) if number == 7 else found[number](runs, options)

    try:
        return make_sheet(name, runs, wanted, values, options=options)
    except SuiteError as error:
        return make_sheet(name, runs, wanted, dict, also_missing=[str(error)])
    except KeyboardInterrupt:
        return make_sheet(
            name, runs, wanted, dict, also_missing=[INTERRUPTED_REASON], interrupted=True
        )
