// What kernel_benchmark measures: each of our kernels beside what the library offers for the same
// work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tinyllama::kernel_benchmark {

/// Of a problem size: B and S, and the model's dimensions.
struct Shape {
  std::string name;
  int64_t batch, seq, hidden_dim, n_layers, n_heads, n_kv_heads, intermediate_dim, vocab_size;
  int64_t tokens() const { return batch * seq; }
  int64_t head_dim() const { return hidden_dim / n_heads; }
};

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

/// Every kernel at one shape, in float32 or bfloat16.
std::vector<KernelCase> cases_of(const Shape& shape, c10::ScalarType type);

// --- internal: what the files of cases share ---

using Tensors = std::vector<at::Tensor>;

/// A differentiable function of leaves.
struct Function {
  std::string name;
  std::function<Tensors(const Tensors& leaves)> forward;
};

at::Tensor random(at::IntArrayRef shape, c10::ScalarType type);

/// The forward and the backward of each function, over leaves with the given values; a backward
/// starts from `output_gradients`.
std::vector<KernelCase> both_passes(const KernelCase& about, int64_t forward_bytes,
                                    int64_t backward_bytes, const Tensors& values,
                                    const Tensors& output_gradients,
                                    const std::vector<Function>& functions);

std::vector<KernelCase> attention_cases(KernelCase about, const Shape& shape, c10::ScalarType type);
KernelCase adamw_case(const Shape& shape, c10::ScalarType type);

}  // namespace tinyllama::kernel_benchmark
