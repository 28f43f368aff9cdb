"""scripts/profile: all profilers in one go, and the report; also of saved or of two profiles."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyllama_tools.commands.training_runs import (
    PROFILINGS,
    MeasuredRun,
    draw_timelines,
    measure_all,
    read_profiles,
    was_interrupted,
)
from tinyllama_tools.commands.worksheet import page_of, ratio, shown
from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    Json,
    problem_sizes,
    run_folder,
    shown_path,
    write_whole,
)
from tinyllama_tools.core.options import DTYPES, positive, script_parser
from tinyllama_tools.data.profiles import SAME_WORK, group_shares, merged, value_at, work_of
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.models.ablations import Evidence, find_evidence
from tinyllama_tools.models.bottlenecks import rank_bottlenecks
from tinyllama_tools.models.roofline import roofline_position

# What the program is given as it stands; batch and sequence left out are the size's own.
PASSED_ON = ("size", "batch_size", "seq_len", "num_steps", "dtype", "variant", "device", "threads")
DEFAULT_STEPS = 30
REPORT = "performance_summary_report.md"
ABOUT = """\
Runs tiny_llama_train four times: without profilers (DIR/baseline_training), with the operator
profiler (DIR/pytorch_profiling), the memory profiler (DIR/memory_analysis) and the FLOPS profiler
(DIR/flops_analysis), and writes DIR/performance_summary_report.md. Progress goes to standard error,
the report's path to standard output."""
EPILOG = """\
Speedups of the newest scripts/ablation in results/ of this device and shape stand beside the
expected ones.

Exit status: 0 done; 1 a run failed, or its loss was not finite; 2 bad option, missing or damaged
profile, unwritable folder; 130 interrupted: the report has what was measured so far."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Checked as far as text can be; argparse ends the program with 2 where it is wrong."""
    parser = script_parser("profile", ABOUT, EPILOG)
    add, same = parser.add_argument, "as in tiny_llama_train"
    add("--size", choices=sorted(problem_sizes()), help="default: tiny, in its own shape")
    for name in ("--batch-size", "--seq-len", "--threads"):
        add(name, type=positive, metavar="N", help=same)
    add("--num-steps", type=positive, metavar="N", help=f"default: {DEFAULT_STEPS}")
    add("--dtype", choices=DTYPES, help=same)
    for name in ("--variant", "--device"):
        add(name, help=same)
    add("--build-folder", type=Path, default=PROJECT / "build", help="of the programs")
    add("--top", type=positive, default=10, help="operators in the report's table; default: 10")
    add("--generate-report", action="store_true", help="write that report instead of printing it")
    add("--output-dir", type=Path, help="where; default: the folder of the profiles")
    one_of = parser.add_mutually_exclusive_group().add_argument
    one_of("--profile-dir", type=Path, metavar="DIR", help="default: results/<UTC time>_profile")
    existing = "report on saved profiles: a folder of this script, or one of tiny_llama_train"
    one_of("--analyze-existing", type=Path, metavar="DIR", help=existing)
    side = "two saved profiles side by side"
    one_of("--compare", type=Path, nargs=2, metavar=("A", "B"), help=side)
    options = parser.parse_args(arguments)
    refused = PASSED_ON if options.compare or options.analyze_existing else ()
    refused += () if options.generate_report else ("output_dir",)
    refused += () if options.analyze_existing else ("generate_report", "output_dir")
    for name in refused:
        if getattr(options, name) not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            parser.error(f"{flag}: has no meaning with the other options; leave it out")
    return options


def program_options(options: argparse.Namespace) -> tuple[str, ...]:
    """What tiny_llama_train is given."""
    given = {name: getattr(options, name) for name in PASSED_ON}
    given["num_steps"] = given["num_steps"] or DEFAULT_STEPS
    return tuple(
        f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None
    )


OF_A_STEP = (
    *("cpu_self_seconds", "cpu_total_seconds", "device_self_seconds"),
    *("calls", "self_memory_bytes"),
)


def operator_shares(operators: Json) -> list[Json]:
    """All operators, largest share first: the keys of the file's table, of one recorded step, and
    `cpu_percent` of the host's time. The file's rows of one name, which shapes or stacks tell
    apart, become one."""
    named: dict[str, list[Json]] = {}
    for row in operators["table"]:
        named.setdefault(row["name"], []).append(row)
    host = sum(row["cpu_self_seconds"] for row in operators["table"])
    found = []
    for name, rows in named.items():
        of = {key: sum(row[key] or 0 for row in rows) / operators["steps"] for key in OF_A_STEP}
        if rows[0]["device_self_seconds"] is None:
            of["device_self_seconds"] = None
        share = sum(row["share_percent"] for row in rows)
        of_host = 100 * of["cpu_self_seconds"] * operators["steps"] / host if host else 0.0
        found.append(of | {"name": name, "share_percent": share, "cpu_percent": of_host})
    return sorted(found, key=lambda row: -row["share_percent"])


