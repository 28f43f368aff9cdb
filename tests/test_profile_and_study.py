"""scripts/profile: its runs, saved profiles and files, and the bottlenecks that it ranks; and
scripts/study on a made-up machine: its plan, files, table and interruption."""

import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

import tools
from compare.samples import CONTEXT
from fake_training import (
    FOUR_RANKS,
    GIB,
    PlayedPredictor,
    PlayedProgram,
    changed,
    evidence,
    made_up_summary,
    measured_ratio,
    operator_table,
    step_cost,
    write_profile,
)
from tinyllama_tools.commands import study
from tinyllama_tools.commands.profile import read_profiles, warnings_in
from tinyllama_tools.commands.worksheet import shown
from tinyllama_tools.data.names import full_step
from tinyllama_tools.data.profiles import read_training
from tinyllama_tools.models.bottlenecks import (
    ATTENTION,
    CHECKPOINTING,
    FLASH,
    FUSION,
    LAUNCHES,
    MEMORY,
    MIXED,
    QKV,
    SOFTMAX,
    SWIGLU,
    WORTHWHILE_SPEEDUP,
    Bottleneck,
    memory_effects,
    rank_bottlenecks,
    small_calls_percent,
)
from tinyllama_tools.models.step_ratios import Evidence, find_ablation

CASE = full_step("tiny", "f32", 8, 128)
REPORT, SUMMARY = "performance_summary_report.md", "performance_summary.json"
FLOPS = "FLOPS efficiency and roofline"
LAUNCH = "operators.launch_overhead_percent"
CORE, PROJECTIONS = "attention/core", "attention/qkv_proj"


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
    # the other files, of the program itself: test_workshop.py
    assert (folder / "baseline_training/training_output.log").is_file()
    report, merged = (folder / REPORT).read_text(), read_profiles(folder)
    memory = merged["memory"]
    drawn = (folder / "memory_analysis/memory_timeline.html").read_text(encoding="utf-8")
    peak = f"peak {memory['peak_bytes'] / 2**20:.2f} MiB: attention\\u002fcore, backward"
    for text in (peak, "steps 2 to 4", '"step 3"', '"forward"', '"optimizer"', '"time (ms)"'):
        assert text in drawn, text
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


def test_a_plug_in_reaches_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = PlayedProgram()
    assert run(tmp_path, "--profile-dir", tmp_path / "a", "--plugin=x.so", program=program) == 0
    assert all("--plugin=x.so" in call for call in program.calls)
    costs = PlayedPredictor(8 * GIB)
    asked: list[Sequence[str]] = []

    def priced(_: Path, options: Sequence[str]) -> object:
        asked.append(options)
        return costs(options)

    def played(_: Path, arguments: tuple[str, ...], __: object) -> PlayedProgram:
        assert arguments[1:] == ("--plugin=x.so",)
        return PlayedProgram(arguments)

    monkeypatch.setattr(study, "ask_costs", priced)
    monkeypatch.setattr(study, "TrainingProgram", played)
    assert tools.study(["tiny", "--plugin=x.so", "--dry-run", f"--out={tmp_path}"]) == 0
    assert asked[0][0] == "--plugin=x.so"


def test_another_measurement_gives_another_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    softmax = {"operators.softmax_percent": 55.5}
    for title, changes, words in (
        ("Top 3 operators", {"operators.matrix_product_percent": 77.7}, "77.7 %"),
        ("Components", {"operators.components.0.percent": 77.7}, "77.7 %"),
        ("Memory", {"memory.breakdown_at_peak.attention_scores": 2**33}, "8,192.0 MiB"),
        (FLOPS, {"flops.roofline_data.points.0.bound": "memory"}, "[x] Below roofline"),
        ("Bottlenecks", softmax, "Softmax operations (1.38x, Medium-High)"),
    ):
        folder = write_profile(tmp_path / "p", made_up_summary(changes))
        assert run(tmp_path, "--analyze-existing", folder, "--top=3") == 0
        report = capsys.readouterr().out
        assert words in section(report, title)
        assert section(report, "Top 3 operators").split("figure")[0].count("aten::") == 3
        assert "Not measured:" not in report and not (folder / REPORT).exists()


