"""What the program says without measuring: --help, --list, --dry-run, --describe-device."""

import os
import re
import subprocess

import pytest
from cli_program import BASELINE, COMPONENTS, RUN, SMALL, TIMEOUT_S, Json, Program, read_json

SIZES = ["tiny", "small", "medium", "large", "very_large"]
ALL_SIZES = f"--sizes={','.join(SIZES)}"
FORWARD = ["--components=ffn", "--passes=forward", BASELINE]
MIB = 1 << 20


def peak_memory(program: Program, *arguments: str) -> int:
    """The largest resident set of a run, in bytes."""
    process = program.start(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_help_shows_every_option_and_the_exit_status(program: Program) -> None:
    shown = program.run("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    options = (
        "device components passes variants sizes dtypes batch seq hidden-dim n-layers n-heads "
        "n-kv-heads intermediate-dim vocab-size problem-sizes threads seed verify memory-limit "
        "max-seconds-per-case cold-cache journal resume list dry-run benchmark_filter"
    )
    missing = [name for name in options.split() if f"--{name}" not in shown.stdout]
    assert missing == []
    assert "Exit status: 0 " in shown.stdout


def test_names_are_component_pass_variant_size_dtype_batch_seq(program: Program) -> None:
    names = program.names(*SMALL, "--components=attention,optimizer", "--dtypes=f32,amp_bf16")
    assert names == [
        f"{part}/baseline/custom/{dtype}/batch:2/seq:8"
        for component, passes in (
            ("attention", ["forward", "backward", "forward_backward"]),
            ("optimizer", ["update"]),
        )
        for dtype in ("f32", "amp_bf16")
        for part in (f"{component}/{name}" for name in passes)
    ]


def test_every_component_and_peak_is_listed(program: Program) -> None:
    components = list(dict.fromkeys(name.split("/")[0] for name in program.names(*SMALL)))
    assert components[0] == "peak"
    assert [name for name in components if name in COMPONENTS] == COMPONENTS


def test_google_benchmarks_own_listing_is_the_same(program: Program) -> None:
    shown = program.run(*SMALL, "--benchmark_list_tests")
    assert shown.returncode == 0
    assert shown.stdout.split() == program.names(*SMALL)


def test_lists_are_single_comma_or_range(program: Program) -> None:
    names = program.names(*FORWARD, "--batch=1,3", "--seq=4:16:*2")
    points = [re.search(r"batch:(\d+)/seq:(\d+)$", name) for name in names]
    assert [point.groups() for point in points if point] == [
        (batch, seq) for batch in ("1", "3") for seq in ("4", "8", "16")
    ]
    names = program.names(*FORWARD, "--seq=128:512:+128")
    assert [name.split("seq:")[1] for name in names] == ["128", "256", "384", "512"]


def test_filter_keeps_and_drops_by_name(program: Program) -> None:
    names = program.names(*SMALL)
    kept = program.names(*SMALL, "--benchmark_filter=^(ffn|loss)/.*backward/")
    assert kept == [name for name in names if re.match("(ffn|loss)/.*backward/", name)]
    assert kept
    dropped = program.names(*SMALL, "--benchmark_filter=-^(ffn|loss)/.*backward/")
    assert dropped == [name for name in names if name not in kept]


def test_filter_may_end_as_google_benchmarks_names_do(program: Program) -> None:
    kept = program.names(*SMALL, "--benchmark_filter=^rotary/forward/.*/seq:8/manual_time$")
    assert kept == ["rotary/forward/baseline/custom/f32/batch:2/seq:8"]


def test_seed_changes_no_name(program: Program) -> None:
    assert program.names(*SMALL, "--seed=7") == program.names(*SMALL)


def test_each_size_has_its_own_batch_and_sequence(program: Program) -> None:
    names = program.names("--components=full_step", BASELINE, ALL_SIZES)
    assert [name.split("f32/")[1] for name in names] == [
        "batch:8/seq:128",
        "batch:8/seq:256",
        "batch:16/seq:512",
        "batch:8/seq:1024",
        "batch:4/seq:2048",
    ]


@pytest.mark.parametrize("components", ["full_step", "attention,ffn,loss,model"])
def test_dry_run_shows_costs_and_why_very_large_does_not_fit(
    program: Program, components: str
) -> None:
    choice = [
        f"--components={components}",
        BASELINE,
        ALL_SIZES,
        "--memory-limit=24GiB",
        "--device=cpu",
    ]
    shown = program.run(*choice, "--dry-run")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    for column in ("case", "parameters", "FLOPs", "bytes", "peak memory", "fits"):
        assert column in lines[0]
    names = program.names(*choice)
    rows = [line for line in lines if "/baseline/" in line]
    assert [row.split()[0] for row in rows] == names
    assert f"{len(names)} cases" in lines[-1]
    step = [row for row in rows if row.startswith(("full_step/", "model/backward"))]
    fits = {size: row for row in step for size in SIZES if f"/{size}/" in row}
    assert fits["tiny"].rstrip().endswith("yes")
    assert re.search(r"no: predicted peak memory \d+\.\d+ GiB exceeds ", fits["very_large"])


def test_dry_run_shows_the_workshops_parameter_counts(program: Program) -> None:
    shown = program.run("--components=full_step", BASELINE, ALL_SIZES, "--dry-run", "--device=cpu")
    rows = [line.split() for line in shown.stdout.splitlines() if "/baseline/" in line]
    assert [int(row[1]) for row in rows] == [
        2_873_600,
        20_890_112,
        167_224_320,
        1_300_203_520,
        10_691_284_992,
    ]


def test_dry_run_as_json_has_the_exact_figures(program: Program) -> None:
    choice = ["--components=full_step,ffn", BASELINE, ALL_SIZES, "--memory-limit=8GiB"]
    shown = program.run(*choice, "--dry-run", "--benchmark_format=json", "--device=cpu")
    assert (shown.returncode, shown.stderr) == (0, "")
    document = read_json(shown.stdout)
    described = program.run("--device=cpu", "--describe-device")
    assert document["device"] == read_json(described.stdout)["device"]
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", document["git_commit"])
    assert document["memory_budget_bytes"] == 8 * 2**30
    assert document["memory_budget_source"] == "--memory-limit"
    cases = {case["name"]: case for case in document["cases"]}
    assert list(cases) == program.names(*choice)
    step = cases["full_step/train/baseline/tiny/f32/batch:8/seq:128"]
    assert step["parameters"] == 2_873_600
    assert step["model_flops"] == 17_678_991_360
    assert step["fits"] is True
    assert step["reason"] == ""
    large = cases["full_step/train/baseline/very_large/f32/batch:4/seq:2048"]
    assert large["predicted_memory_bytes"] > 8 * 2**30
    assert large["fits"] is False
    assert "exceeds 8.00 GiB" in large["reason"]


def test_products_of_the_step_are_listed_where_peaks_alone_have_a_shape(program: Program) -> None:
    names = program.names("--components=peak", "--sizes=tiny", "--dtypes=f32", "--batch=2")
    assert "peak/gemm/f32/256x1000x256" in names
    assert "peak/gemm/f32/8x256x128x32" in names
    assert program.names("--components=peak", "--dtypes=f32") == ["peak/gemm/f32", "peak/bandwidth"]


def test_dry_run_allocates_nothing(program: Program) -> None:
    listing = peak_memory(program, ALL_SIZES, "--list")
    # the smallest of these steps needs more than the difference that is allowed
    dry_run = peak_memory(program, ALL_SIZES, "--device=cpu", "--dry-run")
    assert dry_run < listing + 32 * MIB


def test_device_is_described_as_json(program: Program) -> None:
    shown = program.run("--device=cpu", "--describe-device")
    assert (shown.returncode, shown.stderr) == (0, "")
    device: Json = read_json(shown.stdout)["device"]
    assert device["backend"] == "cpu"
    assert device["memory_bytes"] > 0
    assert device["name"]


def test_closed_output_does_not_hang(program: Program) -> None:
    process = program.start(*SMALL, *RUN, "--list", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=TIMEOUT_S)
