"""The suite on cards that have no name, no attention of the library's, events in the wrong order, a
BLAS that keeps memory, or a kernel that never ends: the fake GPU, tests/fakes/gpu."""

from pathlib import Path

import pytest

from built_programs import (
    SMALL_OPTIONS,
    Completed,
    Json,
    built_program,
    environment,
    read_json,
    strict_json,
)
from built_programs import Program as AnyProgram

QUICK = ("--benchmark_min_time=2x", "--benchmark_repetitions=2", "--batch=2", "--seq=16")
ON_GPU = (*SMALL_OPTIONS, *QUICK, "--device=hip")


@pytest.fixture(scope="module")
def program() -> AnyProgram:
    return AnyProgram(built_program("benchmarks/tiny_llama_bench"))


@pytest.fixture(scope="module")
def fake() -> Path:
    return built_program("tests/fakes/gpu/libfake_gpu.so")


class Card:
    """A fake GPU, and the suite on it."""

    def __init__(self, program: AnyProgram, fake: Path, folder: Path) -> None:
        self.program, self.fake, self.out = program, fake, folder / "out.json"
        self.said = ""

    def run(self, *arguments: str, **settings: object) -> Completed:
        of_fake = {f"FAKE_GPU_{name.upper()}": str(value) for name, value in settings.items()}
        kept = environment(LD_PRELOAD=str(self.fake), **of_fake)
        return self.program.run(*ON_GPU, *arguments, env=kept)

    def result(self, *arguments: str, status: int = 0, **settings: object) -> Json:
        completed = self.run(f"--benchmark_out={self.out}", *arguments, **settings)
        assert completed.returncode == status, completed.stderr[-2000:]
        self.said = completed.stderr
        return read_json(self.out)


@pytest.fixture
def card(program: AnyProgram, fake: Path, tmp_path: Path) -> Card:
    return Card(program, fake, tmp_path)


NORM = ("--components=rms_norm", "--passes=forward", "--variants=baseline")


def test_a_card_without_a_name_is_told_by_what_it_has(card: Card) -> None:
    """4 GiB are no MI300X's, but nothing else has so many compute units beside the MI325X."""
    context = card.result(*NORM, name="")["context"]
    assert context["device"]["name"] == "unnamed GPU"
    datasheet = context["peaks"]["datasheet"]
    assert datasheet["device"] == "AMD Instinct MI300X or AMD Instinct MI325X"
    assert datasheet["flops_per_second"]["bf16"] == 1307.4e12
    assert datasheet["memory_bytes_per_second"] == 0
    assert "gfx942 and 304 compute units" in datasheet["source"]


def test_without_the_librarys_attention_optimized_has_the_baselines(card: Card) -> None:
    """`sdpa` is refused by name; --sdpa-backend math still asks for it."""
    radeon = {"name": "AMD Radeon RX 7900 XTX", "architecture": "gfx1100", "flash_attention": 0}
    choice = ("--components=attention", "--passes=forward", "--variants=optimized,sdpa")

    def verdicts(*more: str, **settings: object) -> list[str]:
        completed = card.run(*choice, "--verify=only", *more, **settings)
        assert completed.returncode == 0, completed.stderr
        return [line.split("allowed  ")[1] for line in completed.stdout.splitlines()]

    proved, refused = verdicts(**radeon)
    assert proved == "proved"
    assert refused.startswith("skipped: sdpa: in f32 the library computes a score matrix")
    assert "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1" in refused
    assert verdicts("--sdpa-backend=math", **radeon) == ["proved", "proved"]
    for settings, flops in ((radeon, "model_flops"), ({}, "causal_flops")):
        listed = card.run(*choice, "--dry-run", "--benchmark_format=json", **settings)
        (optimized, *_) = strict_json(listed.stdout)["cases"]
        assert optimized["hardware_flops"] == optimized[flops]


def test_caches_that_the_runtime_does_not_tell_are_overwritten(card: Card) -> None:
    cold = (*NORM, "--cold-cache", "--verify=only")
    note = "--cold-cache overwrites 512.00 MiB, because the size"
    for architecture, mebibytes in (("gfx1299", 0), ("gfx1100", 96)):
        described = card.run("--describe-device", architecture=architecture)
        device = strict_json(described.stdout)["device"]
        assert device["last_level_cache_bytes"] == mebibytes << 20
        completed = card.run(*cold, architecture=architecture)
        assert completed.returncode == 0
        assert (note in completed.stderr) == (mebibytes == 0)


def test_events_in_the_wrong_order_are_no_time(card: Card) -> None:
    result = card.result(*NORM, "--benchmark_min_time=20x", backward_events=3)
    times = [sample for row in result["benchmarks"] for sample in row.get("samples_ns", ())]
    assert times and min(times) > 0
    assert result["context"]["timer"]["clock"] == "device events"
    assert result["context"]["timer"]["empty_pair_us"] >= 0
    curve = result["context"]["peaks"]["measured"]["bandwidth_curve"]
    assert all(0 < point["bytes_per_second"] < 1e15 for point in curve)


def test_memory_that_the_blas_keeps_counts_in_no_case(card: Card) -> None:
    choice = ("--components=ffn", "--passes=forward_backward", "--variants=baseline,gate_up")
    peaks = [
        {row["name"]: row["peak_memory_MiB"] for row in result["benchmarks"]}
        for result in (card.result(*choice), card.result(*choice, workspace=16 << 20))
    ]
    assert peaks[0] == peaks[1]


def test_a_kernel_that_never_ends_ends_the_run_and_resume_goes_past_it(
    card: Card, tmp_path: Path
) -> None:
    """What was measured before is written, and what comes behind it can be measured. The peaks,
    whose kernels nobody can count, are in the journal."""
    kept = ("--hang-limit=20", f"--journal={tmp_path / 'journal.jsonl'}")
    card.result("--components=ffn", *NORM[1:], *kept)
    three = ("--components=ffn,rms_norm,rotary", *NORM[1:], "--resume")
    hung = card.result(*three, "--hang-limit=2", kept[1], status=1, hang_at=100)
    reason = "has not ended after 2 s (--hang-limit); bf16 GEMMs of hipBLASLt are known to hang"
    assert reason in card.said and "try --blas rocblas" in card.said
    (bad,) = [row for row in hung["benchmarks"] if row.get("error_occurred")]
    assert bad["error_message"].startswith(reason)
    assert {row["run_name"].split("/")[0] for row in hung["benchmarks"]} == {"ffn", "rms_norm"}
    resumed = card.result(*three, *kept, status=1)["benchmarks"]
    assert len({row["run_name"] for row in resumed}) == 3
    assert {row["run_name"] for row in resumed if row.get("error_occurred")} == {bad["run_name"]}


def test_peaks_that_never_end_say_what_may_help(card: Card) -> None:
    hung = card.run(*NORM, "--hang-limit=2", hang_at=2)
    assert hung.returncode == 1, hung.stderr[-2000:]
    assert "the peaks of this device: has not ended after 2 s" in hung.stderr
    assert "--exclude" not in hung.stderr
