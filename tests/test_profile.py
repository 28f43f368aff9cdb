"""scripts/profile: its runs, saved profiles, and files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

import tools
from fake_training import FOUR_RANKS, PlayedProgram, made_up_summary, write_profile
from tinyllama_tools.commands.profile import read_profiles, warnings_in
from tinyllama_tools.commands.worksheet import shown
from tinyllama_tools.data.profiles import read_training
from tinyllama_tools.data.programs import TrainingError, TrainingRun

REPORT, SUMMARY = "performance_summary_report.md", "performance_summary.json"
FLOPS = "FLOPS efficiency and roofline"


def run(tmp_path: Path, *options: object, program: PlayedProgram | None = None) -> int:
    return tools.profile(options, program=program or PlayedProgram(), results=tmp_path / "results")


def profiled(tmp_path: Path, name: str, *options: str) -> Path:
    folder = tmp_path / name
    assert run(tmp_path, "--profile-dir", folder, *options) == 0
    return folder


def section(report: str, title: str) -> str:
    return report.split(f"## {title}\n")[1].split("\n## ")[0]


def row(text: str, first: str) -> list[str]:
    line = next(x for x in text.splitlines() if x.startswith(f"| {first}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_folder_that_the_workshop_reads_and_its_report(tmp_path: Path) -> None:
    program = PlayedProgram()
    folder = tmp_path / "all"
    assert run(tmp_path, "--profile-dir", folder, "--batch-size", "4", program=program) == 0
    common = ["--batch-size=4", "--num-steps=30"]
    assert program.calls == [
        common,
        [*common, "--enable-pytorch-profiler", "--profile-operators"],
        [*common, "--profile-memory"],
        [*common, "--enable-deepspeed-flops"],
    ]
    for name in (
        f"baseline_training/{SUMMARY}",
        "baseline_training/training_output.log",
        "pytorch_profiling/trace_step_5_10.json",
        "memory_analysis/memory_timeline.html",
        "flops_analysis/flops_profile.json",
        "flops_analysis/roofline_data.json",
    ):
        assert (folder / name).is_file(), name
    report, merged = (folder / REPORT).read_text(), read_profiles(folder)
    means, operators = merged["summary"], merged["operators"]
    assert row(report, "training speed")[1] == shown(means["samples_per_second"], "samples/s")
    # rows of one name, which shapes tell apart, are one operator
    products = [found for found in operators["table"] if found["name"] == "aten::mm"]
    assert len(products) == 2
    whole = sum(found["share_percent"] for found in products)
    calls = sum(found["calls"] for found in products) / operators["steps"]
    host = sum(found["cpu_self_seconds"] for found in operators["table"])
    of_host = 100 * sum(found["cpu_self_seconds"] for found in products) / host
    assert row(report, "1 ")[1:4] == ["aten::mm", f"{whole:.1f} %", f"{of_host:.1f} %"]
    assert row(report, "1 ")[7] == shown(calls)
    shapes = row(section(report, "Top 10 operators").split("By input shapes")[1], "aten::mm")
    assert shapes[2] == f"{products[0]['share_percent']:.1f} %"
    by_name = {found["name"]: found["percent"] for found in operators["components"]}
    attention = sum(value for name, value in by_name.items() if name.startswith("attention/"))
    assert row(report, "attention ")[1] == f"{attention:.1f} %"


def test_another_measurement_gives_another_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    softmax = {"operators.softmax_percent": 55.5}
    for title, changes, words in (
        ("Baseline", {"summary.samples_per_second": 12345.0}, "12,345 samples/s"),
        ("Top 3 operators", {"operators.matrix_product_percent": 77.7}, "77.7 %"),
        ("Components", {"operators.components.0.percent": 77.7}, "77.7 %"),
        ("Memory", {"memory.breakdown_at_peak.attention_scores": 2**33}, "8,192.0 MiB"),
        (FLOPS, {"flops.roofline_data.points.0.bound": "memory"}, "[x] Below roofline"),
        (FLOPS, {"flops.flops_profile.efficiency_metrics.mfu_percent": 55.5}, "55.5 %"),
        ("Bottlenecks", softmax, "Softmax operations (1.38x, Medium-High)"),
    ):
        folder = write_profile(tmp_path / "p", made_up_summary(changes))
        assert run(tmp_path, "--analyze-existing", folder, "--top=3") == 0
        report = capsys.readouterr().out
        assert words in section(report, title)
        assert section(report, "Top 3 operators").split("figure")[0].count("aten::") == 3
        assert "Not measured:" not in report and not (folder / REPORT).exists()


class Fails(PlayedProgram):
    """Its memory profiler raises an error; `error` None: once it has written its files, Ctrl-C."""

    error: Exception | None = None

    def run(self, options: Sequence[str], folder: Path, log: Path | None = None) -> TrainingRun:
        if "--profile-memory" in options and self.error:
            raise self.error
        done = super().run(options, folder, log)
        if "--profile-memory" in options:
            raise KeyboardInterrupt
        object.__setattr__(done, "output", "Step 1: Loss = 6\nWarning: clock is low\n")
        return done


def test_what_a_run_that_ends_early_leaves(tmp_path: Path) -> None:
    # of an earlier run in the same place, nothing is taken for this one's
    folder, program = profiled(tmp_path, "p"), Fails()
    program.error = TrainingError("killed", 1)
    assert run(tmp_path, "--profile-dir", folder, program=program) == 1
    merged, report = read_profiles(folder), (folder / REPORT).read_text()
    assert merged["memory"] is None and merged["flops"] is not None
    assert "- memory_analysis: killed" in report
    assert "- baseline_training: Warning: clock is low" in report
    assert "Not measured: needs --profile-memory." in report and "aten::mm" in report
    # what an interrupted run wrote itself stays, and the next one is not made
    program.error = None
    assert run(tmp_path, "--profile-dir", folder, program=program) == 130
    merged = read_profiles(folder)
    assert merged["memory"] is not None and merged["flops"] is None
    assert "- memory_analysis: interrupted" in (folder / REPORT).read_text()
    text = "a: error: x\n[W1122 y\nno trouble\nerror rate 0\n"
    assert warnings_in(text) == ["a: error: x", "[W1122 y"]


def test_a_loss_that_is_not_finite_leaves_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    program = PlayedProgram(exit_status=1, changes={"operators": None})
    assert run(tmp_path, "--profile-dir", folder, program=program) == 1
    report = (folder / REPORT).read_text()
    assert "- pytorch_profiling: exit status 1: the loss was not finite" in report
    assert "Not measured: needs --enable-pytorch-profiler." in report


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("ends_at", "kept"), [(0, 4), (1, 1), (2, 2)])
def test_earlier_summaries_stay_until_something_is_measured(
    tmp_path: Path, ends_at: int, kept: int
) -> None:
    folder = profiled(tmp_path, "p")
    program = PlayedProgram(interrupt_after=ends_at)
    before = contents(folder)
    assert run(tmp_path, "--profile-dir", folder, "--num-steps", "9", program=program) == 130
    found = [json.loads(path.read_text()) for path in folder.rglob(SUMMARY)]
    assert len(found) == kept
    # never of two calls
    steps = {summary["configuration"]["num_steps"] for summary in found}
    assert steps == ({9} if ends_at else {30})
    assert ends_at or contents(folder) == before


def test_refused_options_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = PlayedProgram(refuses={"--variant=none": "--variant 'none': unknown"})
    folder = profiled(tmp_path, "earlier")
    before = contents(tmp_path)
    for place in (folder, tmp_path / "new/folder"):
        assert run(tmp_path, "--variant=none", "--profile-dir", place, program=program) == 2
        assert "--variant 'none': unknown" in capsys.readouterr().err
    assert contents(tmp_path) == before and len(program.calls) == 2
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--batch-size 0", "'0': must be a whole number of 1 or more"),
        ("--generate-report", "--generate-report: has no meaning"),
        ("--analyze-existing x --batch-size 4", "--batch-size: has no meaning"),
        ("--analyze-existing x --output-dir y", "--output-dir: has no meaning"),
        ("--compare x y --analyze-existing z", "not allowed with argument --compare"),
    ],
)
def test_bad_options(options: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        tools.profile(options.split())
    assert words in capsys.readouterr().err


def test_existing_profiles_are_reported_again(tmp_path: Path) -> None:
    folder, out = profiled(tmp_path, "p"), tmp_path / "out"
    options = ("--generate-report", "--output-dir", out)
    for part in ("", "pytorch_profiling", "baseline_training"):
        assert run(tmp_path, "--analyze-existing", folder / part, *options) == 0
        report = (out / REPORT).read_text()
        assert ("aten::mm" in report) == (part != "baseline_training")
        # but for the list of its runs
        assert part or section(report, "Memory") == section((folder / REPORT).read_text(), "Memory")


def test_damaged_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = profiled(tmp_path, "p")
    (folder / REPORT).unlink()
    summary = folder / "pytorch_profiling" / SUMMARY
    timeline = folder / "memory_analysis/memory_timeline.json"
    text = summary.read_text()
    memory = made_up_summary()["memory"] | {"peak_MiB": 5}
    changes = (
        ({"summary.final_loss": float("nan")}, "summary.final_loss"),
        ({"model.total_parameters": 10**400}, "model.total_parameters"),
        ({"operators.table.0.calls": "many"}, "operators.table[0].calls"),
        ({"summary.samples_per_second": -1}, "summary.samples_per_second"),
        ({"memory": memory}, "('peak_MiB'"),
    )
    for path, found, words in (
        *((summary, text[:keep], "is ") for keep in (0, 5000)),
        *((summary, "[" * 100_000, "no JSON"), (summary, "[]", "holds no")),
        *((summary, json.dumps(made_up_summary(of)), words) for of, words in changes),
        (timeline, "{", "is cut short"),
        (timeline, json.dumps({"events": [[0.0, 1, "forward", "ffn"]]}), "as it wrote it"),
    ):
        before = path.read_text()
        path.write_text(found)
        # a timeline is drawn before the report is written
        assert run(tmp_path, "--analyze-existing", folder, "--generate-report") == 2
        said = capsys.readouterr().err
        assert f"{path}: " in said and words in said and not (folder / REPORT).exists()
        path.write_text(before)
    assert run(tmp_path, "--analyze-existing", tmp_path) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    # a captured step has no phases
    good = made_up_summary({"summary.average_forward_seconds": None}, gpu=True)
    assert read_profiles(write_profile(tmp_path / "good", good)) == good


def test_two_versions_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = profiled(tmp_path, "v1")
    b = profiled(tmp_path, "v2", "--variant", "fused")
    path = b / "pytorch_profiling" / SUMMARY
    changed = json.loads(path.read_text())
    operators = changed["operators"]
    operators["table"] = [r for r in operators["table"] if r["name"] != "aten::neg"]
    for component in operators["components"]:
        if component["name"] == "attention/core":
            component["forward_seconds"] /= 2
            component["backward_seconds"] /= 2
    path.write_text(json.dumps(changed))
    capsys.readouterr()
    assert run(tmp_path, "--compare", a, b) == 0
    text = capsys.readouterr().out
    assert "Not the same work" not in text
    (core,) = (c for c in operators["components"] if c["name"] == "attention/core")
    half = core["forward_seconds"] + core["backward_seconds"]
    times = [shown(seconds, "ms") for seconds in (2 * half, half, half)]
    assert row(text, "attention/core")[1:] == [*times, "2.00x"]
    # the largest change stands first; what only one has is said
    assert section(text, "Components").splitlines()[3].startswith("| attention/core")
    assert row(text, "aten::neg")[2] == "absent"
    steps = [read_profiles(side)["summary"]["median_step_seconds"] for side in (a, b)]
    assert row(text, "step ")[1:] == [
        *(shown(s, "ms") for s in steps),
        f"{steps[0] / steps[1]:.2f}x",
    ]
    other = write_profile(tmp_path / "v3", made_up_summary(seq_len=64, profilers=()))
    path = other / SUMMARY
    path.write_text(json.dumps(json.loads(path.read_text()) | {"distributed": FOUR_RANKS}))
    assert run(tmp_path, "--compare", a, other) == 0
    text = capsys.readouterr().out
    assert "- seq_len: 128 against 64\n" in text and "- ranks: 1 against 4\n" in text
    assert "Operators and components: not measured in B." in text


# What is read.


def test_a_run_as_a_stored_case() -> None:
    summary = made_up_summary(profilers=("operators",))
    # of the first, three profiled ones, and a plain one
    found = read_training(summary | {"steps": summary["steps"][:5]}, Path("run"))
    plain = summary["steps"][4]
    step, forward = (found.cases[f"training/{name}"] for name in ("step", "forward"))
    assert (step.seconds, forward.seconds) == (plain["time_seconds"], plain["forward_seconds"])
    assert found.warnings == ()
    # only profiled steps, and only the first
    for steps, words in (
        (summary["steps"][1:4], "was profiled"),
        (summary["steps"][:1], "warms up"),
    ):
        kept = read_training(summary | {"steps": steps}, Path("run"))
        assert words in kept.warnings[0]
        times = [s["time_seconds"] for s in steps[1:] or steps]
        assert kept.cases["training/step"].seconds == statistics.median(times)


def test_figures_in_their_units() -> None:
    for value, unit, text in (
        *((36.8 * 2**20, "MB", "36.8 MB"), (1000, "MiB", "1,000 bytes"), (0, "MB", "0.0 MB")),
        *((0.0928, "ms", "92.8 ms"), (1.5, "ms", "1,500 ms"), (2873600, "", "2,873,600")),
        *((0.123456, "GB", "0.1235 GB"), (1.7e11, "FLOP/s", "1.700e+11 FLOP/s")),
        *((1.085, "x", "1.08x"), (12.345, "%", "12.3 %"), (None, "%", "not measured")),
        *(("a|b", "", "a\\|b"), (True, "", "yes"), (12345.6, "s", "12,346 s")),
    ):  # fmt: skip
        assert shown(value, unit) == text
