// What kernel_benchmark measures: each of our kernels beside what the library offers for the same
// work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/config.hpp"
#include "model/dtype.hpp"

namespace tinyllama::kernel_benchmark {

/// One way of doing a case's work. `prepare` runs before each `run`, untimed.
struct Contender {
  std::string name;
  std::function<void()> prepare;
  std::function<void()> run;
};

struct KernelCase {
  std::string kernel, pass, size, dtype;
  int64_t bytes = 0;  ///< that any implementation must move: inputs once, outputs once
  std::vector<Contender> contenders;  ///< ours first
};

/// Every kernel at the batch, sequence and dimensions of a size, its tensors in one dtype.
std::vector<KernelCase> cases_of(const ProblemSize& size, Dtype dtype);

// --- internal: what the files of cases share ---

using Tensors = std::vector<at::Tensor>;

/// A differentiable function of leaves.
struct Function {
  std::string name;
  std::function<Tensors(const Tensors& leaves)> forward;
};

at::Tensor random(at::IntArrayRef shape, Dtype dtype);

/// The forward and the backward of each function, over leaves with the given values; a backward
/// starts from `output_gradients`.
std::vector<KernelCase> both_passes(const KernelCase& about, int64_t forward_bytes,
                                    int64_t backward_bytes, const Tensors& values,
                                    const Tensors& output_gradients,
                                    const std::vector<Function>& functions);

std::vector<KernelCase> attention_cases(KernelCase about, const ProblemSize& size, Dtype dtype);
KernelCase adamw_case(KernelCase about, const ProblemSize& size, Dtype dtype);

}  // namespace tinyllama::kernel_benchmark
