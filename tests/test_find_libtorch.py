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
list(TRANSFORM linked REPLACE "^.*/lib/" "")
get_target_property(defined tiny_llama_torch INTERFACE_COMPILE_DEFINITIONS)
message(STATUS "linked ${{linked}}, CUDA ${{TINY_LLAMA_TORCH_IS_CUDA}}, defined ${{defined}}")
"""
CPU = ("libc10.so", "libtorch.so", "libtorch_cpu.so")
CUDA = ("libc10_cuda.so", "libtorch_cuda.so")


def configure(folder: Path, version: str, *options: str, libraries: tuple[str, ...] = CPU) -> str:
    package = folder / "libtorch/share/cmake/Torch"
    files = {
        package / "TorchConfig.cmake": 'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")',
        package / "TorchConfigVersion.cmake": f'set(PACKAGE_VERSION "{version}")',
        folder / "CMakeLists.txt": PROJECT,
        **{folder / "libtorch/lib" / library: "" for library in libraries},
    }
    for path, text in files.items():
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
    assert "linked libc10.so;libtorch.so;libtorch_cpu.so, CUDA OFF" in output
    assert "Warning" not in output


@pytest.mark.parametrize("version", [f"{NEXT}.0", f"{NEXT}.0a0", "99.0.0"])
def test_newer_version_is_taken_with_a_warning(tmp_path: Path, version: str) -> None:
    output = configure(tmp_path, version)
    assert f"CMake Warning at {PROJECT_ROOT}/cmake/find_libtorch.cmake" in output
    assert f"libtorch {version} is newer than those tried, 2.9 to {NEWEST}." in output
    assert "linked libc10.so;" in output


@pytest.mark.parametrize("version", ["2.8.1", "1.13.0"])
def test_older_version_is_refused(tmp_path: Path, version: str) -> None:
    output = configure(tmp_path, version)
    assert f"libtorch {version} at" in output
    assert "is too old: 2.9 or newer is needed" in output
    assert "linked" not in output


def test_the_string_type_is_libtorchs(tmp_path: Path) -> None:
    assert "defined _GLIBCXX_USE_CXX11_ABI=0" in configure(tmp_path, "2.15.0")


def test_libraries_of_a_gpu_are_linked_unless_it_is_to_be_one_for_cpus(tmp_path: Path) -> None:
    libraries = (*CPU, *CUDA)
    output = configure(tmp_path, "2.15.0", libraries=libraries)
    assert f"linked {';'.join(libraries)}, CUDA ON" in output
    output = configure(tmp_path, "2.15.0", "-DTINY_LLAMA_WITH_CUDA=OFF", libraries=libraries)
    assert f"linked {';'.join(CPU)}, CUDA OFF" in output


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    output = configure(tmp_path, "2.15.0", libraries=CPU[:-1])
    assert "libtorch_cpu.so is missing" in output
    assert "linked" not in output
