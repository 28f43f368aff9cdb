"""scripts/profile: its runs, saved profiles, and files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import tools
from fake_training import ALL_PROFILERS, PlayedProgram, made_up_summary, write_profile
from tinyllama_tools.commands.profile import parse_options, program_options, warnings_in
from tinyllama_tools.commands.profile_page import component_sides, operator_sides, pair_up
from tinyllama_tools.commands.profile_tables import profiler_overheads, read_profile_set
from tinyllama_tools.data.profiles import BadProfileError, read_profile
from tinyllama_tools.data.programs import TrainingError
from tinyllama_tools.models.roofline import (
    COMPUTE_BOUND,
    MEMORY_BOUND,
    ON_ROOFLINE,
    roofline_position,
)

REPORT = "performance_summary_report.md"
SECTIONS = (
    "Configuration",
    "Runs",
    "Baseline",
    "Overhead of the profilers",
    "Top 10 operators",
    "Components",
    "Memory",
    "FLOPS efficiency and roofline",
    "Bottlenecks",
    "Impact and effort",
    "Files",
)


def run(tmp_path: Path, *options: str, program: PlayedProgram | None = None) -> int:
    return tools.profile(options, program=program or PlayedProgram(), results=tmp_path / "results")


def profiled(tmp_path: Path, name: str, *options: str, **played: object) -> Path:
    folder = tmp_path / name
    assert (
        run(tmp_path, "--profile-dir", str(folder), *options, program=PlayedProgram(**played)) == 0
    )
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def lines_of(report: str, section: str) -> list[str]:
    return report.split(f"## {section}\n")[1].split("\n## ")[0].splitlines()


def test_the_folder_that_the_workshop_reads(tmp_path: Path) -> None:
    folder = profiled(tmp_path, "all")
    for name in (
        "baseline_training/performance_summary.json",
        "baseline_training/training_output.log",
        "pytorch_profiling/performance_summary.json",
        "pytorch_profiling/trace_step_5_10.json",
        "memory_analysis/memory_timeline.json",
        "flops_analysis/flops_profile.json",
        "flops_analysis/computational_intensity.json",
        "flops_analysis/roofline_data.json",
        REPORT,
    ):
        assert (folder / name).is_file(), name
    assert not list(folder.rglob("*.part"))
    report = (folder / REPORT).read_text()
    assert [line[3:] for line in report.splitlines() if line.startswith("## ")] == list(SECTIONS)


def test_one_profiler_at_a_time(tmp_path: Path) -> None:
    program = PlayedProgram()
    run(tmp_path, "--profile-dir", str(tmp_path / "p"), "--batch-size", "4", program=program)
    common = ["--batch-size=4", "--num-steps=30"]
    assert program.calls == [
        common,
        [*common, "--enable-pytorch-profiler", "--profile-operators"],
        [*common, "--profile-memory"],
        [*common, "--enable-deepspeed-flops"],
    ]


def test_numbers_of_the_report_are_those_of_the_files(tmp_path: Path) -> None:
    folder = profiled(tmp_path, "p")
    report, merged = (folder / REPORT).read_text(), read_profile_set(folder).merged()
    speed = merged["summary"]["samples_per_second"]
    assert f"| {speed:.1f} samples/s" in report
    top = lines_of(report, "Top 10 operators")
    # rows of one name, which shapes tell apart, are one operator
    products = [row for row in merged["operators"]["table"] if row["name"] == "aten::mm"]
    assert len(products) == 2
    row = next(line for line in top if line.startswith("| 1 "))
    assert "aten::mm" in row
    assert f"{sum(row['share_percent'] for row in products):.1f} %" in row
    assert any(f"{products[0]['share_percent']:.1f} %" in line for line in top[-10:])
    assert f"{merged['operators']['matrix_product_percent']:.1f} %" in "\n".join(top)
    mfu = merged["flops"]["flops_profile"]["efficiency_metrics"]["mfu_percent"]
    assert f"{mfu:.1f} %" in "\n".join(lines_of(report, "FLOPS efficiency and roofline"))


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("Baseline", {"summary.samples_per_second": 12345.0}),
        ("Top 10 operators", {"operators.launch_overhead_percent": 77.7}),
        ("Top 10 operators", {"operators.table.3.share_percent": 99.0}),
        ("Components", {"operators.components.0.percent": 77.7}),
        ("Memory", {"memory.breakdown_at_peak.attention_scores": 2**33}),
        ("FLOPS efficiency and roofline", {"flops.roofline_data.points.0.bound": "memory"}),
        ("Bottlenecks", {"operators.softmax_percent": 55.5}),
        ("Impact and effort", {"operators.softmax_percent": 55.5}),
    ],
)
def test_another_measurement_gives_another_section(
    tmp_path: Path, section: str, changes: dict[str, object]
) -> None:
    before = (profiled(tmp_path, "a") / REPORT).read_text()
    after = (profiled(tmp_path, "b", changes=changes) / REPORT).read_text()
    assert lines_of(before, section) != lines_of(after, section)


def test_top_chooses_how_many_operators(tmp_path: Path) -> None:
    report = (profiled(tmp_path, "p", "--top", "3") / REPORT).read_text()
    ranks = [line.split()[1] for line in lines_of(report, "Top 3 operators")[:9] if "aten" in line]
    assert ranks == ["1", "2", "3"]


def test_overheads_against_the_plain_steps(tmp_path: Path) -> None:
    found = {o.profiler: o for o in profiler_overheads(read_profile_set(profiled(tmp_path, "p")))}
    assert found["operators"].percent == pytest.approx(10, abs=1.5)
    assert found["memory"].percent == pytest.approx(5, abs=1.5)
    assert found["flops"].percent == pytest.approx(0, abs=1.5)


def test_the_first_step_is_in_no_overhead(tmp_path: Path) -> None:
    profiles = read_profile_set(profiled(tmp_path, "p", "--num-steps", "2"))
    steps = profiles.profiles["flops"].summary["steps"]
    overhead = next(o for o in profiler_overheads(profiles) if o.profiler == "flops")
    assert overhead.profiled_seconds == steps[1]["time_seconds"]
    assert overhead.plain_seconds is None


def test_warnings_and_errors_are_in_the_report(tmp_path: Path) -> None:
    class Warns(PlayedProgram):
        def run(self, *arguments, **named):  # noqa: ANN002, ANN003, ANN202
            found = super().run(*arguments, **named)
            object.__setattr__(found, "output", "Step 1: Loss = 6\nWarning: clock is low\n")
            return found

    assert run(tmp_path, "--profile-dir", str(tmp_path / "p"), program=Warns()) == 0
    runs = lines_of((tmp_path / "p" / REPORT).read_text(), "Runs")
    assert "- plain run: Warning: clock is low" in runs
    assert warnings_in("a: error: x\n[W1122 y\nno trouble\nerror rate 0\n") == [
        "a: error: x",
        "[W1122 y",
    ]


def test_a_loss_that_is_not_finite_is_a_failure(tmp_path: Path) -> None:
    status = run(
        tmp_path, "--profile-dir", str(tmp_path / "p"), program=PlayedProgram(exit_status=1)
    )
    assert status == 1
    assert "the loss was not finite" in (tmp_path / "p" / REPORT).read_text()


def test_a_loss_that_fails_before_the_profilers_steps_leaves_a_report(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "p"
    program = PlayedProgram(exit_status=1, changes={"operators": None})
    assert run(tmp_path, "--profile-dir", str(folder), program=program) == 1
    assert sorted(read_profile_set(folder).profiles) == ["baseline", "flops", "memory"]
    report = (folder / REPORT).read_text()
    assert "- operator profiler: left out: it ended before" in report
    assert "Not measured: needs --enable-pytorch-profiler." in report
    assert run(tmp_path, "--analyze-existing", str(folder)) == 0


def test_a_section_that_a_good_run_lacks_is_damage(tmp_path: Path) -> None:
    program = PlayedProgram(changes={"operators": None})
    assert run(tmp_path, "--profile-dir", str(tmp_path / "p"), program=program) == 2


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
    assert not list(folder.rglob("*.part"))
    assert (folder / REPORT).is_file()


def test_after_ctrl_c_the_report_has_what_was_measured(tmp_path: Path) -> None:
    program = PlayedProgram(interrupt_after=2)
    assert run(tmp_path, "--profile-dir", str(tmp_path / "p"), program=program) == 130
    report = (tmp_path / "p" / REPORT).read_text()
    assert "- memory profiler: did not run" in report
    assert "Not measured: needs --profile-memory." in report
    assert "aten::mm" in report


def test_refused_options_leave_everything_as_it_was(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    folder = profiled(tmp_path, "p")
    before = contents(folder)
    program = PlayedProgram(refuses={"--variant=none": "--variant 'none': unknown"})
    options = ("--variant", "none", "--profile-dir")
    assert run(tmp_path, *options, str(folder), program=program) == 2
    assert contents(folder) == before
    assert run(tmp_path, *options, str(tmp_path / "new/folder"), program=program) == 2
    assert not (tmp_path / "new").exists()
    assert "--variant 'none': unknown" in capsys.readouterr().err


def test_a_later_run_that_fails_keeps_the_earlier_ones(tmp_path: Path) -> None:
    program = PlayedProgram(refuses={"--profile-memory": "all steps belong to other profilers"})
    assert run(tmp_path, "--profile-dir", str(tmp_path / "p"), program=program) == 2
    assert sorted(read_profile_set(tmp_path / "p").profiles) == ["baseline", "operators"]
    assert not list((tmp_path / "p").rglob("*.part"))
    assert not (tmp_path / "p/memory_analysis").exists()
    assert (tmp_path / "p" / REPORT).is_file()


@pytest.mark.parametrize(
    ("percent", "bound", "position"),
    [
        (30.0, "memory", MEMORY_BOUND),
        (30.0, "compute", COMPUTE_BOUND),
        (90.0, "memory", ON_ROOFLINE),
        (90.0, "compute", ON_ROOFLINE),
        (None, "memory", None),
    ],
)
def test_roofline_position(percent: float | None, bound: str, position: str | None) -> None:
    point = "flops.roofline_data.points.0"
    summary = made_up_summary({f"{point}.percent_of_attainable": percent, f"{point}.bound": bound})
    found = roofline_position(summary["flops"])
    assert (found.position if found else None) == position


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
def test_bad_options(options: list[str], words: str, capsys) -> None:  # noqa: ANN001
    with pytest.raises(SystemExit) as error:
        parse_options(options)
    assert error.value.code == 2
    assert words in capsys.readouterr().err


def test_a_size_keeps_its_own_shape() -> None:
    options = program_options(parse_options(["--size", "small"]))
    assert options == ("--size=small", "--num-steps=30")


def test_an_ablation_that_will_not_do(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    (tmp_path / "a.json").write_text("{}")
    program = PlayedProgram()
    options = ("--ablation", str(tmp_path / "a.json"), "--profile-dir", str(tmp_path / "p"))
    assert run(tmp_path, *options, program=program) == 2
    assert "no result of scripts/ablation" in capsys.readouterr().err
    assert not program.calls


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    assert run(tmp_path, "--profile-dir", "/proc/profiles") == 2
    assert "/proc/profiles" in capsys.readouterr().err


def test_a_file_in_the_place_of_the_folder(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    (tmp_path / "p").write_text("kept")
    assert run(tmp_path, "--profile-dir", str(tmp_path / "p")) == 2
    assert str(tmp_path / "p") in capsys.readouterr().err
    assert (tmp_path / "p").read_text() == "kept"


def test_the_command_is_told_of_a_bad_option_before_any_set_up(project_root: Path) -> None:
    command = [project_root / "scripts/profile", "--batch-size", "none"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2
    assert "'none': must be a whole number" in found.stderr


def test_help_names_every_option(project_root: Path) -> None:
    command = [project_root / "scripts/profile", "--help"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    for option in vars(parse_options([])):
        assert f"--{option.replace('_', '-')}" in found.stdout


@pytest.mark.parametrize("part", ["", "pytorch_profiling", "memory_analysis", "baseline_training"])
def test_existing_profiles_are_reported_again(tmp_path: Path, part: str) -> None:
    folder, out = profiled(tmp_path, "p"), tmp_path / "detailed"
    options = ("--analyze-existing", str(folder / part), "--generate-report")
    assert run(tmp_path, *options, "--output-dir", str(out)) == 0
    report = (out / REPORT).read_text()
    if not part:
        assert report == (folder / REPORT).read_text()
    assert ("aten::mm" in report) == (part in {"", "pytorch_profiling"})


def test_one_run_with_all_profilers_is_reported_too(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    folder = write_profile(tmp_path / "one", made_up_summary())
    assert run(tmp_path, "--analyze-existing", str(folder)) == 0
    report = capsys.readouterr().out
    assert "Not measured" not in report
    assert not (folder / REPORT).exists()


@pytest.mark.parametrize(
    "spoiled",
    [
        "profile_runs.json",
        "baseline_training/performance_summary.json",
        "memory_analysis/performance_summary.json",
        "performance_summary.json",
    ],
)
@pytest.mark.parametrize("way", ["removed", "cut", "other section"])
def test_a_damaged_profile_is_refused(tmp_path: Path, spoiled: str, way: str, capsys) -> None:  # noqa: ANN001
    folder = profiled(tmp_path, "p")
    path = folder / spoiled
    if way == "removed":
        path.unlink()
    elif way == "cut":
        path.write_text(path.read_text()[:100])
    else:
        document = json.loads(path.read_text())
        for key in ("summary", "runs"):
            document.pop(key, None)
        path.write_text(json.dumps(document))
    before = contents(folder)
    assert run(tmp_path, "--analyze-existing", str(folder), "--generate-report") == 2
    assert spoiled in capsys.readouterr().err
    assert contents(folder) == before


def test_a_profiler_that_recorded_nothing_is_named(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    folder = profiled(tmp_path, "p")
    write_profile(folder / "memory_analysis", made_up_summary(profilers=()))
    assert run(tmp_path, "--analyze-existing", str(folder)) == 2
    assert "memory_analysis: its summary has no 'memory' section" in capsys.readouterr().err


def test_a_folder_outside_is_not_followed(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    folder = profiled(tmp_path, "p")
    path = folder / "profile_runs.json"
    path.write_text(path.read_text().replace('"memory_analysis"', '"../elsewhere"'))
    assert run(tmp_path, "--analyze-existing", str(folder)) == 2
    assert "outside" in capsys.readouterr().err


def test_two_versions_side_by_side(tmp_path: Path, capsys) -> None:  # noqa: ANN001
    a, b = profiled(tmp_path, "v1"), profiled(tmp_path, "v2", "--variant", "fused")
    capsys.readouterr()
    out = tmp_path / "out"
    assert run(tmp_path, "--compare", str(a), str(b), "--output-dir", str(out)) == 0
    text = capsys.readouterr().out
    assert text == (out / "comparison_report.md").read_text()
    core = next(line for line in text.splitlines() if line.startswith("| attention/core"))
    assert core.rstrip(" |").endswith("2.00x")
    assert "Not the same work" not in text
    assert run(tmp_path, "--compare", str(a), str(profiled(tmp_path, "v3", "--seq-len", "64"))) == 0
    assert "- seq_len: 128 against 64" in capsys.readouterr().out


def test_pairs_of_operators_and_components() -> None:
    first = made_up_summary()["operators"]
    second = made_up_summary(variant="sdpa")["operators"]
    second["table"] = [row for row in second["table"] if row["name"] != "aten::neg"]
    pairs = {p.name: p for p in pair_up(operator_sides(first), operator_sides(second))}
    assert pairs["aten::bmm"].speedup == pytest.approx(2)
    assert pairs["aten::neg"].b is None
    assert pairs["aten::neg"].saved_seconds > 0
    components = pair_up(component_sides(first), component_sides(second))
    assert components[0].name == "attention/core"
    assert components[0].speedup == pytest.approx(2)


def refusal(folder: Path) -> str:
    with pytest.raises(BadProfileError) as error:
        read_profile(folder)
    text = str(error.value)
    assert str(folder / "performance_summary.json") in text
    assert "profile again" in text
    return text


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("profilers", [(), *[(name,) for name in ALL_PROFILERS], ALL_PROFILERS])
def test_reads_what_was_written(tmp_path: Path, profilers: tuple[str, ...], gpu: bool) -> None:
    summary = made_up_summary(profilers=profilers, gpu=gpu)
    profile = read_profile(write_profile(tmp_path / "p", summary))
    assert profile.summary == summary
    on = {name for name in ALL_PROFILERS if getattr(profile, name) is not None}
    assert on == set(profilers)


def test_a_captured_step_has_no_phases(tmp_path: Path) -> None:
    changes = {f"summary.average_{phase}_seconds": None for phase in ("forward", "backward")}
    changes |= {"summary.breakdown.forward.percent": None, "steps.0.forward_seconds": None}
    read_profile(write_profile(tmp_path, made_up_summary(changes)))


def test_a_missing_file(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 200, 5000])
def test_a_file_that_ends_too_early(tmp_path: Path, keep: int) -> None:
    path = write_profile(tmp_path, made_up_summary()) / "performance_summary.json"
    path.write_text(path.read_text()[:keep])
    assert "is no JSON" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000])
def test_a_file_that_is_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "performance_summary.json").write_bytes(content)
    refusal(tmp_path)


def test_a_number_that_json_has_not(tmp_path: Path) -> None:
    write_profile(tmp_path, made_up_summary({"summary.final_loss": float("nan")}))
    assert "NaN" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": 2}, "schema_version is 2, must be 1"),
        ({"program": "other"}, "program"),
        ({"operators.table.0.calls": "many"}, "operators.table[0].calls"),
        ({"summary.samples_per_second": -1}, "summary.samples_per_second"),
        ({"configuration.batch_size": 0}, "configuration.batch_size"),
        ({"flops.computational_intensity.memory_bound_vs_compute_bound": "both"}, "both"),
        ({"operators.components": {}}, "operators.components"),
    ],
)
def test_a_wrong_value(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    write_profile(tmp_path, made_up_summary(changes))
    assert words in refusal(tmp_path)


def test_a_missing_key(tmp_path: Path) -> None:
    summary = made_up_summary()
    del summary["memory"]["peak_bytes"]
    (tmp_path / "performance_summary.json").write_text(json.dumps(summary))
    assert "memory: 'peak_bytes' is a required property" in refusal(tmp_path)


def test_an_unknown_key(tmp_path: Path) -> None:
    summary = made_up_summary()
    summary["memory"]["peak_MiB"] = 5
    (tmp_path / "performance_summary.json").write_text(json.dumps(summary))
    assert "memory: Additional properties are not allowed ('peak_MiB'" in refusal(tmp_path)


def test_a_list(tmp_path: Path) -> None:
    (tmp_path / "performance_summary.json").write_text(json.dumps([made_up_summary()]))
    assert "holds no object" in refusal(tmp_path)