def test_what_failed_is_in_the_report(tmp_path: Path) -> None:
    # of an earlier run in the same place, nothing is taken for this one's
    folder = profiled(tmp_path, "p")
    program = PlayedProgram(
        exit_status=1, changes={"operators": None}, refuses={"--profile-memory": "no room"}
    )
    assert run(tmp_path, "--profile-dir", folder, program=program) == 1
    merged, report = read_profiles(folder), (folder / REPORT).read_text()
    assert merged["memory"] is None and merged["flops"] is not None
    assert "- memory_analysis: tiny_llama_train: no room" in report
    assert "- pytorch_profiling: exit status 1: the loss was not finite" in report
    for option in ("--profile-memory", "--enable-pytorch-profiler"):
        assert f"Not measured: needs {option}." in report
    text = "a: error: x\n[W1122 y\nWarning: z\nno trouble\nerror rate 0\n"
    assert warnings_in(text) == ["a: error: x", "[W1122 y", "Warning: z"]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("ends_at", "status", "kept"), [(0, 130, 4), (2, 130, 2), (9, 2, 4)])
def test_earlier_summaries_stay_until_something_is_measured(
    tmp_path: Path, ends_at: int, status: int, kept: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = profiled(tmp_path, "p")
    before = contents(tmp_path)
    # interrupted, or refused
    program = PlayedProgram(interrupt_after=ends_at)
    program.refuses = {"--variant=none": "--variant 'none': unknown"} if status == 2 else {}
    for place in (folder, tmp_path / "new/folder")[: status == 2 or 1]:
        options = ("--profile-dir", place, "--num-steps=9", "--variant=none")
        assert run(tmp_path, *options, program=program) == status
        assert status != 2 or "--variant 'none': unknown" in capsys.readouterr().err
    found = [json.loads(path.read_text()) for path in folder.rglob(SUMMARY)]
    # never of two calls
    steps = {summary["configuration"]["num_steps"] for summary in found}
    assert (len(found), steps) == (kept, {9 if kept == 2 else 30})
    assert kept == 2 or contents(tmp_path) == before
    assert not (tmp_path / "new").exists()


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
    wrong = made_up_summary({"summary.final_loss": float("nan")})
    for path, found, words in (
        (summary, text[:5000], "is cut short"),
        (summary, json.dumps(wrong), "summary.final_loss"),
        (timeline, json.dumps({"events": [[0.0, 1, "forward", "ffn"]]}), "as it wrote it"),
    ):
        before = path.read_text()
        path.write_text(found)
        # a timeline is drawn before the report is written
        assert run(tmp_path, "--analyze-existing", folder, "--generate-report") == 2
        said = capsys.readouterr().err
        assert f"{path}: " in said and words in said and not (folder / REPORT).exists()
        path.write_text(before)
    summary.write_text(json.dumps(made_up_summary({"operators.components": []})))
    assert run(tmp_path, "--analyze-existing", folder) == 0
    assert run(tmp_path, "--analyze-existing", tmp_path) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    # a captured step has no phases
    good = made_up_summary({"summary.average_forward_seconds": None}, gpu=True)
    assert read_profiles(write_profile(tmp_path / "good", good)) == good


def test_two_versions_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = profiled(tmp_path, "v1")
    b = profiled(tmp_path, "v2", "--variant", "fused")
    path = b / "pytorch_profiling" / SUMMARY
    faster = json.loads(path.read_text())
    operators = faster["operators"]
    operators["table"] = [r for r in operators["table"] if r["name"] != "aten::neg"]
    for component in operators["components"]:
        if component["name"] == "attention/core":
            component["forward_seconds"] /= 2
            component["backward_seconds"] /= 2
    path.write_text(json.dumps(faster))
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
    path.write_text(json.dumps(changed(faster, {"context.torch_version": "2.14.0"})))
    assert run(tmp_path, "--compare", a, path.parent) == 0
    assert "- torch_version: 2.13.0 against 2.14.0\n" in capsys.readouterr().out
    known = [{"file": "libmy.so", "sha256": 64 * "a", "operators": ["my::rms_norm"]}]
    loaded = json.loads(path.read_text())
    loaded["context"]["plugins"] = known
    path.write_text(json.dumps(loaded))
    assert run(tmp_path, "--analyze-existing", path.parent) == 0
    assert "\nPlug-ins: libmy.so (SHA-256 aaaaaaaaaaaa)\n" in capsys.readouterr().out
    assert run(tmp_path, "--compare", a, path.parent) == 0
    plugins = "- plugins: none against libmy.so (SHA-256 aaaaaaaaaaaa)\n"
    assert plugins in capsys.readouterr().out
    other = write_profile(tmp_path / "v3", made_up_summary(seq_len=64, profilers=()))
    path = other / SUMMARY
    path.write_text(json.dumps(json.loads(path.read_text()) | {"distributed": FOUR_RANKS}))
    assert run(tmp_path, "--compare", a, other) == 0
    text = capsys.readouterr().out
    assert "- seq_len: 128 against 64\n" in text and "- ranks: 1 against 4\n" in text
    assert "Operators and components: not measured in B." in text


# What is read.


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("context.device.name", "another"),
        ("context.threads", 4),
        ("context.torch_version", "2.14.0"),
        ("context.git_commit", "fedcba9876543210"),
        ("configuration.seq_len", 64),
        ("configuration.variant", "fused"),
    ],
)
def test_profiles_of_different_runs_are_no_one_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: object
) -> None:
    """A run's shares beside another's time."""
    folder, part = tmp_path / "profile", made_up_summary(profilers=("operators",))
    write_profile(folder / "baseline_training", made_up_summary(profilers=()))
    for summary, status in ((part, 0), (changed(part, {key: value}), 2)):
        write_profile(folder / "pytorch_profiling", summary)
        assert run(tmp_path, "--analyze-existing", folder) == status
    said = capsys.readouterr().err
    assert f"profiles of different runs: {key.partition('.')[2]} is " in said
    assert repr(value) in said


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


