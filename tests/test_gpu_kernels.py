"""One source of kernels for GPUs: every compiler for GPUs that this machine has takes it.

A shared library of them is made: that a compiler left a kernel out, the linker notices.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT_ROOT = Path(__file__).resolve().parents[1]
SOURCE = PROJECT_ROOT / "model/kernels/gpu/kernels.cpp"
COMMON = ["-std=c++20", f"-I{PROJECT_ROOT}", "-shared", str(SOURCE)]


def run(command: list[str], environment: dict[str, str]) -> None:
    result = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if result.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{result.stdout}{result.stderr}", pytrace=False)


def found(name: str, *folders: str) -> str:
    """The compiler of this name, or a skipped test."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    program = shutil.which(name, path=path)
    if program is None:
        pytest.skip(f"{name} is not installed")
    return program


def test_nvcc_takes_the_kernels(tmp_path: Path) -> None:
    nvcc = found("nvcc", "/usr/local/cuda/bin")
    warnings = ["-Werror", "all-warnings", "-Xcompiler", "-fPIC,-Wall,-Wextra,-Werror"]
    output = ["-Xlinker", "-z,defs", "-o", str(tmp_path / "kernels.so")]
    run([nvcc, "-x", "cu", "-arch=sm_90", *warnings, *COMMON, *output], {})


def test_hipcc_takes_the_kernels(tmp_path: Path) -> None:
    hipcc = found("hipcc", "/opt/rocm/bin")
    warnings = ["-fPIC", "-Wall", "-Wextra", "-Werror"]
    output = ["-Wl,-z,defs", "-o", str(tmp_path / "kernels.so")]
    # hipcc would take a CUDA toolkit that it meets for its platform
    environment = {"HIP_PLATFORM": "amd"}
    run([hipcc, "-x", "hip", "--offload-arch=gfx90a", *warnings, *COMMON, *output], environment)
