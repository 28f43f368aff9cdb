"""Which libtorch CMake takes, with a made-up package: no compiler is asked for anything."""

import re
import subprocess
from pathlib import Path

import pytest

PROJECT_ROOT = Path(__file__).resolve().parents[1]
FOUND = re.search(
    r"NEWEST_TRIED (\d+)\.(\d+)", (PROJECT_ROOT / "cmake/find_libtorch.cmake").read_text()
)
assert FOUND
NEWEST = FOUND[0].split()[1]
NEXT = f"{FOUND[1]}.{int(FOUND[2]) + 1}"
PROJECT = f"""\
cmake_minimum_required(VERSION 3.24)
project(made_up LANGUAGES NONE)
set(TINY_LLAMA_WITH_CUDA AUTO CACHE STRING "")
include("{PROJECT_ROOT}/cmake/find_libtorch.cmake")
get_target_property(linked tiny_llama_torch INTERFACE_LINK_LIBRARIES)
message(STATUS "linked ${{linked}}, CUDA ${{TINY_LLAMA_TORCH_IS_CUDA}}")
"""
# as libtorch's own package does: a CUDA one ends here unless it was told that there is a toolkit
CONFIG = """\
if(EXISTS "${CMAKE_CURRENT_LIST_DIR}/../../../lib/libtorch_cuda.so" AND NOT TARGET torch::cudart)
  message(FATAL_ERROR "no toolkit")
endif()
set(TORCH_LIBRARIES torch)
"""


def configure(folder: Path, version: str, *options: str, library: str = "libtorch_cpu.so") -> str:
    package = folder / "libtorch/share/cmake/Torch"
    for path, text in {
        package / "TorchConfig.cmake": CONFIG,
        package / "TorchConfigVersion.cmake": f'set(PACKAGE_VERSION "{version}")',
        folder / "libtorch/lib" / library: "",
        folder / "CMakeLists.txt": PROJECT,
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = ["cmake", "-S", str(folder), "-B", str(folder / "build"), f"-DTorch_DIR={package}"]
    result = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=60, check=False
    )
    # CMake breaks long lines of messages
    return " ".join((result.stdout + result.stderr).split())


@pytest.mark.parametrize("version", ["2.9.0", "2.9.1", "2.13.0", f"{NEWEST}.0", f"{NEWEST}.9"])
def test_versions_that_were_tried(tmp_path: Path, version: str) -> None:
    output = configure(tmp_path, version)
    assert f"libtorch {version} at" in output
    assert "linked torch, CUDA OFF" in output
    assert "Warning" not in output


@pytest.mark.parametrize("version", [f"{NEXT}.0", f"{NEXT}.0a0", "99.0.0"])
def test_newer_version_is_taken_with_a_warning(tmp_path: Path, version: str) -> None:
    output = configure(tmp_path, version)
    assert f"CMake Warning at {PROJECT_ROOT}/cmake/find_libtorch.cmake" in output
    assert f"libtorch {version} is newer than those tried, 2.9 to {NEWEST}." in output
    assert "linked torch, CUDA OFF" in output


@pytest.mark.parametrize("version", ["2.8.1", "1.13.0"])
def test_older_version_is_refused(tmp_path: Path, version: str) -> None:
    output = configure(tmp_path, version)
    assert f"libtorch {version} at" in output
    assert "is too old: 2.9 or newer is needed" in output
    assert "linked" not in output


def test_cuda_libtorch_serves_the_cpu_without_a_toolkit(tmp_path: Path) -> None:
    library = "libtorch_cuda.so"
    assert "linked" not in configure(tmp_path, "2.15.0", library=library)
    output = configure(tmp_path, "2.15.0", "-DTINY_LLAMA_WITH_CUDA=OFF", library=library)
    assert "linked torch_cpu_library;c10, CUDA OFF" in output