# The six bottlenecks, what optimizations save, and the ablation that both may rest on.


def judged(summary: dict, found: Evidence | None = None) -> dict[str, Bottleneck]:
    return {bottleneck.name: bottleneck for bottleneck in rank_bottlenecks(summary, found)}


def test_shares_are_those_of_the_profile_and_speedups_by_hand() -> None:
    components = {PROJECTIONS: 40, CORE: 20, "ffn/gate_up_proj": 30, "ffn/swiglu": 10}
    summary = made_up_summary({LAUNCH: 50.0, "components": components})
    summary["operators"]["table"][0]["name"] = "aten::empty_strided"
    found = judged(summary)
    assert [found[n].share_percent for n in (QKV, ATTENTION, SWIGLU, LAUNCHES)] == [40, 20, 40, 50]
    assert found[SOFTMAX].share_percent == summary["operators"]["softmax_percent"]
    # half of the time is launches, of which one of three is left
    assert found[QKV].factor == pytest.approx(1 / (0.5 + 0.5 / 3))
    assert found[QKV].expected_speedup == pytest.approx(1 / (0.6 + 0.4 * (0.5 + 0.5 / 3)))
    assert found[QKV].upper_bound == pytest.approx(1 / 0.6)
    # of 128 x 128 scores the mask leaves 128 x 129 / 2
    assert found[ATTENTION].factor == found[SOFTMAX].factor == pytest.approx(256 / 129)
    # two launches become one; of five passes over memory three are left
    assert found[SWIGLU].factor == pytest.approx(40 / (30 * 0.75 + 10 * 3 / 5))
    layers = summary["configuration"]["n_layers"]
    assert found[LAUNCHES].factor == pytest.approx((7 * layers + 1) / (4 * layers + 1))
    memory, rows = summary["memory"], summary["operators"]["table"]
    every, small = memory["allocations_per_step"], memory["small_allocations_per_step"]
    assert found[MEMORY].factor == pytest.approx(every / (every - small))
    seconds = sum(r["cpu_self_seconds"] for r in rows if r["name"].startswith("aten::empty"))
    share = 100 * seconds / sum(row["cpu_self_seconds"] for row in rows)
    assert found[MEMORY].share_percent == pytest.approx(share)
    # of one that has it already
    assert judged(made_up_summary(variant="qkv"))[QKV].expected_speedup == 1


