"""scripts/gpu_check on the fake GPU: its steps run and are judged, and its verdict is that no card
was there."""

from pathlib import Path

import pytest
from fake_gpu import GpuProgram

from built_programs import built_program, finish, read_json, start, tool

PROGRAMS = {
    "benchmarks/tiny_llama_bench": "tiny_llama_bench",
    "benchmarks/tiny_llama_train": "tiny_llama_train",
    "benchmarks/tiny_llama_scaling": "tiny_llama_scaling",
    "model/kernels/gpu/kernels_gpu_device_test": "kernels_gpu_device_test",
}


@pytest.mark.skipif(
    any(Path(node).exists() for node in ("/dev/kfd", "/dev/nvidiactl", "/dev/dxg")),
    reason="a driver is here, so that a GPU may be",
)
def test_the_verdict_on_a_fake_is_that_it_is_one(tmp_path: Path) -> None:
    build, output = tmp_path / "build", tmp_path / "out"
    for place, name in PROGRAMS.items():
        (build / place).parent.mkdir(parents=True, exist_ok=True)
        (build / place).symlink_to(built_program(f"tests/fakes/gpu/{name}_on_fake_gpu"))
    command = tool("gpu_check", "--device=cuda:0", "--sizes=tiny", "--largest=tiny")
    command += ["--steps=device,kernels", f"--build-folder={build}", f"--out={output}"]
    around = GpuProgram("tiny_llama_bench", with_kernels=True).surroundings()
    completed = finish(start(command, env=around), 300)
    said = completed.stdout + completed.stderr
    assert completed.returncode == 4, said[-3000:]
    found = read_json(output / "gpu_check.json")
    assert found["verdict"] == "fake"
    outcomes = {step["step"]: step["state"] for step in found["steps"]}
    # every kernel was run and compared, a driver was looked for in vain
    assert (outcomes["kernels"], outcomes["device"]) == ("passed", "failed"), outcomes
