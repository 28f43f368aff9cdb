"""A fake GPU that fails: memory that is refused at any allocation of a run, an error of the device
that sticks; what was measured before is kept, and each failure names its case."""

from pathlib import Path

import pytest
from fake_gpu import POINT, QUICK, SMALL, GpuProgram, counted

from built_programs import read_json

CASES = ("--components=ffn,full_step", "--passes=forward_backward,train")
RUN = (*SMALL, *POINT, *QUICK, *CASES, "--variants=baseline,library_adamw+graph")
PROVE = (*SMALL, *POINT, *CASES, "--variants=baseline,library_adamw+graph", "--verify=only")
# a sample of all places: in the build, the reference, the proof, the capture
PLACES = 12


@pytest.fixture(scope="module")
def bench() -> GpuProgram:
    return GpuProgram("tiny_llama_bench")


@pytest.fixture(scope="module")
def allocations(bench: GpuProgram) -> int:
    """Of all proofs; where peaks are measured, their number changes with the time."""
    completed = bench.on_gpu(*PROVE)
    assert completed.returncode == 0
    return counted(completed)["allocations"]


@pytest.mark.parametrize("kibibytes", (2050, 2060, 2090, 2120))
def test_memory_that_hardly_holds_a_reference_has_one_verdict(
    bench: GpuProgram, kibibytes: int
) -> None:
    case = ("--components=full_step", "--passes=train", "--variants=optimized", "--verify=only")
    completed = bench.on_gpu(*SMALL, *POINT, *case, memory=kibibytes * 1024)
    said = completed.stdout + completed.stderr
    verdicts = ("reference does not fit beside it into 2.0", "FAILED: out of memory: HIP out of")
    assert [verdict in said for verdict in verdicts].count(True) == 1, said[-2000:]


@pytest.mark.parametrize("place", range(PLACES))
def test_memory_that_is_refused_ends_its_case_alone(
    bench: GpuProgram, allocations: int, place: int
) -> None:
    number = 1 + (2 * place + 1) * allocations // (2 * PLACES)
    completed = bench.on_gpu(*PROVE, refused_allocation=number)
    said = completed.stdout + completed.stderr
    assert said.count("HIP out of memory") == 1, said[-2000:]
    assert completed.returncode in (0, 1), said[-2000:]
    # a capture that failed leaves no stream in it
    assert "capturing" not in said and "computes no more" not in said


# of all of the kernel in a whole run: in the first case, and in the last one's proof
@pytest.mark.parametrize(("kernel", "number", "kept"), [("silu", 3, 0), ("softmax", 5, 2)])
def test_an_error_that_sticks_leaves_other_cases_to_another_process(
    bench: GpuProgram, tmp_path: Path, kernel: str, number: int, kept: int
) -> None:
    journal, out = tmp_path / "journal.jsonl", tmp_path / "out.json"
    options = (*RUN, f"--benchmark_out={out}", f"--journal={journal}")
    completed = bench.on_gpu(*options, fault_at=number, fault_kernel=kernel)
    said = completed.stdout + completed.stderr
    assert completed.returncode == 1, said[-2000:]
    assert "terminate called" not in said
    assert "device cuda:0 computes no more since" in said
    assert f"continue with --resume --journal {journal}" in said
    rows = {row["run_name"]: row for row in read_json(out)["benchmarks"]}
    broken = [row for row in rows.values() if row.get("error_occurred")]
    (fault,) = broken
    assert "illegal memory access" in fault["error_message"]
    assert len(rows) == kept + 1
    # on a device in order the run goes on behind the case that did it
    again = bench.on_gpu(*options, "--resume")
    rows = {row["run_name"]: row for row in read_json(out)["benchmarks"]}
    assert again.returncode == 1 and len(rows) == 4
    assert [row for row in rows.values() if row.get("error_occurred")] == [fault]


def test_proofs_end_with_the_device(bench: GpuProgram) -> None:
    completed = bench.on_gpu(*SMALL, *POINT, "--verify=only", fault_at=2, fault_kernel="softmax")
    said = completed.stdout + completed.stderr
    assert completed.returncode == 1 and said.count("FAILED") == 1
    assert "device cuda:0 computes no more since" in said


def test_a_training_run_says_that_the_device_failed(tmp_path: Path) -> None:
    program = GpuProgram("tiny_llama_train")
    options = (*SMALL, "--batch-size=2", "--seq-len=17", "--num-steps=50")
    options += (f"--output-dir={tmp_path}",)
    whole = counted(program.on_gpu(*options))["kernels"]
    completed = program.on_gpu(*options, fault_at=whole // 2)
    assert completed.returncode == 1
    assert "illegal memory access" in completed.stderr
    assert "terminate called" not in completed.stderr
    assert "Step 2" in completed.stdout


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("hip:2", 'device "hip:2": the device number is too large'),
        ("cuda", 'device "cuda": libtorch was built for the other kind of GPU'),
        ("hip:x", "what follows the colon is not a device number"),
    ],
)
def test_a_device_that_is_not_there_is_bad_input(
    bench: GpuProgram, device: str, words: str
) -> None:
    completed = bench.run(f"--device={device}", *RUN, env=bench.surroundings())
    assert completed.returncode == 2 and words in completed.stderr
