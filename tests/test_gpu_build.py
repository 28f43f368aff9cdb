"""What a build for GPUs refuses when it is configured: a libtorch that looks like one for CUDA or
ROCm, made of the real one's headers and of libraries that name the runtime they need."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Configure = Callable[..., str]
RUNTIMES = {"cuda": "cudart", "hip": "amdhip64"}


def make_library(path: Path, needs: Path | None = None) -> None:
    """A shared library without anything in it, that needs another by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    needed = [] if needs is None else ["-Wl,--no-as-needed", str(needs)]
    command = ["cc", "-shared", "-x", "c", "/dev/null", "-o", str(path), f"-Wl,-soname,{path.name}"]
    subprocess.run([*command, "-x", "none", *needed], check=True, capture_output=True)


@pytest.fixture
def torch(tmp_path: Path, project_root: Path) -> Path:
    """The libtorch of this build under links of its own."""
    cache = (project_root / "build/CMakeCache.txt").read_text()
    found = re.search(r"^Torch_DIR:\w+=(.*)$", cache, re.MULTILINE)
    assert found
    package = Path(found[1])
    root = tmp_path / "torch"
    # file by file: the target of a folder's link would be the real libtorch
    (root / "share/cmake/Torch").mkdir(parents=True)
    for file in package.iterdir():
        (root / "share/cmake/Torch" / file.name).symlink_to(file)
    (root / "include").symlink_to(package.parents[2] / "include")
    (root / "lib").mkdir()
    for library in (package.parents[2] / "lib").glob("*.so*"):
        if "cuda" not in library.name and "hip" not in library.name:
            (root / "lib" / library.name).symlink_to(library)
    return root


@pytest.fixture
def configure(tmp_path: Path, project_root: Path, torch: Path) -> Configure:
    """The error of configuring with these settings, its lines joined."""

    def error(*settings: str) -> str:
        command = ["cmake", "-S", str(project_root), "-B", str(tmp_path / "build")]
        options = [f"-D{s}" for s in (f"Torch_DIR={torch / 'share/cmake/Torch'}", *settings)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert done.returncode != 0, done.stdout
        return " ".join(done.stderr.split())

    return error


def make_gpu(torch: Path, kind: str, major: int) -> None:
    """As if built with this major version of the runtime."""
    runtime = torch.parent / "elsewhere" / f"lib{RUNTIMES[kind]}.so.{major}"
    make_library(runtime)
    make_library(torch / f"lib/libc10_{kind}.so", runtime)
    make_library(torch / f"lib/libtorch_{kind}.so")


@pytest.mark.parametrize(
    ("prints", "expected"),
    [
        (
            "Cuda compilation tools, release 99.0, V99.0.1",
            "{nvcc} is of CUDA 99, libtorch.*was built with CUDA 98: two runtimes in one process "
            "do not work.*-DTINY_LLAMA_NVCC=OFF",
        ),
        ("broken", "TINY_LLAMA_NVCC={nvcc}: its version is not known"),
    ],
)
def test_nvcc_of_another_or_no_version_is_refused(
    torch: Path, tmp_path: Path, configure: Configure, prints: str, expected: str
) -> None:
    make_gpu(torch, "cuda", 98)
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho '{prints}'\n")
    nvcc.chmod(0o755)
    assert re.search(expected.format(nvcc=nvcc), configure(f"TINY_LLAMA_NVCC={nvcc}"))


def test_a_runtime_that_is_nowhere_is_named_with_what_to_set(
    torch: Path, configure: Configure
) -> None:
    make_gpu(torch, "cuda", 98)
    error = configure("TINY_LLAMA_NVCC=OFF")
    assert "is CUDA 98's, but that runtime was not found" in error
    assert "Set CUDA_HOME" in error
    assert "-DTINY_LLAMA_WITH_CUDA=OFF" in error


@pytest.mark.parametrize("told_by", ["library", "version.py"])
def test_headers_of_another_hip_are_refused(
    torch: Path, tmp_path: Path, configure: Configure, told_by: str
) -> None:
    make_gpu(torch, "hip", 98)
    if told_by == "version.py":
        # libraries of wheels may be named without a version
        make_library(torch / "lib/libc10_hip.so")
        (torch / "version.py").write_text("hip: Optional[str] = '98.1.40093'\n")
    headers = tmp_path / "rocm/include"
    (headers / "hip").mkdir(parents=True)
    (headers / "hip/hip_version.h").write_text("#define HIP_VERSION_MAJOR 97\n")
    error = configure(
        f"TINY_LLAMA_HIP_INCLUDE_DIR={headers}",
        f"TINY_LLAMA_HIP_LIBRARY={torch / 'lib/libc10_hip.so'}",
    )
    assert "hip_version.h is of HIP 97, libtorch" in error
    assert "set ROCM_PATH to a toolkit of version 98" in error


def test_an_incomplete_libtorch_is_named(torch: Path, configure: Configure) -> None:
    make_gpu(torch, "cuda", 98)
    (torch / "lib/libc10_cuda.so").unlink()
    assert "libc10_cuda.so is missing. Install it again" in configure()
