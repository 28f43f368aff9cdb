"""Variants on the command line: what is listed, refused, named and proved."""

from __future__ import annotations

from cli_program import COMPONENTS, RUN, SMALL, Program

# SMALL without its own choice of variants
MODEL = [option for option in SMALL if not option.startswith("--variants")]


def cases(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith("peak/")]


def test_baseline_and_optimized_are_the_default(program: Program) -> None:
    names = cases(program.names(*MODEL))
    assert {name.split("/")[2] for name in names} == {"baseline", "optimized"}
    optimized = {name.split("/")[0] for name in names if name.split("/")[2] == "optimized"}
    assert optimized >= set(COMPONENTS) - {"embedding"}
    assert "embedding" not in optimized  # a look-up has nothing to optimise


def test_a_switch_makes_cases_of_the_components_that_contain_it(program: Program) -> None:
    names = cases(program.names(*MODEL, "--variants=fused_rotary", "--passes=forward"))
    assert [name.split("/")[0] for name in names] == ["rotary", "attention", "block", "model"]


def test_named_beside_a_component_it_is_skipped_with_the_reason(program: Program) -> None:
    choice = [*MODEL, *RUN, "--components=rms_norm", "--passes=forward", "--variants=qkv"]
    shown = program.run(*choice, "--verify=only")
    assert shown.returncode == 0
    assert "skipped: qkv changes nothing in rms_norm" in shown.stdout


def test_what_the_device_or_type_lacks_is_skipped_with_the_reason(program: Program) -> None:
    choice = [*MODEL, *RUN, "--components=full_step", "--verify=only"]
    graph = program.run(*choice, "--variants=graph")
    assert (graph.returncode, "skipped: graph: only a GPU" in graph.stdout) == (0, True)
    wide = program.run(*choice, "--variants=wide_gemm")
    assert "skipped: wide_gemm: f32 is not narrower" in wide.stdout
    onednn = program.run(*choice, "--variants=onednn", "--dtypes=bf16")
    assert "skipped: onednn: changes float32 GEMMs" in onednn.stdout


def test_order_and_repetition_of_switches_do_not_matter(program: Program) -> None:
    step = [*MODEL, "--components=full_step"]
    names = program.names(*step, "--variants=fused_norm+qkv,qkv+fused_norm,qkv+qkv")
    assert [name.split("/")[2] for name in names] == ["qkv+fused_norm", "qkv"]
    spelled = "--variants=fused_adamw+sdpa+fused_swiglu+gate_up+qkv"
    assert [name.split("/")[2] for name in program.names(*step, spelled)] == ["fused"]


def test_every_variant_is_proved(program: Program) -> None:
    variants = (
        "qkv,gate_up,fused_swiglu,sdpa,fused_attention,fused_norm,fused_rotary,fused_loss,"
        "foreach_adamw,fused_adamw,checkpoint,layout,fused,optimized,"
        "qkv+gate_up+fused_attention+fused_norm+checkpoint+fused_loss"
    )
    dtypes = "--dtypes=f32,bf16,amp_bf16,amp_f16"
    choice = [*MODEL, *RUN, "--components=full_step", dtypes, f"--variants={variants}"]
    shown = program.run(*choice, "--verify=only")
    assert shown.returncode == 0, shown.stdout
    verdicts = [line.split()[-1] for line in shown.stdout.splitlines()]
    assert verdicts == ["proved"] * (4 * 15)
