"""How tests run the programs on the fake GPU (tests/fakes/gpu): as they are, with the fake
preloaded, which makes it AMD's; or linked with our kernels in emulated form, NVIDIA's face of the
fake and collectives between its devices."""

import os
import re
from pathlib import Path

import built_programs
from built_programs import SMALL_OPTIONS, Completed, built_program, environment

# a case is proved in a few hundredths of a second
SMALL = (*SMALL_OPTIONS, "--threads=1")
POINT = ("--batch=2", "--seq=17")
QUICK = ("--benchmark_min_time=1x", "--benchmark_repetitions=2")


class GpuProgram(built_programs.Program):
    """A program that finds a GPU, which is fake."""

    def __init__(self, name: str, *, with_kernels: bool = False) -> None:
        folder = "tests/fakes/gpu" if with_kernels else "benchmarks"
        super().__init__(built_program(f"{folder}/{name}{'_on_fake_gpu' * with_kernels}"))
        self.device = "cuda" if with_kernels else "hip"
        self.preloaded = {} if with_kernels else {"LD_PRELOAD": str(fake_library())}
        self.vendor = "nvidia" if with_kernels else "amd"

    def surroundings(self, **fake: str | int) -> dict[str, str]:
        """Environment variables; `fake`: of FAKE_GPU_..., in small letters."""
        own = {f"FAKE_GPU_{name.upper()}": str(value) for name, value in fake.items()}
        chosen = {"FAKE_GPU_VENDOR": self.vendor, "FAKE_GPU_REPORT": "1"}
        return environment(**self.preloaded, **(chosen | own))

    def on_gpu(self, *arguments: str | Path, index: int = 0, **fake: str | int) -> Completed:
        """To its end, on this one of the fake devices."""
        device = f"--device={self.device}:{index}"
        return self.run(device, *arguments, env=self.surroundings(**fake))


def fake_library() -> Path:
    return built_program("tests/fakes/gpu/libfake_gpu.so")


def counted(completed: Completed) -> dict[str, int]:
    """What the fake GPU says at its end that it has done."""
    (line,) = [line for line in completed.stderr.splitlines() if line.startswith("fake GPU: ")]
    return {what: int(number) for number, what in re.findall(r"(\d+) (\w+)", line)}


def losses(completed: Completed) -> list[float]:
    """Of the training program's steps, with the digits that it prints."""
    assert completed.returncode == 0, completed.stderr[-2000:]
    return [float(x) for x in re.findall(r"Step \d+/\d+: Loss = (\S+),", completed.stdout)]


def without_gpu() -> dict[str, str]:
    """Of a run on the CPU to compare with."""
    return environment(OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))
