"""A libtorch for ROCm made of one for CPUs, to compile and link against; no GPU can run on it.

hipify_torch.py TORCH TARGET COMPILER FOLDER_OF_ROCM_LIBRARIES

TORCH is the folder of the Python package. The headers for CUDA that it comes with become those of
a ROCm build by torch's own hipify, as PyTorch's build does it (tools/amd_build/build_amd.py); its
libraries are linked to. libc10_hip and libtorch_hip need the HIP runtime and RCCL, as a build's do,
and hold nothing but what programs of this project call.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# folders of headers, as they lie in PyTorch's sources, whose layout hipify's rules are about
SOURCES = {
    "ATen/cuda": "aten/src/ATen/cuda",
    "c10/cuda": "c10/cuda",
    "torch/csrc/cuda": "torch/csrc/cuda",
    "torch/csrc/distributed/c10d": "torch/csrc/distributed/c10d",
}
# what CMake writes in a ROCm build
GENERATED = ("c10/hip/impl/hip_cmake_macros.h", "#define C10_HIP_BUILD_SHARED_LIBS\n")
# a library, what it needs and what it holds: two constructors, which take what those of the header
# take and so have their names
LIBRARIES = {
    "c10_hip": ("amdhip64", ""),
    "torch_hip": (
        "rccl",
        """
#include <torch/csrc/distributed/c10d/Store.hpp>
namespace c10d {
struct ProcessGroupNCCL {
  struct Options : c10::intrusive_ptr_target { explicit Options(bool); };
  ProcessGroupNCCL(c10::intrusive_ptr<Store>, int, int, c10::intrusive_ptr<Options>);
};
ProcessGroupNCCL::Options::Options(bool) { std::terminate(); }
ProcessGroupNCCL::ProcessGroupNCCL(
    c10::intrusive_ptr<Store>, int, int, c10::intrusive_ptr<Options>) { std::terminate(); }
}
""",
    ),
}


def hipify(package: Path, include: Path, work: Path) -> int:
    """Adds the headers to `include`; returns how many."""
    # without torch itself, whose libraries another Python cannot load
    sys.path.insert(0, str(package / "utils"))
    from hipify import hipify_python

    for installed, source in SOURCES.items():
        shutil.copytree(include / installed, work / source)
    written = hipify_python.hipify(
        project_directory=str(work),
        output_directory=str(work),
        includes=[f"{work}/{folder}/*" for folder in SOURCES.values()],
        show_progress=False,
        is_pytorch_extension=False,
    )
    made = {Path(result.hipified_path) for result in written.values() if result.hipified_path}
    for path in made:
        target = include / str(path.relative_to(work)).removeprefix("aten/src/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return len(made)


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(Path(source).resolve(), target)
    except OSError:  # on another file system
        shutil.copyfile(source, target)


def main() -> None:
    package, target, compiler, libraries = sys.argv[1:]
    torch, made = Path(package), Path(f"{target}.new")
    shutil.rmtree(made, ignore_errors=True)
    for name in ("include", "share"):
        shutil.copytree(torch / name, made / name)
    shutil.copytree(torch / "lib", made / "lib", copy_function=link_or_copy)
    with tempfile.TemporaryDirectory(dir=made) as work:
        print(hipify(torch, made / "include", Path(work)), "headers")
    name, text = GENERATED
    (made / "include" / name).write_text(text, encoding="utf-8")
    for name, (needed, text) in LIBRARIES.items():
        command = [compiler, "-shared", "-fPIC", "-std=c++20", "-isystem", str(made / "include")]
        command += ["-x", "c++", "-", "-Wl,--no-as-needed", f"-L{libraries}", f"-l{needed}"]
        command += [f"-Wl,-rpath,{libraries}", "-o", str(made / f"lib/lib{name}.so")]
        subprocess.run(command, input=text, encoding="utf-8", check=True)
    shutil.rmtree(target, ignore_errors=True)
    made.rename(target)


if __name__ == "__main__":
    main()
