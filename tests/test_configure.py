"""What CMake takes and refuses: of a made-up libtorch its version and libraries; of one that looks
like one for CUDA or ROCm its runtime, compiler and headers; and the kernels' one source by every
compiler for GPUs that this machine has."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from built_programs import PROJECT_ROOT

FOUND = re.search(
    r"NEWEST_TRIED (\d+)\.(\d+)", (PROJECT_ROOT / "cmake/find_libtorch.cmake").read_text()
)
assert FOUND
NEWEST = f"{FOUND[1]}.{FOUND[2]}"
NEXT = f"{FOUND[1]}.{int(FOUND[2]) + 1}"
PROJECT = f"""\
cmake_minimum_required(VERSION 3.24)
project(made_up LANGUAGES NONE)
set(TINY_LLAMA_WITH_CUDA AUTO CACHE STRING "")
include("{PROJECT_ROOT}/cmake/find_libtorch.cmake")
get_target_property(linked tiny_llama_torch INTERFACE_LINK_LIBRARIES)
list(TRANSFORM linked REPLACE "^.*/lib/" "")
get_target_property(defined tiny_llama_torch INTERFACE_COMPILE_DEFINITIONS)
message(STATUS "linked ${{linked}}, CUDA ${{TINY_LLAMA_TORCH_IS_CUDA}}, defined ${{defined}}")
"""
CPU = "libc10.so;libtorch.so;libtorch_cpu.so"
GPU = f"{CPU};libc10_cuda.so;libtorch_cuda.so"
LINKED = f"linked {CPU}, CUDA OFF, defined _GLIBCXX_USE_CXX11_ABI=0"
OLD = "is too old: 2.9 or newer is needed"
NEWER = f"is newer than those tried, 2.9 to {NEWEST}."
FOR_CPUS = "-DTINY_LLAMA_WITH_CUDA=OFF"


@pytest.mark.parametrize(
    ("version", "libraries", "options", "said", "unsaid"),
    [
        *((version, CPU, [], LINKED, "Warning") for version in ("2.9.0", f"{NEWEST}.9")),
        *((version, CPU, [], NEWER, OLD) for version in (f"{NEXT}.0a0", "99.0.0")),
        ("2.8.1", CPU, [], OLD, "linked"),
        ("2.15.0", GPU, [], f"linked {GPU}, CUDA ON", "Error"),
        ("2.15.0", GPU, [FOR_CPUS], LINKED, "Error"),
        ("2.15.0", "libc10.so;libtorch.so", [], "libtorch_cpu.so is missing", "linked"),
    ],
)
def test_versions_and_libraries_of_libtorch(
    tmp_path: Path, version: str, libraries: str, options: list[str], said: str, unsaid: str
) -> None:
    package = tmp_path / "libtorch/share/cmake/Torch"
    files = {
        package / "TorchConfig.cmake": 'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")',
        package / "TorchConfigVersion.cmake": f'set(PACKAGE_VERSION "{version}")',
        tmp_path / "CMakeLists.txt": PROJECT,
        **{tmp_path / "libtorch/lib" / library: "" for library in libraries.split(";")},
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folders = ["-S", str(tmp_path), "-B", str(tmp_path / "build"), f"-DTorch_DIR={package}"]
    command = ["cmake", *folders, *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # CMake breaks long lines of messages
    output = " ".join((result.stdout + result.stderr).split())
    assert said in output
    assert unsaid not in output
    assert ("linked" in output) == (result.returncode == 0)


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
    (folder,) = re.findall(r"^Torch_DIR:\w+=(.*)$", cache, re.MULTILINE)
    package = Path(folder)
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


def make_gpu(torch: Path, kind: str) -> None:
    """As if built with version 98 of the runtime."""
    runtime = torch.parent / "elsewhere" / f"lib{RUNTIMES[kind]}.so.98"
    make_library(runtime)
    make_library(torch / f"lib/libc10_{kind}.so", runtime)
    make_library(torch / f"lib/libtorch_{kind}.so")


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


@pytest.mark.parametrize(
    ("prints", "expected"),
    [
        (
            "Cuda compilation tools, release 99.0, V99.0.1",
            "{nvcc} is of CUDA 99, libtorch.*was built with CUDA 98: two runtimes in one process "
            "do not work.*-DTINY_LLAMA_NVCC=OFF",
        ),
        ("broken", "TINY_LLAMA_NVCC={nvcc}: its version is not known"),
        (None, "is CUDA 98's, but that runtime was not found.*Set CUDA_HOME"),
    ],
)
def test_nvcc_or_runtime_of_another_or_no_version_is_refused(
    torch: Path, tmp_path: Path, configure: Configure, prints: str | None, expected: str
) -> None:
    make_gpu(torch, "cuda")
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho '{prints}'\n")
    nvcc.chmod(0o755)
    error = configure(f"TINY_LLAMA_NVCC={nvcc if prints else 'OFF'}")
    assert re.search(expected.format(nvcc=nvcc), error)


@pytest.mark.parametrize("told_by", ["library", "version.py"])
def test_headers_of_another_hip_are_refused(
    torch: Path, tmp_path: Path, configure: Configure, told_by: str
) -> None:
    make_gpu(torch, "hip")
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


NVCC = "nvcc -x cu -arch=sm_90 -Werror all-warnings -Xcompiler -fPIC,-Wall,-Wextra,-Werror"
HIPCC = "hipcc -x hip --offload-arch=gfx90a -fPIC -Wall -Wextra -Werror"


@pytest.mark.parametrize("compiler", [f"{NVCC} -Xlinker -z,defs", f"{HIPCC} -Wl,-z,defs"])
def test_compilers_for_gpus_take_the_kernels(tmp_path: Path, compiler: str) -> None:
    """A shared library is made: that a compiler left a kernel out, the linker notices."""
    name, *options = compiler.split()
    folders = os.pathsep.join([os.environ["PATH"], "/usr/local/cuda/bin", "/opt/rocm/bin"])
    program = shutil.which(name, path=folders)
    if program is None:
        pytest.skip(f"{name} is not installed")
    source = [f"-I{PROJECT_ROOT}", "-shared", str(PROJECT_ROOT / "model/kernels/gpu/kernels.cpp")]
    output = ["-o", str(tmp_path / "kernels.so")]
    command = [program, *options, "-std=c++20", *source, *output]
    # hipcc would take a CUDA toolkit that it meets for its platform
    environment = os.environ | {"HIP_PLATFORM": "amd"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
