"""What CMake takes and refuses: of a made-up libtorch its version and libraries, and the toolkit
for CUDA or ROCm beside it; libraries as sources; and the kernels' one source by every compiler for
GPUs that this machine has."""

import os
import re
import shutil
from pathlib import Path

import pytest

from built_programs import PROJECT_ROOT, finish, start, write_program

CMAKE = PROJECT_ROOT / "cmake"
FOUND = re.search(r"NEWEST_TRIED (\d+)\.(\d+)", (CMAKE / "find_libtorch.cmake").read_text())
assert FOUND
NEWEST = f"{FOUND[1]}.{FOUND[2]}"
NEXT = f"{FOUND[1]}.{int(FOUND[2]) + 1}"
PROJECT = f"""\
cmake_minimum_required(VERSION 3.22)
project(made_up LANGUAGES NONE)
include("{CMAKE}/find_libtorch.cmake")
get_target_property(linked tiny_llama_torch INTERFACE_LINK_LIBRARIES)
list(TRANSFORM linked REPLACE "^.*/lib/" "")
get_target_property(defined tiny_llama_torch INTERFACE_COMPILE_DEFINITIONS)
message(STATUS "linked ${{linked}}, CUDA ${{TINY_LLAMA_TORCH_IS_CUDA}}, defined ${{defined}}")
include("{CMAKE}/find_gpu_runtime.cmake")
"""
CPU = "libc10.so;libtorch.so;libtorch_cpu.so"
CUDA = f"{CPU};libc10_cuda.so;libtorch_cuda.so"
HIP = f"{CPU};libc10_hip.so;libtorch_hip.so"
TAKEN = f"linked {CPU}, CUDA OFF, defined _GLIBCXX_USE_CXX11_ABI=0 .*GPU runtimes: HIP OFF"
PACKAGE = "torch/share/cmake/Torch"
NEWER = f"is newer than those tried, 2.9 to {NEWEST}\\."
# told by what libtorch's library needs; and where its wheel leaves that open, by its Python part
FILES = {
    "CMakeLists.txt": PROJECT,
    f"{PACKAGE}/TorchConfig.cmake": 'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")',
    "readelf": "#!/bin/sh\necho 'NEEDED [libcudart.so.98] [libamdhip64.so]'\n",
    "torch/include/fmt/format-inl.h": "",
    "torch/version.py": "hip: Optional[str] = '98.1.40093'\n",
    "nvcc": "#!/bin/sh\necho 'Cuda compilation tools, release 99.0, V99.0.1'\n",
    "nvcc_broken": "#!/bin/sh\necho broken\n",
    "rocm/hip/hip_version.h": "#define HIP_VERSION_MAJOR 97\n",
}
SETTINGS = {"WITH_CUDA": "AUTO", "WITH_HIP": "OFF", "NVCC": "OFF", "HIPCC": "OFF"}
OF_ROCM = {"WITH_HIP": "AUTO", "HIP_INCLUDE_DIR": "{}/rocm", "HIP_LIBRARY": "{}/torch/lib"}


def configure(folder: Path, **settings: object) -> tuple[int, str]:
    """CMake's exit status and what it says, its lines joined: it breaks long ones."""
    command = ["cmake", "--no-warn-unused-cli", "-G", "Ninja", "-S", folder, "-B", folder / "build"]
    options = [f"-D{name}={value}" for name, value in settings.items()]
    done = finish(start([*command, *options]))
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("version", "libraries", "settings", "said"),
    [
        *((version, CPU, {}, TAKEN) for version in ("2.9.0", f"{NEWEST}.9")),
        (f"{NEXT}.0a0", CPU, {}, NEWER),
        ("2.8.1", CPU, {}, "is too old: 2.9 or newer is needed"),
        ("2.9.0", "libc10.so;libtorch.so", {}, "libtorch_cpu.so is missing"),
        ("2.9.0", CUDA, {"WITH_CUDA": "OFF"}, TAKEN),
        (
            *("2.9.0", CUDA, {}),
            f"linked {CUDA}, CUDA ON.* is CUDA 98's, but that runtime was not found.*Set CUDA_HOME",
        ),
        (
            *("2.9.0", CUDA, {"NVCC": "{}/nvcc"}),
            "nvcc is of CUDA 99, libtorch 2.9.0 was built with CUDA 98: two runtimes in one "
            "process do not work.*-DTINY_LLAMA_NVCC=OFF",
        ),
        ("2.9.0", CUDA, {"NVCC": "{}/nvcc_broken"}, "nvcc_broken: its version is not known"),
        (
            *("2.9.0", HIP, OF_ROCM),
            "hip_version.h is of HIP 97, libtorch 2.9.0.* set ROCM_PATH to a toolkit of version 98",
        ),
    ],
)
def test_what_is_taken_and_refused_of_a_libtorch_and_its_toolkit(
    tmp_path: Path, version: str, libraries: str, settings: dict[str, str], said: str
) -> None:
    files = {**FILES, **{f"torch/lib/{library}": "" for library in libraries.split(";")}}
    files[f"{PACKAGE}/TorchConfigVersion.cmake"] = f'set(PACKAGE_VERSION "{version}")'
    for name, text in files.items():
        write_program(tmp_path / name, text)
    given = {f"TINY_LLAMA_{name}": value for name, value in (SETTINGS | settings).items()}
    given |= {"Torch_DIR": f"{{}}/{PACKAGE}", "CMAKE_READELF": "{}/readelf"}
    found = configure(tmp_path, **{k: v.replace("{}", str(tmp_path)) for k, v in given.items()})
    assert re.search(said, found[1]), found[1]
    assert ("Warning" in found[1]) == (said == NEWER)
    assert (found[0] == 0) == (said in (TAKEN, NEWER))


