"""What CMake takes and refuses: of a made-up libtorch its version and libraries; of one that looks
like one for CUDA or ROCm its runtime, compiler and headers; libraries as sources; and the kernels'
one source by every compiler for GPUs that this machine has."""

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
NEWER = f"is newer than those tried, 2.9 to {NEWEST}."
Configure = Callable[..., tuple[int, str]]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """CMake's exit status and what it says, its lines joined: it breaks long ones."""

    def run(source: Path, *settings: str) -> tuple[int, str]:
        command = ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(tmp_path / "build")]
        options = [f"-D{setting}" for setting in settings]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return run


@pytest.mark.parametrize(
    ("version", "libraries", "option", "said", "unsaid"),
    [
        *((version, CPU, "", LINKED, "Warning") for version in ("2.9.0", f"{NEWEST}.9")),
        (f"{NEXT}.0a0", CPU, "", NEWER, "Error"),
        ("2.8.1", CPU, "", "is too old: 2.9 or newer is needed", "linked"),
        ("2.15.0", GPU, "", f"linked {GPU}, CUDA ON", "Error"),
        ("2.15.0", GPU, "OFF", LINKED, "Error"),
        ("2.15.0", "libc10.so;libtorch.so", "", "libtorch_cpu.so is missing", "linked"),
    ],
)
def test_versions_and_libraries_of_libtorch(
    configure: Configure,
    tmp_path: Path,
    version: str,
    libraries: str,
    option: str,
    said: str,
    unsaid: str,
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
    for_cuda = f"TINY_LLAMA_WITH_CUDA={option or 'AUTO'}"
    status, output = configure(tmp_path, f"Torch_DIR={package}", for_cuda)
    assert said in output and unsaid not in output
    assert ("linked" in output) == (status == 0)


RUNTIMES = {"cuda": "cudart", "hip": "amdhip64"}


def make_library(path: Path, needs: Path | None = None) -> None:
    """A shared library without anything in it, that needs another by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    needed = [] if needs is None else ["-Wl,--no-as-needed", str(needs)]
    command = ["cc", "-shared", "-x", "c", "/dev/null", "-o", str(path), f"-Wl,-soname,{path.name}"]
    subprocess.run([*command, "-x", "none", *needed], check=True, capture_output=True)


def gpu_torch(root: Path, kind: str) -> str:
    """The libtorch of this build under links of its own, as if built with version 98 of the
    runtime; as a setting of CMake."""
    cache = (PROJECT_ROOT / "build/CMakeCache.txt").read_text()
    (folder,) = re.findall(r"^Torch_DIR:\w+=(.*)$", cache, re.MULTILINE)
    real = Path(folder).parents[2]
    # file by file: the target of a folder's link would be the real libtorch
    for part in ("share/cmake/Torch", "lib"):
        (root / part).mkdir(parents=True)
        for file in (real / part).iterdir():
            if "cuda" not in file.name and "hip" not in file.name:
                (root / part / file.name).symlink_to(file)
    (root / "include").symlink_to(real / "include")
    runtime = root / "elsewhere" / f"lib{RUNTIMES[kind]}.so.98"
    make_library(runtime)
    make_library(root / f"lib/libc10_{kind}.so", runtime)
    make_library(root / f"lib/libtorch_{kind}.so")
    return f"Torch_DIR={root / 'share/cmake/Torch'}"


@pytest.mark.parametrize(
    ("kind", "prints", "expected"),
    [
        (
            *("cuda", "Cuda compilation tools, release 99.0, V99.0.1"),
            "nvcc is of CUDA 99, libtorch.*was built with CUDA 98: two runtimes in one process do "
            "not work.*-DTINY_LLAMA_NVCC=OFF",
        ),
        ("cuda", "broken", "nvcc: its version is not known"),
        ("cuda", "", "is CUDA 98's, but that runtime was not found.*Set CUDA_HOME"),
        (
            *("hip", ""),
            "hip_version.h is of HIP 97, libtorch.*set ROCM_PATH to a toolkit of version 98",
        ),
    ],
)
def test_a_toolkit_of_another_or_no_version_is_refused(
    tmp_path: Path, configure: Configure, kind: str, prints: str, expected: str
) -> None:
    torch, nvcc = gpu_torch(tmp_path / "torch", kind), tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho '{prints}'\n")
    nvcc.chmod(0o755)
    headers = tmp_path / "rocm/include"
    (headers / "hip").mkdir(parents=True)
    (headers / "hip/hip_version.h").write_text("#define HIP_VERSION_MAJOR 97\n")
    settings = [torch, f"TINY_LLAMA_NVCC={nvcc if prints else 'OFF'}"]
    if kind == "hip":
        settings.append(f"TINY_LLAMA_HIP_INCLUDE_DIR={headers}")
        settings.append(f"TINY_LLAMA_HIP_LIBRARY={tmp_path / 'torch/lib/libc10_hip.so'}")
    status, said = configure(PROJECT_ROOT, *settings)
    assert status != 0
    assert re.search(expected, said)


def test_every_library_can_be_a_source(configure: Configure, tmp_path: Path) -> None:
    """Without a network, and though all of them may be installed."""
    names = ("benchmark", "fmt", "nlohmann_json", "cli11", "googletest")
    sources = [PROJECT_ROOT / ".deps/sources" / name for name in names]
    lacking = [path.name for path in sources if not (path / "CMakeLists.txt").is_file()]
    if lacking:
        pytest.skip(f"no sources here of {', '.join(lacking)}: the set-up found none to download")
    targets = "fmt::fmt-header-only nlohmann_json::nlohmann_json CLI11::CLI11"
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(trial LANGUAGES CXX)\n"
        f'set(TINY_LLAMA_BUILD_TESTS ON)\nset(PROJECT_SOURCE_DIR "{PROJECT_ROOT}")\n'
        f'include("{PROJECT_ROOT}/cmake/find_dependencies.cmake")\n'
        "add_library(trial INTERFACE)\n"
        f"target_link_libraries(trial INTERFACE {targets} benchmark::benchmark GTest::gtest_main)\n"
    )
    fetch = ("TRY_FIND_PACKAGE_MODE=NEVER", "FULLY_DISCONNECTED=ON")
    status, said = configure(tmp_path, *(f"FETCHCONTENT_{setting}" for setting in fetch))
    assert status == 0, said[-3000:]
    assert [name for name in names if f"{name}: not installed" not in said] == []


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
    command = [program, *options, "-std=c++20", *source, "-o", str(tmp_path / "kernels.so")]
    # hipcc would take a CUDA toolkit that it meets for its platform
    environment = os.environ | {"HIP_PLATFORM": "amd"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
