"""What the program says without measuring: --help, --list, --dry-run, --describe-device, and the
variants that are listed, refused, named and proved."""

import re

from cli_program import BASELINE, MIB, POINT, RUN, Program

from built_programs import SMALL_OPTIONS, strict_json

SIZES = ["tiny", "small", "medium", "large", "very_large"]
ALL_SIZES = f"--sizes={','.join(SIZES)}"
MODEL = [*SMALL_OPTIONS, *POINT]
STEP = [*MODEL, "--components=full_step"]


def shown(program: Program, *arguments: str) -> str:
    """Standard output of a run with nothing to complain of."""
    completed = program.run(*arguments)
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout


def test_help_shows_every_option_and_the_exit_status(program: Program) -> None:
    text = shown(program, "--help")
    options = (
        "device components passes variants sizes dtypes batch seq hidden-dim n-layers n-heads "
        "n-kv-heads intermediate-dim vocab-size problem-sizes threads seed verify memory-limit "
        "max-seconds-per-case cold-cache weights journal resume list dry-run find-limit confirm "
        "admit describe-device figures-of-merit trace serve columns benchmark_filter"
    )
    assert [name for name in options.split(" ") if f"--{name}" not in text] == []
    assert "Exit status: 0 " in text


def test_dry_run_has_the_exact_figures_of_each_size_at_its_own_shape(program: Program) -> None:
    choice = ["--components=full_step,ffn", BASELINE, ALL_SIZES, "--memory-limit=8GiB"]
    as_json = [*choice, "--dry-run", "--benchmark_format=json", "--device=cpu"]
    document = strict_json(shown(program, *as_json))
    device = strict_json(shown(program, "--device=cpu", "--describe-device"))["device"]
    assert document["device"] == device
    assert device["backend"] == "cpu"
    assert device["memory_bytes"] > 0
    assert device["name"]
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", document["git_commit"])
    assert document["memory_budget_bytes"] == 8 * 2**30
    assert document["memory_budget_source"] == "--memory-limit"
    cases = {case["name"]: case for case in document["cases"]}
    assert list(cases) == program.names(*choice)
    steps = {name.split("f32/")[1]: case for name, case in cases.items() if "train" in name}
    # batch and sequence: the workshop's parameters
    assert {shape: case["parameters"] for shape, case in steps.items()} == {
        "batch:8/seq:128": 2_873_600,
        "batch:8/seq:256": 20_890_112,
        "batch:16/seq:512": 167_224_320,
        "batch:8/seq:1024": 1_300_203_520,
        "batch:4/seq:2048": 10_691_284_992,
    }
    tiny, *_, large = steps.values()
    assert (tiny["model_flops"], tiny["fits"], tiny["reason"]) == (17_678_991_360, True, "")
    assert large["predicted_memory_bytes"] > 8 * 2**30
    assert large["fits"] is False
    assert "exceeds 8.00 GiB" in large["reason"]
    # and the same as a table
    lines = shown(program, *choice, "--dry-run", "--device=cpu").splitlines()
    rows = {line.split()[0]: line.split() for line in lines if "/baseline/" in line}
    assert {n: row[1] for n, row in rows.items()} == {
        n: str(case["parameters"]) for n, case in cases.items()
    }
    assert lines[-1].startswith(f"{len(cases)} cases")


def test_dry_run_allocates_nothing(program: Program) -> None:
    listing, _ = program.peak_memory(ALL_SIZES, "--list")
    # the smallest of these steps needs more than the difference that is allowed
    dry_run, completed = program.peak_memory(ALL_SIZES, "--device=cpu", "--dry-run")
    assert completed.returncode == 0, completed.stderr
    assert dry_run < listing + 32 * MIB


def test_every_variant_is_proved(program: Program) -> None:
    variants = (
        "qkv,gate_up,fused_swiglu,sdpa,fused_attention,fused_norm,fused_rotary,fused_loss,"
        "foreach_adamw,fused_adamw,checkpoint,layout,fused,optimized,"
        "qkv+gate_up+fused_attention+fused_norm+checkpoint+fused_loss"
    )
    choice = [*STEP, *RUN, "--dtypes=f32,bf16,amp_bf16,amp_f16", f"--variants={variants}"]
    proof = program.run(*choice, "--verify=only")
    assert proof.returncode == 0, proof.stdout
    verdicts = [line.split()[-1] for line in proof.stdout.splitlines()]
    assert verdicts == ["proved"] * (4 * 15)