def report_text(
    summary: Json,
    folder: Path,
    top: int,
    ablation: Evidence | None,
    runs: Iterable[MeasuredRun] = (),
    command: str = "",
) -> str:
    """What REPORT holds, of the summary of a folder of profiles. `runs`: those that made it, by
    `command`; none where it was read."""
    operators = summary["operators"]
    readings, breakdown = (
        {name.replace("_", " "): found for name, found in of.items() if found}
        for key in ("device_sampling.readings", "summary.breakdown")
        for of in [value_at(summary, key) or {}]
    )
    return page_of(
        "profile_report.md.j2",
        summary=summary,
        top=top,
        place=shown_path(folder),
        runs=list(runs),
        command=command,
        readings=readings,
        breakdown=breakdown,
        shares=operator_shares(operators) if operators else [],
        shapes=sorted(
            (row for row in (operators or {}).get("table", []) if row.get("input_shapes")),
            key=lambda row: -row["share_percent"],
        ),
        parts=group_shares(operators["components"]) if operators else {},
        ranking=rank_bottlenecks(summary, ablation),
        ablation=ablation,
        position=roofline_position(summary["flops"]),
    )


# Two profiles side by side.

Seconds = Mapping[str, float]


def paired(a: Seconds, b: Seconds) -> list[list[Any]]:
    """Rows of name -> seconds of either, the largest change first: name, seconds of both, seconds
    saved by B, A / B."""
    rows = [
        [
            name,
            *(side.get(name, "absent") for side in (a, b)),
            a.get(name, 0.0) - b.get(name, 0.0),
            ratio(a.get(name) or None, b.get(name)),
        ]
        for name in {**a, **b}
    ]
    return sorted(rows, key=lambda row: -abs(row[3]))


def operator_seconds(operators: Json) -> Seconds:
    """Of its own by operator, on the device that shares are of."""
    clock = "device" if operators["device_time"] == "gpu" else "cpu"
    return {row["name"]: row[f"{clock}_self_seconds"] or 0.0 for row in operator_shares(operators)}


def component_seconds(operators: Json) -> Seconds:
    """Forward and backward together, by component."""
    return {
        row["name"]: (row.get("forward_seconds") or 0.0) + (row.get("backward_seconds") or 0.0)
        for row in operators["components"]
    }


# Label, keys of which the first that holds a value counts, unit.
COMPARED = (
    ("step", ("summary.plain_average_step_seconds", "summary.average_step_seconds"), "ms"),
    ("forward", ("summary.average_forward_seconds",), "ms"),
    ("backward", ("summary.average_backward_seconds",), "ms"),
    ("optimizer", ("summary.average_optimizer_seconds",), "ms"),
    ("peak memory", ("summary.peak_memory_bytes",), "MiB"),
    ("operators a step", ("operators.operator_calls_per_step",), ""),
    ("kernels a step", ("operators.kernels_per_step",), ""),
)
SAME_DEVICE = ("device.name", "device.backend", "threads")


def comparison_text(a: Path, b: Path) -> str:
    """The page of two folders of profiles."""
    sides = [read_profiles(a), read_profiles(b)]
    conditions = [
        work_of(side) | {key: value_at(side["context"], key) for key in SAME_DEVICE}
        for side in sides
    ]
    rows = []
    for label, names, unit in COMPARED:
        found = [next((v for n in names if (v := value_at(s, n))), None) for s in sides]
        rows.append((label, *(shown(value, unit) for value in found), shown(ratio(*found), "x")))
    both = [side["operators"] for side in sides]
    return page_of(
        "profile_comparison.md.j2",
        places=[shown_path(folder) for folder in (a, b)],
        sides=sides,
        different=[
            (key, *found)
            for key in (*SAME_WORK, *SAME_DEVICE)
            if (found := [side[key] for side in conditions])[0] != found[1]
        ],
        rows=rows,
        components=paired(*map(component_seconds, both)) if all(both) else None,
        operators=paired(*map(operator_seconds, both)) if all(both) else None,
        missing=[name for name, found in zip("AB", both, strict=True) if not found],
    )


def analyze(options: argparse.Namespace, results: Path) -> int:
    """Of saved profiles: to the terminal, or with --generate-report to a file."""
    folder = options.analyze_existing
    summary = read_profiles(folder)
    text = report_text(summary, folder, options.top, find_evidence(summary, results))
    if not options.generate_report:
        print(text, end="")
        return 0
    draw_timelines(folder)
    place = options.output_dir or folder
    place.mkdir(parents=True, exist_ok=True)
    write_whole(place / REPORT, text)
    print(place / REPORT)
    return 0


def measure(
    options: argparse.Namespace, command: str, program: TrainingProgram, results: Path
) -> int:
    """The four runs and their report, which also covers what was done before an error or Ctrl-C."""
    folder = options.profile_dir or run_folder("profile", results)
    given = program_options(options)
    planned = {name: (*given, *flags) for name, flags in PROFILINGS.items()}
    runs = measure_all(planned, program, folder, folder)
    if found := [run.summary for run in runs.values() if run.summary]:
        summary = merged(found)
        evidence = find_evidence(summary, results)
        text = report_text(summary, folder, options.top, evidence, runs.values(), command)
        write_whole(folder / REPORT, text)
        print(folder / REPORT)
    if was_interrupted(runs):
        return INTERRUPTED
    return int(not all(run.is_complete for run in runs.values()))


def main(
    arguments: Sequence[str], program: TrainingProgram | None = None, results: Path = RESULTS
) -> int:
    """Exit status. `program` and `results` are replaced by tests only."""
    options = parse_options(arguments)
    if options.compare:
        print(comparison_text(*options.compare), end="")
        return 0
    if options.analyze_existing:
        return analyze(options, results)
    used = program or TrainingProgram(options.build_folder / "benchmarks/tiny_llama_train")
    return measure(options, shlex.join(["scripts/profile", *arguments]), used, results)
