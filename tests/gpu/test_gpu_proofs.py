"""Every component, pass and switch proved on a fake GPU: the unmodified programs, and those that
have our kernels in emulated form; steps in captured graphs; training that ends where the CPU's
does."""

import re
from pathlib import Path

import pytest
from fake_gpu import POINT, SMALL, GpuProgram, counted, losses, without_gpu

from built_programs import Completed, finish, read_json, start

DTYPES = ("f32", "bf16", "amp_bf16")
# that need no kernel of ours; graph stands in a step alone, below
SWITCHES = ("qkv", "gate_up", "sdpa", "foreach_adamw", "library_adamw", "checkpoint", "layout")
OURS = ("fused_swiglu", "fused_norm", "fused_rotary", "fused_loss", "fused_adamw")
STEP = ("--components=full_step", *POINT)
# with parameters in bf16 a captured AdamW needs corrections that are wider
IN_GRAPHS = ("graph", "foreach_adamw+graph", "library_adamw+graph", "sdpa+library_adamw+graph")
IN_GRAPHS += ("qkv+gate_up+library_adamw+graph", "library_adamw+checkpoint+graph")
OURS_IN_GRAPHS = ("fused_adamw+graph", "fused+graph", "fused_swiglu+fused_loss+library_adamw+graph")
TRAIN = (*SMALL, "--batch-size=2", "--seq-len=17", "--num-steps=6")


@pytest.fixture(scope="module")
def bench() -> GpuProgram:
    return GpuProgram("tiny_llama_bench")


@pytest.fixture(scope="module")
def bench_with_kernels() -> GpuProgram:
    return GpuProgram("tiny_llama_bench", with_kernels=True)


def proofs(completed: Completed) -> dict[str, str]:
    """What became of each case, by component, pass, variant and dtype."""
    said = completed.stdout + completed.stderr
    assert completed.returncode == 0, said[-2000:]
    line = re.compile(
        r"^(\w+)/(\w+)/(\S+)/custom/(\w+)/\S+ .* allowed  (proved|skipped: .*)$", re.M
    )
    found = {"/".join(case): what for *case, what in line.findall(said)}
    ends = re.search(r"(\d+) proved, (\d+) failed, (\d+) skipped", said)
    assert ends is not None and int(ends[1]) + int(ends[3]) == len(found) and ends[2] == "0"
    return found


def prove(program: GpuProgram, variants: tuple[str, ...], *more: str) -> Completed:
    chosen = (f"--variants={','.join(variants)}", f"--dtypes={','.join(DTYPES)}")
    return program.on_gpu("--verify=only", *SMALL, *chosen, *(more or POINT), index=1)


def test_every_component_is_proved_with_what_libtorch_has(bench: GpuProgram) -> None:
    found = proofs(prove(bench, ("baseline", "optimized", *SWITCHES)))
    assert set(found.values()) <= {"proved"} | {w for w in found.values() if "changes nothing" in w}
    proved = [case.split("/") for case, what in found.items() if what == "proved"]
    # the contract's: those of a whole model, and what a rank's stage would be
    assert len({component for component, *_ in proved}) >= 10
    assert {variant for *_, variant, _ in proved} == {"baseline", "optimized", *SWITCHES}
    assert {dtype for *_, dtype in proved} == set(DTYPES)


def test_float16_is_proved(bench: GpuProgram) -> None:
    variants, dtypes = "--variants=baseline,sdpa,library_adamw+graph", "--dtypes=f16,amp_f16"
    found = proofs(bench.on_gpu("--verify=only", *SMALL, *POINT, variants, dtypes))
    left_out = {what for what in found.values() if what != "proved"}
    assert all("changes nothing" in what or "loss scaling" in what for what in left_out)
    assert list(found.values()).count("proved") > 60


def test_every_component_is_proved_with_kernels_of_ours(bench_with_kernels: GpuProgram) -> None:
    # whole sets in every type, each switch in float32: an emulated kernel starts threads
    found = proofs(prove(bench_with_kernels, ("fused", "optimized")))
    single = ("--dtypes=f32", f"--variants={','.join(OURS)}", *SMALL, *POINT)
    found |= proofs(bench_with_kernels.on_gpu("--verify=only", *single))
    proved = {case for case, what in found.items() if what == "proved"}
    left_out = {what for what in found.values() if what != "proved"}
    assert left_out <= {
        "skipped: fused_loss computes the LM head's gradients in the forward: time forward_backward"
    } | {what for what in left_out if "changes nothing" in what}
    assert {case.split("/")[2] for case in proved} == {"fused", "optimized", *OURS}


def test_without_kernels_of_ours_switches_are_refused_by_name(bench: GpuProgram) -> None:
    found = proofs(prove(bench, OURS, "--components=model,optimizer", "--batch=1", "--seq=5"))
    ours = [what for what in found.values() if "changes nothing" not in what]
    assert ours and all(
        re.match(r"skipped: (\w+): this build has no kernels of ours for GPUs", what)
        for what in ours
    )


def test_steps_in_graphs_are_proved(bench: GpuProgram, bench_with_kernels: GpuProgram) -> None:
    for program, variants in ((bench, IN_GRAPHS), (bench_with_kernels, OURS_IN_GRAPHS)):
        completed = prove(program, variants, *STEP)
        found = proofs(completed)
        skipped = {case.split("/")[-1] for case, what in found.items() if what != "proved"}
        assert skipped <= {"bf16"}  # those whose corrections are not wide enough
        seen, proved = counted(completed), list(found.values()).count("proved")
        assert proved >= 2 * len(variants)
        # each is captured once for the case, and replayed
        assert seen["captures"] >= proved and seen["replays"] > seen["captures"]


@pytest.mark.parametrize("variant", ["baseline", "library_adamw+graph", "optimized"])
@pytest.mark.parametrize("dtype", ["f32", "amp_bf16"])
def test_training_has_the_losses_of_the_cpu(variant: str, dtype: str) -> None:
    program = GpuProgram("tiny_llama_train")
    options = (*TRAIN, f"--dtype={dtype}")
    on_cpu = [program.path, "--device=cpu", "--variant=baseline", *options]
    expected = losses(finish(start(on_cpu, env=without_gpu())))
    found = losses(program.on_gpu(*options, f"--variant={variant}", index=1))
    assert len(found) == 6 and len(set(found)) == 6
    # float32 in every digit that is printed; bfloat16 by the bits that it has
    allowed = 1e-4 if dtype == "f32" else 2e-2
    assert found == pytest.approx(expected, abs=allowed)


def test_kernels_of_ours_train_in_graphs() -> None:
    program = GpuProgram("tiny_llama_train", with_kernels=True)
    eager = losses(program.on_gpu(*TRAIN, "--variant=fused"))
    captured = program.on_gpu(*TRAIN, "--variant=fused+graph")
    assert losses(captured) == eager
    seen = counted(captured)
    assert (seen["captures"], seen["replays"]) == (1, 6)


def test_a_summary_names_the_gpu(tmp_path: Path) -> None:
    program = GpuProgram("tiny_llama_train")
    completed = program.on_gpu(*TRAIN, f"--output-dir={tmp_path}", name="AMD Instinct MI250X")
    assert completed.returncode == 0
    summary = read_json(tmp_path / "performance_summary.json")
    assert "AMD Instinct MI250X" in str(summary)