def test_the_order_is_by_quadrant_and_what_brings_nothing_comes_last() -> None:
    small, large = (judged(made_up_summary({"components": {CORE: share}})) for share in (1.0, 60.0))
    assert [found[ATTENTION].quadrant for found in (small, large)] == [4, 2]
    assert [*large].index(ATTENTION) < [*small].index(ATTENTION)
    fast = judged(made_up_summary(), evidence(qkv=1.15, sdpa=1.02, fused_attention=1.5))
    assert fast[QKV].quadrant == 1 and next(iter(fast)) == QKV
    assert fast[ATTENTION].measured_text.endswith("with fused_attention")
    # what is beyond the bound is not the category's doing
    assert fast[SOFTMAX].best_known_speedup == fast[SOFTMAX].upper_bound < 1.1
    # the first may be chance, the second is below what is worth anything
    known = evidence(sdpa=1.09, gate_up=WORTHWHILE_SPEEDUP - 0.001, graph=1.0)
    known.speedups["qkv"] = measured_ratio(1.1, 0.9, 1.3)
    found = judged(made_up_summary({"components": {CORE: 10.0, PROJECTIONS: 40.0}}), known)
    assert (found[QKV].quadrant, next(iter(found))) == (1, ATTENTION)
    worth = [b.is_worthwhile for b in found.values()]
    assert len(worth) == 6 and worth == sorted(worth, reverse=True)
    assert not found[QKV].is_worthwhile and not found[SWIGLU].is_worthwhile


def test_a_gpus_shares_are_made_shares_of_the_step() -> None:
    idle = made_up_summary({LAUNCH: 40.0, "components": {CORE: 50.0}}, gpu=True)
    found = judged(idle)
    assert found[ATTENTION].share_percent == pytest.approx(30)
    assert found[SOFTMAX].share_percent == pytest.approx(0.6 * idle["operators"]["softmax_percent"])
    assert found[LAUNCHES].share_percent == 40
    assert found[LAUNCHES].factor == idle["operators"]["kernels_per_step"]
    for unknown in (changed(idle, {LAUNCH: None}), made_up_summary(profilers=())):
        of = judged(unknown)[ATTENTION]
        assert (of.share_percent, of.expected_speedup, of.quadrant) == (None, None, None)


def test_what_optimizations_save_is_at_most_their_part_of_the_peak() -> None:
    peak = {"activations": 60, "attention_scores": 20}
    kept = {"rms_norm": 7, CORE: 10**6}
    memory = {"breakdown_at_peak": peak, "component_activation_bytes": kept, "peak_bytes": 200}
    for layers, all_but_one in ((4, 60), (1, 0)):
        found = memory_effects({"memory": memory, "configuration": {"n_layers": layers}})
        saved = {row["name"]: row["saved_bytes"] for row in found}
        assert saved == {FLASH: 20, CHECKPOINTING: all_but_one, MIXED: 40, FUSION: 7}
        assert [*saved.values()] == sorted(saved.values(), reverse=True)
        assert found[0]["saved_percent"] == max(saved.values()) / 2


def test_only_rows_that_work_count() -> None:
    views = ("aten::view", "aten::t", "detach", "torch::autograd::AccumulateGrad", "MulBackward0")
    dispatching = operator_table([(name, 99, 1e-4, 0.1) for name in views])
    rows = [("aten::mm", 30, 1.0, 60.0), ("aten::_softmax_backward_data", 20, 1.0, 30.0)]
    short = [("aten::add_", 50, 50e-6, 1.0), ("aten::transpose_kernel", 100, 100e-6, 0.1)]
    table = [*dispatching, *operator_table([*rows, *short])]
    assert small_calls_percent(table) == pytest.approx(75)
    assert small_calls_percent(dispatching) is None
    # on a GPU those with time of their own there
    table = operator_table([("aten::mm", 30, 1.0, 60.0), ("aten::add_", 10, 9.0, 1.0)])
    for row, seconds in zip([*table, *dispatching], (1.0, 1e-5, 0.0, None), strict=False):
        row["device_self_seconds"] = seconds
    assert small_calls_percent([*table, *dispatching]) == pytest.approx(25)


# What an ablation measured.


