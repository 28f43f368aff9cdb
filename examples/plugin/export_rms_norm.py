"""RMSNorm, written in Python, as packages that aoti_rms_norm.cpp runs without Python.

export_rms_norm.py FOLDER: FOLDER is where the library will lie.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim

EPS = 1e-5  # numbers are constants of a package


class Forward(torch.nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
        return weight * (wide * inverse).to(x.dtype)


class Backward(torch.nn.Module):
    def forward(self, gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.float()
        inverse = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
        normalized = wide * inverse
        g = gradient.float() * weight.float()
        x_gradient = inverse * (g - normalized * (g * normalized).mean(-1, keepdim=True))
        weight_gradient = (gradient.float() * normalized.to(x.dtype).float()).sum(0)
        return x_gradient.to(x.dtype), weight_gradient.to(weight.dtype)


def main(folder: Path) -> None:
    matrix, row = {0: Dim("rows"), 1: Dim("columns")}, {0: Dim("columns")}
    # else the number of threads is a constant of the package too
    options = {"cpp.dynamic_threads": True}
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = torch.randn(64, 96, dtype=dtype), torch.ones(96, dtype=dtype)
        gradient = torch.randn_like(x)  # x once more would make the two one input
        for name, module, inputs, shapes in (
            ("rms_norm", Forward(), (x, weight), (matrix, row)),
            ("rms_norm_backward", Backward(), (gradient, x, weight), (matrix, matrix, row)),
        ):
            program = torch.export.export(module, inputs, dynamic_shapes=shapes)
            file = folder / f"{name}.{str(dtype).removeprefix('torch.')}.pt2"
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(file), inductor_configs=options
            )


main(Path(sys.argv[1]))
