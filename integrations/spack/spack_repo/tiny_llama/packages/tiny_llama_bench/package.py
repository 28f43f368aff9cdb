# SPDX-License-Identifier: MIT
# Spack's own way: its language comes from one star import.
# ruff: noqa: F403, F405
"""Spack's recipe. It has no source of its own: it builds a checkout, `dev_path=<its folder>`."""

import re

from spack.package import *
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.rocm import ROCmPackage


class TinyLlamaBench(CMakePackage, CudaPackage, ROCmPackage):
    """Benchmarks of a small LLaMA's training step and of its parts, on libtorch."""

    license("MIT")

    version("1.0.0")

    # cuda, cuda_arch, rocm and amdgpu_target come with the base classes
    variant("mpi", default=False, description="Bring an MPI, whose mpirun starts the ranks")

    generator("ninja")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("python@3.10:", type=("build", "run"))

    # headers only, but for Google Benchmark
    depends_on("nlohmann-json@3.10:")
    depends_on("cli11@2.1:")
    depends_on("benchmark@1.8:")

    # Ranks meet over Gloo, profiles are Kineto's, our kernels share libtorch's OpenMP
    depends_on("py-torch@2.9:+distributed+gloo+kineto+openmp", type=("build", "link", "run"))
    depends_on("gloo", type=("build", "link"))

    # what the Python tools need; tried with the oldest named here
    depends_on("py-numpy@1.26:", type="run")
    depends_on("py-scipy@1.11:", type="run")
    depends_on("py-jsonschema@4.18:", type="run")
    depends_on("py-jinja2@3.1.2:", type="run")
    depends_on("py-plotly@5.20:", type="run")

    depends_on("mpi", type="run", when="+mpi")

    # libtorch and our kernels for the same GPUs
    depends_on("py-torch~cuda~rocm", when="~cuda~rocm")
    conflicts("+cuda", when="+rocm", msg="libtorch is built for one of CUDA and ROCm")
    with when("+cuda"):
        depends_on("py-torch+cuda+nccl")
        depends_on("nccl", type=("build", "link"))
        conflicts("cuda_arch=none", msg="name the GPU's architecture: cuda_arch=90")
        for _arch in CudaPackage.cuda_arch_values:
            depends_on(f"py-torch cuda_arch={_arch}", when=f"cuda_arch={_arch}")
            depends_on(f"nccl cuda_arch={_arch}", when=f"cuda_arch={_arch}")
    with when("+rocm"):
        depends_on("py-torch+rocm+nccl")
        for _library in ("rccl", "hipblas", "hipblaslt", "hipsparse", "hipsolver"):
            depends_on(_library, type=("build", "link"))
        conflicts("amdgpu_target=none", msg="name the GPU's architecture: amdgpu_target=gfx942")
        for _arch in ROCmPackage.amdgpu_targets:
            depends_on(f"py-torch amdgpu_target={_arch}", when=f"amdgpu_target={_arch}")

    def cmake_args(self) -> list[str]:
        args = [
            self.define("TINY_LLAMA_BUILD_TESTS", self.run_tests),
            # Spack's run path and PYTHONPATH lead to libtorch and to the packages of the tools
            self.define("TINY_LLAMA_INSTALL_LIBTORCH", "PLACE"),
            self.define("TINY_LLAMA_INSTALL_PYTHON_PACKAGES", False),
            self.define("TINY_LLAMA_WITH_HIP", "ON" if self.spec.satisfies("+rocm") else "OFF"),
            self.define("TINY_LLAMA_WITH_CUDA", "AUTO" if self.spec.satisfies("+cuda") else "OFF"),
            self.define(
                "Torch_DIR", self.spec["py-torch"].package.cmake_prefix_paths[0] + "/Torch"
            ),
        ]
        if self.spec.satisfies("+cuda"):
            # 90 -> 9.0, 100a -> 10.0a, as in TORCH_CUDA_ARCH_LIST
            dotted = [
                re.sub(r"^(\d+)(\d)(\D?)$", r"\1.\2\3", arch)
                for arch in self.spec.variants["cuda_arch"].value
            ]
            args.append(self.define("TINY_LLAMA_CUDA_ARCHITECTURES", ";".join(dotted)))
            args.append(self.define("TINY_LLAMA_NVCC", self.spec["cuda"].prefix.bin.nvcc))
        if self.spec.satisfies("+rocm"):
            targets = ";".join(self.spec.variants["amdgpu_target"].value)
            args.append(self.define("TINY_LLAMA_HIP_ARCHITECTURES", targets))
            args.append(self.define("TINY_LLAMA_HIPCC", self.spec["hip"].prefix.bin.hipcc))
        return args