def write_ablation(path: Path, qkv: float, **context: object) -> Path:
    """Ratios in f32 and bf16; those of several switches, and over other sides, as well."""
    found = {"qkv": qkv, "qkv+sdpa": 1.5, "optimized": 2.0}
    ratios = [
        {"case": str(dataclasses.replace(CASE, variant=name, dtype=dtype)), "peer": side}
        | {"ratio": value, "interval": None, "verdict": "faster"}
        for dtype in ("f32", "bf16")
        for name, value in found.items()
        for side in ("baseline", "fused")
    ]
    path.parent.mkdir(exist_ok=True)
    document = {"context": CONTEXT | context | {"ablation": {"ratios": ratios}}, "benchmarks": []}
    path.write_text(json.dumps(document))
    return path


def test_the_newest_ablation_of_this_device_and_step_is_found(tmp_path: Path) -> None:
    summary = made_up_summary({"context": CONTEXT})
    assert find_ablation(summary, tmp_path) is None
    write_ablation(tmp_path / "reference/ablation_a.json", 1.1, date="2029-01-01")
    path = write_ablation(tmp_path / "x_ablation/ablation.json", 1.25, date="2030-01-01")
    of_another = {"device": CONTEXT["device"] | {"name": "another"}, "date": "2031-01-01"}
    write_ablation(tmp_path / "reference/ablation_b.json", 9.9, **of_another)
    (tmp_path / "reference/ablation_broken.json").write_text("{")
    for of in (summary, changed(summary, {"configuration.dtype": "bf16"})):
        found = find_ablation(of, tmp_path)
        assert found is not None and found.file == path
        medians = {name: ratio.median for name, ratio in found.speedups.items()}
        assert medians == {"qkv": pytest.approx(1.25), "optimized": 2.0}
    # the commit that it is of stands in its title where it is another
    assert found.title == "tiny bf16, batch 8 x sequence 128"
    other = find_ablation(changed(summary, {"context.git_commit": "fedcba9876543210"}), tmp_path)
    assert other.title.endswith(f", commit {CONTEXT['git_commit'][:8]}")
    for key, value in (
        ("configuration.variant", "fused"),
        ("configuration.seq_len", 64),
        ("configuration.gradient_accumulation_steps", 2),
        ("context.torch_version", "2.14.0"),
    ):
        assert find_ablation(changed(summary, {key: value}), tmp_path) is None


# ---- scripts/study


def run_study(
    results: Path,
    *arguments: str,
    program: PlayedProgram | None = None,
    free_bytes: float = 8 * GIB,
) -> int:
    played = {"program": program or PlayedProgram(), "predictor": PlayedPredictor(free_bytes)}
    return tools.study([*arguments, f"--out={results}"], **played)


def folders(results: Path) -> list[Path]:
    return sorted(results.glob("performance_results_*"))


def page(results: Path) -> str:
    (path,) = results.glob("performance_study_*.md")
    return path.read_text()


def json_in(folder: Path, name: str = "performance_summary.json") -> dict:
    return json.loads((folder / name).read_text())


def test_each_size_gets_its_files_and_the_table_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PlayedProgram()
    assert run_study(tmp_path, "small", "tiny", "large", program=program) == 0
    said, text = capsys.readouterr().out, page(tmp_path)
    for size, folder in zip(("small", "tiny"), folders(tmp_path), strict=True):
        assert folder.name.startswith(f"performance_results_{size}_20")
        summary, config, of = json_in(folder), json_in(folder, "config.json"), step_cost(size)
        assert config["parameters"] == summary["model"]["total_parameters"] == of.parameters
        assert config["batch_size"] == summary["configuration"]["batch_size"]
        assert len(summary["steps"]) == config["num_steps"] == 50
        assert config["command"].endswith(f"--variant=baseline --output-dir={folder}")
        step, peak = (
            summary["summary"][key] for key in ("average_step_seconds", "peak_memory_bytes")
        )
        expected = config["expected"]["step_seconds"]
        assert expected == pytest.approx(step, rel=0.3)
        assert row(text, f"{size} ") == [
            *(size, f"{of.parameters:,}", f"{8 / step:.4g}", f"{8 * of.name.seq / step:,.0f}"),
            *(f"{peak / 2**20:,.1f}", f"{peak / (4 * of.parameters):.1f}", f"{step:.4g}"),
            *(f"{expected:.4g}", f"{of.model_flops / step / 1e9:,.1f}"),
        ]
        assert f"Output Directory: {folder}\n" in said
        assert f"Throughput: {8 / step:.1f} samples/sec\n" in said
    assert text.index("| tiny ") < text.index("| small ")
    # what does not fit is said before anything runs, and not attempted
    assert said.index("no: predicted peak memory") < said.index("Problem Size: SMALL")
    assert "not known" in row(said, "large ")
    assert not [call for call in program.calls if "--size=large" in call]
    assert "- large: not attempted: predicted peak memory" in text


