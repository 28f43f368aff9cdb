#include "benchmarks/instruments/gemm_paths.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>

#include "model/gemm.hpp"

namespace tinyllama::instruments {
namespace {

// Enough numbers that no cache or predictor learns them.
constexpr int64_t random_period = int64_t{1} << 20;

at::Tensor random_numbers(c10::Device device, c10::ScalarType type) {
  // A generator of our own leaves the sequence of the global one, and with it the model's weights,
  // alone.
  constexpr uint64_t seed = 20240229;
  at::Tensor numbers = at::empty({random_period}, at::kFloat);
  numbers.normal_(0.0, 1.0, at::detail::createCPUGenerator(seed));
  return numbers.to(device, type);
}

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

at::Tensor multiply_default(const GemmOperands& operands) {
  at::Tensor out = operands.out;
  at::mm_out(out, operands.a, operands.b);
  return out;
}

at::Tensor multiply_linear(const GemmOperands& operands) {
  return at::linear(operands.a, operands.b.t());
}

/// Narrow operands, multiplied in float32 as the model's switch wide_products does.
GemmPath widened_path(const std::string& library, bool onednn) {
  return {library + " in float32, rounded once",
          [gemm = Gemm(onednn, /*wide=*/true)](const GemmOperands& operands) {
            return gemm.forward(operands.a, operands.b.t());
          }};
}

std::vector<GemmPath> all_paths(const Device& device, c10::ScalarType type) {
  if (device.is_gpu()) return {{"at::mm", multiply_default}, {"at::linear", multiply_linear}};
  const bool has_onednn = has_onednn_gemm() && type != at::kDouble;
  std::vector<GemmPath> paths{{"default BLAS", multiply_default}};
  if (has_onednn) {
    paths.push_back({"oneDNN", [](const GemmOperands& operands) {
                       return multiply_by_onednn(operands.a, operands.b.t());
                     }});
  }
  if (c10::elementSize(type) < sizeof(float)) {
    paths.push_back(widened_path("default BLAS", /*onednn=*/false));
    if (has_onednn) paths.push_back(widened_path("oneDNN", /*onednn=*/true));
  }
  return paths;
}

at::Tensor multiply_batched(const GemmOperands& operands) {
  at::Tensor out = operands.out;
  at::bmm_out(out, operands.a, operands.b);
  return out;
}

/// Why a path may not serve as the peak of this type, or nothing. `operands`: small ones to try it
/// on.
std::optional<std::string> objection(const GemmPath& path, const GemmOperands& operands,
                                     c10::ScalarType type) {
  at::Tensor product;
  try {
    product = path.multiply(operands).to(at::kDouble);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    // oneDNN's own errors pass through libtorch as they are.
    return error.what();
  }
  if (type != at::kFloat) return std::nullopt;
  const at::Tensor exact = operands.a.to(at::kDouble).matmul(operands.b.to(at::kDouble));
  const double error = product.sub(exact).norm().item().toDouble() / exact.norm().item().toDouble();
  // float32 gives about 1e-7 here, TF32 3e-4, bfloat16 2e-3.
  constexpr double tolerance = 1e-5;
  if (error <= tolerance) return std::nullopt;
  return fmt::format(
      "relative error {:.1e}: not true float32; float32 matmul precision must be \"highest\"",
      error);
}

std::vector<GemmPath> without_objection(const Device& device, std::vector<GemmPath> paths,
                                        const GemmOperands& trial, c10::ScalarType type) {
  std::vector<GemmPath> usable;
  std::string reasons;
  for (GemmPath& path : paths) {
    if (const auto reason = objection(path, trial, type)) {
      reasons += fmt::format("\n  {}: {}", path.name, *reason);
    } else {
      usable.push_back(std::move(path));
    }
  }
  if (usable.empty()) {
    throw std::runtime_error(fmt::format("no library multiplies {} matrices on {}:{}",
                                         c10::toString(type), device.description().name, reasons));
  }
  return usable;
}

}  // namespace

std::string_view to_string(GemmLayout layout) {
  switch (layout) {
    case GemmLayout::a_b:
      return "A x B";
    case GemmLayout::a_bt:
      return "A x B^T";
    case GemmLayout::at_b:
      return "A^T x B";
  }
  throw std::logic_error("unknown layout");
}

GemmOperandPool::GemmOperandPool(c10::Device device, c10::ScalarType type)
    : numbers_(random_numbers(device, type)),
      inputs_(numbers_),
      output_(at::empty({0}, numbers_.options())) {}

GemmOperands GemmOperandPool::get(const GemmShape& shape, GemmLayout layout) {
  const GemmOperands batched = get(BatchedGemmShape{1, shape}, layout);
  return {batched.a[0], batched.b[0], batched.out[0]};
}

GemmOperands GemmOperandPool::get(const BatchedGemmShape& batched, GemmLayout layout) {
  const auto& [m, n, k] = batched.product;
  const int64_t count = batched.count;
  // b starts where any library finds it aligned.
  const int64_t b_start = round_up(count * m * k, 256);
  const int64_t needed = b_start + count * k * n;
  if (inputs_.numel() < needed) {
    inputs_ = at::empty({round_up(needed, random_period)}, numbers_.options());
    inputs_.view({-1, random_period}).copy_(numbers_);
  }
  if (output_.numel() < count * m * n) {
    output_ = at::empty({count * m * n}, numbers_.options());
  }
  const at::Tensor a = inputs_.narrow(0, 0, count * m * k);
  const at::Tensor b = inputs_.narrow(0, b_start, count * k * n);
  return {layout == GemmLayout::at_b ? a.view({count, k, m}).mT() : a.view({count, m, k}),
          layout == GemmLayout::a_bt ? b.view({count, n, k}).mT() : b.view({count, k, n}),
          output_.narrow(0, 0, count * m * n).view({count, m, n})};
}

std::vector<GemmPath> usable_gemm_paths(const Device& device, c10::ScalarType type) {
  GemmOperandPool pool(device.torch(), type);
  const GemmOperands trial = pool.get(GemmShape{64, 64, 256}, GemmLayout::a_bt);
  return without_objection(device, all_paths(device, type), trial, type);
}

std::vector<GemmPath> usable_batched_gemm_paths(const Device& device, c10::ScalarType type) {
  GemmOperandPool pool(device.torch(), type);
  const GemmOperands trial = pool.get(BatchedGemmShape{4, {64, 64, 256}}, GemmLayout::a_bt);
  std::vector<GemmPath> paths{{"at::bmm", multiply_batched}};
  if (!device.is_gpu() && c10::elementSize(type) < sizeof(float)) {
    paths.push_back({"at::bmm in float32, rounded once", [](const GemmOperands& operands) {
                       return operands.a.to(at::kFloat)
                           .bmm(operands.b.to(at::kFloat))
                           .to(operands.out.scalar_type());
                     }});
  }
  return without_objection(device, std::move(paths), trial, type);
}

}  // namespace tinyllama::instruments
