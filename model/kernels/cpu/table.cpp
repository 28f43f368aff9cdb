#include "model/kernels/cpu/table.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {

RangeKernels make_table(const char* instruction_set) {
  RangeKernels table{};
  table.instruction_set = instruction_set;
  enter_rms_norm(table);
  enter_cross_entropy(table);
  enter_elementwise(table);
  enter_attention(table);
  enter_attention_gradient(table);
  enter_gemm(table);
  return table;
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA
