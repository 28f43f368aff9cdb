// What fills one instruction set's table: a function from each file of range kernels.
#pragma once

#include "model/kernels/cpu/range_kernels.hpp"

#ifndef TINYLLAMA_ISA
#error "compile this once for each instruction set: see range_kernel_sources in CMakeLists.txt"
#endif

namespace tinyllama::kernels::TINYLLAMA_ISA {

void enter_rms_norm(RangeKernels& table);
void enter_cross_entropy(RangeKernels& table);
void enter_elementwise(RangeKernels& table);
void enter_attention(RangeKernels& table);
void enter_attention_gradient(RangeKernels& table);
void enter_gemm(RangeKernels& table);

/// fill(kernels) with the kernels of each element type.
template <class Fill>
inline void for_each_type(RangeKernels& table, Fill fill) {
  fill(table.f32);
  fill(table.f64);
  fill(table.bf16);
  fill(table.f16);
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA
