"""scripts/profile: its runs, saved profiles, and files."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

import tools
from fake_training import FOUR_RANKS, PlayedProgram, made_up_summary, write_profile
from tinyllama_tools.commands.profile import parse_options, warnings_in
from tinyllama_tools.commands.profile_report import profiler_overheads, read_profile_set, shown
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.profiles import BadProfileError, read_profile, read_training
from tinyllama_tools.data.programs import TrainingError

REPORT = "performance_summary_report.md"
FLOPS = "FLOPS efficiency and roofline"


def run(tmp_path: Path, *options: str, program: PlayedProgram | None = None) -> int:
    return tools.profile(options, program=program or PlayedProgram(), results=tmp_path / "results")


def profiled(tmp_path: Path, name: str, *options: str, **played: object) -> Path:
    folder, program = tmp_path / name, PlayedProgram(**played)
    assert run(tmp_path, "--profile-dir", str(folder), *options, program=program) == 0
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def section(report: str, title: str) -> str:
    return report.split(f"## {title}\n")[1].split("\n## ")[0]


def row(text: str, first: str) -> list[str]:
    line = next(x for x in text.splitlines() if x.startswith(f"| {first}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_folder_that_the_workshop_reads_and_its_report(tmp_path: Path) -> None:
    program = PlayedProgram()
    folder = tmp_path / "all"
    assert run(tmp_path, "--profile-dir", str(folder), "--batch-size", "4", program=program) == 0
    common = ["--batch-size=4", "--num-steps=30"]
    assert program.calls == [
        common,
        [*common, "--enable-pytorch-profiler", "--profile-operators"],
        [*common, "--profile-memory"],
        [*common, "--enable-deepspeed-flops"],
    ]
    for name in (
        "baseline_training/performance_summary.json",
        "baseline_training/training_output.log",
        "pytorch_profiling/performance_summary.json",
        "pytorch_profiling/trace_step_5_10.json",
        "memory_analysis/memory_timeline.html",
        "flops_analysis/flops_profile.json",
        "flops_analysis/roofline_data.json",
    ):
        assert (folder / name).is_file(), name
    assert not list(folder.rglob("*.part"))
    report, merged = (folder / REPORT).read_text(), read_profile_set(folder).merged()
    means, operators = merged["summary"], merged["operators"]
    assert row(report, "training speed")[1] == shown(means["samples_per_second"], "samples/s")
    assert row(report, "peak memory")[1] == f"{means['peak_memory_bytes'] / 2**20:.1f} MiB"
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
    assert row(report, "GEMMs")[1] == f"{operators['matrix_product_percent']:.1f} %"
    mfu = merged["flops"]["flops_profile"]["efficiency_metrics"]["mfu_percent"]
    assert row(report, "MFU")[1] == f"{mfu:.1f} %"
    by_name = {found["name"]: found["percent"] for found in operators["components"]}
    attention = sum(value for name, value in by_name.items() if name.startswith("attention/"))
    assert row(report, "attention ")[1] == f"{attention:.1f} %"


def test_another_measurement_gives_another_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    softmax = {"operators.softmax_percent": 55.5}
    for title, changes, words in (
        ("Baseline", {"summary.samples_per_second": 12345.0}, "12,345 samples/s"),
        ("Top 10 operators", {"operators.launch_overhead_percent": 77.7}, "77.7 %"),
        ("Top 10 operators", {"operators.table.3.share_percent": 99.0}, "99.0 %"),
        ("Components", {"operators.components.0.percent": 77.7}, "77.7 %"),
        ("Memory", {"memory.breakdown_at_peak.attention_scores": 2**33}, "8,192.0 MiB"),
        (FLOPS, {"flops.roofline_data.points.0.bound": "memory"}, "[x] Below roofline"),
        ("Bottlenecks", softmax, "55.5 %"),
        ("Impact and effort", softmax, "Softmax operations (1.38x)"),
    ):
        folder = write_profile(tmp_path / "p", made_up_summary(changes))
        assert run(tmp_path, "--analyze-existing", str(folder)) == 0
        assert words in section(capsys.readouterr().out, title)


def test_overheads_and_top(tmp_path: Path) -> None:
    folder = profiled(tmp_path, "p", "--top", "3")
    found = {title: own for title, _, _, own, _, _ in profiler_overheads(read_profile_set(folder))}
    wanted = {"operator profiler": 10, "memory profiler": 5, "FLOPS profiler": 0}
    assert found == {title: pytest.approx(value, abs=1.5) for title, value in wanted.items()}
    ranks = section((folder / REPORT).read_text(), "Top 3 operators").split("figure")[0]
    assert ranks.count("aten::") == 3
    # the first step is in no overhead
    profiles = read_profile_set(profiled(tmp_path, "two", "--num-steps", "2"))
    steps = profiles.profiles["flops"]["steps"]
    assert profiler_overheads(profiles)[2][1:3] == (None, steps[1]["time_seconds"])


def test_warnings_and_errors_are_in_the_report(tmp_path: Path) -> None:
    class Warns(PlayedProgram):
        def run(self, *arguments, **named):  # noqa: ANN002, ANN003, ANN202
            found = super().run(*arguments, **named)
            object.__setattr__(found, "output", "Step 1: Loss = 6\nWarning: clock is low\n")
            return found

    assert run(tmp_path, "--profile-dir", str(tmp_path / "p"), program=Warns()) == 0
    assert "- plain run: Warning: clock is low" in (tmp_path / "p" / REPORT).read_text()
    text = "a: error: x\n[W1122 y\nno trouble\nerror rate 0\n"
    assert warnings_in(text) == ["a: error: x", "[W1122 y"]


def test_a_loss_that_is_not_finite_leaves_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    program = PlayedProgram(exit_status=1, changes={"operators": None})
    assert run(tmp_path, "--profile-dir", str(folder), program=program) == 1
    assert sorted(read_profile_set(folder).profiles) == ["baseline", "flops", "memory"]
    report = (folder / REPORT).read_text()
    assert "the loss was not finite" in report
    assert "- operator profiler: ended before its steps" in report
    assert "Not measured: needs --enable-pytorch-profiler." in report
    assert run(tmp_path, "--analyze-existing", str(folder)) == 0
    # of a run that ended well, it is damage
    program = PlayedProgram(changes={"operators": None})
    assert run(tmp_path, "--profile-dir", str(tmp_path / "q"), program=program) == 2


@pytest.mark.parametrize(("status", "is_kept"), [(1, True), (2, False)])
def test_the_log_of_a_crash_is_kept(tmp_path: Path, status: int, is_kept: bool) -> None:
    class Crashes(PlayedProgram):
        def run(self, options, folder, log=None):  # noqa: ANN001, ANN202
            if "--profile-memory" not in options:
                return super().run(options, folder, log)
            log.write_text("the last words\n")
            raise TrainingError("ended", status)

    folder = tmp_path / "p"
    assert run(tmp_path, "--profile-dir", str(folder), program=Crashes()) == status
    log = folder / "memory_analysis/training_output.log"
    assert (log.exists() and log.read_text() == "the last words\n") == is_kept
    assert (folder / "memory_analysis").exists() == is_kept
    assert not list(folder.rglob("*.part"))
    assert sorted(read_profile_set(folder).profiles) == ["baseline", "operators"]
    assert (folder / REPORT).is_file()


def test_after_ctrl_c_the_report_has_what_was_measured(tmp_path: Path) -> None:
    program = PlayedProgram(interrupt_after=2)
    assert run(tmp_path, "--profile-dir", str(tmp_path / "p"), program=program) == 130
    report = (tmp_path / "p" / REPORT).read_text()
    assert "- memory profiler: did not run" in report
    assert "Not measured: needs --profile-memory." in report and "aten::mm" in report


def test_refused_options_leave_everything_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = profiled(tmp_path, "p")
    before = contents(folder)
    program = PlayedProgram(refuses={"--variant=none": "--variant 'none': unknown"})
    options = ("--variant", "none", "--profile-dir")
    assert run(tmp_path, *options, str(folder), program=program) == 2
    assert contents(folder) == before
    assert run(tmp_path, *options, str(tmp_path / "new/folder"), program=program) == 2
    assert not (tmp_path / "new").exists()
    assert "--variant 'none': unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch-size", "0"], "'0': must be a whole number of 1 or more"),
        (["--size", "huge"], "huge"),
        (["--dtype", "f8"], "f8"),
        (["--unknown"], "--unknown"),
        (["--generate-report"], "--generate-report: has no meaning with a run"),
        (["--analyze-existing", "x", "--batch-size", "4"], "--batch-size: has no meaning"),
        (["--analyze-existing", "x", "--output-dir", "y"], "without --generate-report"),
        (["--compare", "x"], "--compare"),
        (["--compare", "x", "y", "--analyze-existing", "z"], "--analyze-existing"),
    ],
)
def test_bad_options(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        parse_options(options)
    assert error.value.code == 2
    assert words in capsys.readouterr().err


def test_places_and_files_that_will_not_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "p").write_text("kept")
    program = PlayedProgram()
    for options, words in (
        (("--ablation", str(tmp_path / "a.json")), "no result of scripts/ablation"),
        (("--profile-dir", "/proc/profiles"), "/proc/profiles"),
        (("--profile-dir", str(tmp_path / "p")), str(tmp_path / "p")),
    ):
        assert run(tmp_path, *options, program=program) == 2
        assert words in capsys.readouterr().err
    assert not program.calls and (tmp_path / "p").read_text() == "kept"


ABLATION = PROJECT / "results/reference/ablation_2core_xeon_avx512.json"


def test_an_ablation_of_another_shape_is_refused_before_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PlayedProgram()
    for option in ("--batch-size=3", "--size=small", "--dtype=amp_f16", "--variant=fused"):
        # in amp_f16 the baseline failed its proof there
        more = ["--seq-len=256", "--batch-size=16"] if "f16" in option else []
        ablation = ["--ablation", str(ABLATION), *more]
        assert run(tmp_path, option, *ablation, program=program) == 2
        assert str(ABLATION) in capsys.readouterr().err
    assert not program.calls and not (tmp_path / "results").exists()


def test_an_ablation_of_another_device_leaves_a_report_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, program = tmp_path / "p", PlayedProgram()
    options = ("--profile-dir", str(folder), "--ablation", str(ABLATION))
    assert run(tmp_path, *options, program=program) == 2
    assert len(program.calls) == 4
    why = "device, threads and micro-batches are ('Intel(R) Xeon(R) Processor'"
    assert why in capsys.readouterr().err
    report = (folder / REPORT).read_text()
    assert f"ablation_2core_xeon_avx512.json: {why}" in report and "(none found)" in report


def test_existing_profiles_are_reported_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = profiled(tmp_path, "p")
    for part in ("", "pytorch_profiling", "memory_analysis", "baseline_training"):
        out = tmp_path / f"out {part}"
        options = ("--analyze-existing", str(folder / part), "--generate-report")
        assert run(tmp_path, *options, "--output-dir", str(out)) == 0
        report = (out / REPORT).read_text()
        assert ("aten::mm" in report) == (part in {"", "pytorch_profiling"})
        assert part or report == (folder / REPORT).read_text()
    # and one run with all profilers
    one = write_profile(tmp_path / "one", made_up_summary())
    capsys.readouterr()
    assert run(tmp_path, "--analyze-existing", str(one)) == 0
    assert "Not measured:" not in capsys.readouterr().out.replace("- Not measured: none", "")
    assert not (one / REPORT).exists()


def test_a_damaged_profile_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = profiled(tmp_path, "p")
    runs = ("baseline_training/", "memory_analysis/", "")
    for spoiled in ("profile_runs.json", *(f"{name}performance_summary.json" for name in runs)):
        path = folder / spoiled
        text = path.read_text()
        lacking = {k: v for k, v in json.loads(text).items() if k not in ("summary", "runs")}
        for found in (None, text[:100], json.dumps(lacking)):
            path.unlink() if found is None else path.write_text(found)
            before = contents(folder)
            assert run(tmp_path, "--analyze-existing", str(folder), "--generate-report") == 2
            assert spoiled in capsys.readouterr().err
            assert contents(folder) == before
        path.write_text(text)
    # a timeline is drawn before the report is written
    timeline = folder / "memory_analysis/memory_timeline.json"
    for found in ("{", json.dumps({"events": [[0.0, 1, "forward", "ffn"]]})):
        timeline.write_text(found)
        assert run(tmp_path, "--analyze-existing", str(folder), "--generate-report") == 2
        assert "memory_timeline.json: is " in capsys.readouterr().err


def test_runs_that_lack_a_section_or_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = profiled(tmp_path, "p")
    path = folder / "profile_runs.json"
    text = path.read_text()
    for found, words in (
        (text.replace('"memory"', '"heat"'), "runs[2].name: 'heat' is not one of"),
        ('{"runs": ["x"]}', "runs[0]: 'x' is not of type 'object'"),
        ('{"runs": []}', "no run came to its end"),
    ):
        path.write_text(found)
        assert run(tmp_path, "--analyze-existing", str(folder)) == 2
        assert words in capsys.readouterr().err
    path.write_text(text)
    write_profile(folder / "memory_analysis", made_up_summary(profilers=()))
    assert run(tmp_path, "--analyze-existing", str(folder)) == 2
    assert "memory_analysis: its summary has no 'memory' section" in capsys.readouterr().err


def test_two_versions_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = profiled(tmp_path, "v1")
    b = profiled(tmp_path, "v2", "--variant", "fused")
    path = b / "pytorch_profiling/performance_summary.json"
    changed = json.loads(path.read_text())
    operators = changed["operators"]
    operators["table"] = [r for r in operators["table"] if r["name"] != "aten::neg"]
    for component in operators["components"]:
        if component["name"] in {"attention/core", "ffn/gate_up_proj"}:
            component["forward_seconds"] /= 2
            component["backward_seconds"] /= 2
    path.write_text(json.dumps(changed))
    capsys.readouterr()
    out = tmp_path / "out"
    assert run(tmp_path, "--compare", str(a), str(b), "--output-dir", str(out)) == 0
    text = capsys.readouterr().out
    assert text == (out / "comparison_report.md").read_text()
    assert "Not the same work" not in text
    before, after = (read_profile_set(folder).merged()["operators"] for folder in (a, b))
    core = [
        next(c for c in o["components"] if c["name"] == "attention/core") for o in (before, after)
    ]
    seconds = [c["forward_seconds"] + c["backward_seconds"] for c in core]
    cells = row(text, "attention/core")
    assert cells[1:] == [
        *(shown(seconds[0], "ms"), f"{core[0]['percent']:.1f} %"),
        *(shown(seconds[1], "ms"), f"{core[1]['percent']:.1f} %"),
        *(shown(seconds[0] - seconds[1], "ms"), "2.00x"),
    ]
    # the largest change stands first; what only one has is said
    components = section(text, "Components").splitlines()
    assert components[3].startswith("| ffn/gate_up_proj")
    assert row(text, "aten::neg")[3:5] == ["absent", "absent"]
    steps = [read_profile_set(f).plain["summary"]["average_step_seconds"] for f in (a, b)]
    assert row(text, "step ")[1:] == [
        *(shown(s, "ms") for s in steps),
        f"{steps[0] / steps[1]:.2f}x",
    ]
    other = profiled(tmp_path, "v3", "--seq-len", "64")
    path = other / "baseline_training/performance_summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"distributed": FOUR_RANKS}))
    assert run(tmp_path, "--compare", str(a), str(other)) == 0
    text = capsys.readouterr().out
    assert "- seq_len: 128 against 64\n" in text
    assert "- ranks: 1 against 4\n" in text


# What is read.


def test_a_run_as_a_stored_case() -> None:
    summary = made_up_summary(profilers=("operators",))
    found = read_training(summary, Path("run"))
    plain = [s for s in summary["steps"] if s["step"] > 1 and not s["profiled"]]
    step, forward = (found.cases[f"training/{name}"] for name in ("step", "forward"))
    assert step.seconds == statistics.median(s["time_seconds"] for s in plain)
    assert forward.seconds == statistics.median(s["forward_seconds"] for s in plain)
    assert found.warnings == ()
    # only profiled steps, and only the first
    for steps, words in (
        (summary["steps"][4:8], "was profiled"),
        (summary["steps"][:1], "warms up"),
    ):
        kept = read_training(summary | {"steps": steps}, Path("run"))
        assert words in kept.warnings[0]
        times = [s["time_seconds"] for s in steps[1:] or steps]
        assert kept.cases["training/step"].seconds == statistics.median(times)


def test_a_file_that_is_no_summary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadProfileError, match="cannot be read: No such file"):
        read_profile(tmp_path)
    # a captured step has no phases
    good = made_up_summary({"summary.average_forward_seconds": None}, gpu=True)
    assert read_profile(write_profile(tmp_path, good)) == good
    text = json.dumps(good).encode()
    spoiled: list[tuple[bytes, str]] = [(text[:keep], "is ") for keep in (0, 1, 200, 5000)]
    spoiled += [(b"\xff\xfe\x00", "no JSON"), (b"[" * 100_000, "no JSON"), (b"[]", "holds no")]
    for changes, words in (
        ({"summary.final_loss": float("nan")}, "summary.final_loss"),
        ({"model.total_parameters": 10**400}, "model.total_parameters"),
        ({"schema_version": 2}, "schema_version"),
        ({"program": "other"}, "program"),
        ({"operators.table.0.calls": "many"}, "operators.table[0].calls"),
        ({"summary.samples_per_second": -1}, "summary.samples_per_second"),
        ({"flops.computational_intensity.memory_bound_vs_compute_bound": "both"}, "both"),
        ({"operators.components": {}}, "operators.components"),
        ({"memory": made_up_summary()["memory"] | {"peak_MiB": 5}}, "('peak_MiB'"),
    ):
        spoiled.append((json.dumps(made_up_summary(changes)).encode(), words))
    path = tmp_path / "performance_summary.json"
    for content, words in spoiled:
        path.write_bytes(content)
        with pytest.raises(BadProfileError) as error:
            read_profile(tmp_path)
        assert str(path) in str(error.value) and words in str(error.value)


def test_figures_in_their_units() -> None:
    for value, unit, text in (
        *((36.8 * 2**20, "MB", "36.8 MB"), (1000, "MiB", "1,000 bytes"), (0, "MB", "0.0 MB")),
        *((0.0928, "ms", "92.8 ms"), (1.5, "ms", "1,500 ms"), (2873600, "", "2,873,600")),
        *((0.123456, "GB", "0.1235 GB"), (1.7e11, "FLOP/s", "1.700e+11 FLOP/s")),
        *((1.085, "x", "1.08x"), (12.345, "%", "12.3 %"), (None, "%", "not measured")),
        *(("a|b", "", "a\\|b"), (True, "", "yes"), (12345.6, "s", "12,346 s")),
    ):  # fmt: skip
        assert shown(value, unit) == text