def test_pips_torch_for_cuda_needs_no_toolkit(tmp_path: Path) -> None:
    """The runtime of its own packages; those headers of it that have none come with triton."""
    wheel = "nvidia/cu98"
    more = {
        f"{PACKAGE}/TorchConfigVersion.cmake": 'set(PACKAGE_VERSION "2.9.0")',
        f"{wheel}/include/cuda_runtime_api.h": "#define CUDART_VERSION 98010\n",
        f"{wheel}/lib/libcudart.so.98": "",
        "triton/backends/nvidia/include/crt/host_defines.h": "",
    }
    files = FILES | more | {f"torch/lib/{library}": "" for library in CUDA.split(";")}
    for name, text in files.items():
        write_program(tmp_path / name, text)
    given = {f"TINY_LLAMA_{name}": value for name, value in SETTINGS.items()}
    given |= {"Torch_DIR": str(tmp_path / PACKAGE), "CMAKE_READELF": str(tmp_path / "readelf")}
    status, said = configure(tmp_path, **given)
    assert status == 0 and re.search("GPU runtimes: HIP OFF, CUDA ON", said), said


WHEELS = """\
cmake_minimum_required(VERSION 3.22)
project(made_up LANGUAGES C)
include("{cmake}/find_libtorch.cmake")
add_executable(program program.c)
target_link_libraries(program PRIVATE tiny_llama_torch)
"""
# a library, what it needs, its run path
AS_AMD_BUILDS_THEM = """
_rocm_sdk_core/lib/librocm_sysdeps_z.so.1 | |
_rocm_sdk_core/lib/libamdhip64.so.7 | |
_rocm_sdk_devel/lib/libMIOpen.so.1 | |
_rocm_sdk_libraries_gfx94X/lib/libMIOpen.so.1 | _rocm_sdk_core/lib/librocm_sysdeps_z.so.1 |
torch/lib/libc10.so | |
torch/lib/libtorch_cpu.so | |
torch/lib/libtorch.so | |
torch/lib/libc10_hip.so | _rocm_sdk_core/lib/libamdhip64.so.7 | /of/the/builder
torch/lib/libtorch_hip.so | _rocm_sdk_libraries_gfx94X/lib/libMIOpen.so.1 | /of/the/builder
"""


def test_a_program_finds_rocm_in_amds_wheels(tmp_path: Path) -> None:
    """The loader ignores a program's run path for what libraries with one of their own need."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    for name in (f"{PACKAGE}/TorchConfig.cmake", "torch/include/fmt/format-inl.h", "empty.c"):
        write_program(tmp_path / name, "")
    write_program(tmp_path / f"{PACKAGE}/TorchConfigVersion.cmake", 'set(PACKAGE_VERSION "2.9.0")')
    for line in AS_AMD_BUILDS_THEM.strip().splitlines():
        library, needed, run_path = (word.strip() for word in line.split("|"))
        (tmp_path / library).parent.mkdir(parents=True, exist_ok=True)
        more = [str(tmp_path / needed)] if needed else []
        more += [f"-Wl,-rpath,{run_path},--enable-new-dtags"] if run_path else []
        named = f"-Wl,--no-as-needed,-soname,{Path(library).name}"
        command = [compiler, "-shared", "-nostdlib", named, tmp_path / "empty.c", *more]
        built = finish(start([*command, "-o", tmp_path / library]))
        assert built.returncode == 0, built.stderr
    write_program(tmp_path / "CMakeLists.txt", WHEELS.format(cmake=CMAKE))
    write_program(tmp_path / "program.c", "int main(void) { return 42; }")
    status, said = configure(tmp_path, Torch_DIR=tmp_path / PACKAGE, TINY_LLAMA_WITH_CUDA="AUTO")
    assert status == 0, said
    built = finish(start(["cmake", "--build", str(tmp_path / "build")]))
    assert built.returncode == 0, built.stdout
    done = finish(start([str(tmp_path / "build/program")]))
    assert done.returncode == 42, done.stderr


def test_every_library_can_be_a_source(tmp_path: Path) -> None:
    """Without a network, and though all may be installed; Google Benchmark is one in every build,
    and takes long to configure."""
    names = ("nlohmann_json", "cli11", "googletest")
    sources = [PROJECT_ROOT / ".deps/sources" / name for name in names]
    lacking = [path.name for path in sources if not (path / "CMakeLists.txt").is_file()]
    if lacking:
        pytest.skip(f"no sources here of {', '.join(lacking)}: the set-up found none to download")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(trial LANGUAGES CXX)\n"
        f'set(TINY_LLAMA_BUILD_TESTS ON)\nset(PROJECT_SOURCE_DIR "{PROJECT_ROOT}")\n'
        f'set(benchmark_FOUND ON)\ninclude("{PROJECT_ROOT}/cmake/find_dependencies.cmake")\n'
        "add_library(trial INTERFACE)\ntarget_link_libraries("
        "trial INTERFACE nlohmann_json::nlohmann_json CLI11::CLI11 GTest::gtest_main)\n"
    )
    fetch = {"TRY_FIND_PACKAGE_MODE": "NEVER", "FULLY_DISCONNECTED": "ON"}
    status, said = configure(tmp_path, **{f"FETCHCONTENT_{k}": v for k, v in fetch.items()})
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
    result = finish(start(command, env=environment), 300)
    assert result.returncode == 0, result.stdout + result.stderr