class EndingSmall(PlayedProgram):
    """Ends a run of small with all its steps after four: by itself, or as asked with Ctrl-C."""

    is_asked: bool = False

    def run(self, options: Sequence[str], folder: Path, log: Path | None = None):  # noqa: ANN201
        is_ended = "--size=small" in options and "--num-steps=7" in options
        run = super().run([*options, *["--num-steps=4"] * is_ended], folder, log)
        if is_ended and self.is_asked:
            raise KeyboardInterrupt
        return dataclasses.replace(run, exit_status=int(is_ended))


BROKEN = PlayedProgram(refuses={"--size=small": "out of memory"})


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (EndingSmall(), "ended with 1: Step 3/4"),
        (BROKEN, "its sample failed: tiny_llama_train: out of memory"),
    ],
)
def test_a_run_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, program: PlayedProgram, words: str
) -> None:
    assert run_study(tmp_path, "small", "tiny", "--num-steps=7", program=program) == 1
    text = page(tmp_path)
    assert f"- small: {words}" in text and "| tiny " in text


def test_a_sample_gives_the_rate_and_a_long_one_takes_a_quarter_of_the_batch(
    tmp_path: Path,
) -> None:
    # 23 s at the rate of tiny in the second case, which is more than all steps may take in the last
    for number, (seconds, limit, sampled) in enumerate(
        ((0.01, 1e6, [8]), (2.0, 1e6, [2]), (2.0, 20, []))
    ):
        program = PlayedProgram(changes={"summary.median_step_seconds": seconds})
        options = ("small", f"--max-seconds-per-case={limit}", "--num-steps=7")
        assert run_study(tmp_path / str(number), *options, program=program) == 0
        samples = [of for of in program.calls if {"--size=small", "--num-steps=3"} <= set(of)]
        assert [int(of[13:]) for call in samples for of in call if "--batch" in of] == sampled
        text = page(tmp_path / str(number))
        if sampled:
            # its own rate, of the batch that was sampled
            rate = step_cost("small", *sampled).model_flops / seconds
            expected = step_cost("small").model_flops / rate
            assert row(text, "small ")[7] == f"{expected:.4g}"
        else:
            assert "- small: not attempted: 7 steps would take" in text
            assert "more than --max-seconds-per-case 20" in text and len(program.calls) == 1


def test_profilers_write_into_their_folder(tmp_path: Path) -> None:
    program = PlayedProgram()
    assert run_study(tmp_path, "tiny", "--enable-profilers", program=program) == 0
    (folder,) = folders(tmp_path)
    assert (folder / "pytorch_profiles/memory_timeline.json").is_file()
    assert json_in(folder)["operators"] and f"--output-dir={folder}" in program.calls[-1]
    config = json_in(folder, "config.json")
    assert config["profilers_enabled"] is True
    assert config["command"].endswith(f"--profile-dir={folder}/pytorch_profiles")


@pytest.mark.parametrize("options", [["tiny", "--dry-run"], ["large"]])
def test_nothing_is_run_where_nothing_is_wanted_or_fits(tmp_path: Path, options: list[str]) -> None:
    program, results = PlayedProgram(), tmp_path / "new"
    assert run_study(results, *options, program=program, free_bytes=1) == 0
    assert program.calls == [] and results.exists() == ("--dry-run" not in options)
    assert not results.exists() or "No size was measured." in page(results)


def test_being_asked_to_end_keeps_what_is_measured(tmp_path: Path) -> None:
    options = ("tiny", "small", "medium", "--num-steps=7", "--max-seconds-per-case=1e6")
    program = EndingSmall()
    program.is_asked = True
    assert run_study(tmp_path, *options, program=program, free_bytes=64 * GIB) == 130
    table = page(tmp_path)
    assert "| tiny " in table and "- small: interrupted after 4 of 7 steps" in table
    assert "- medium: not attempted: interrupted before its turn" in table
    (small,) = tmp_path.glob("performance_results_small_*")
    assert json_in(small)["summary"]["steps_completed"] == 4
