// The GPU's kernels, run on the host, against the CPU's.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <tuple>

#include "model/kernels/gpu/gpu_kernels.hpp"
#include "model/kernels/kernel_testing.hpp"
#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

/// Widths that fill packs of elements and widths that do not, below and above a block's threads.
const std::vector<int64_t> kWidths = {1, 2, 7, 12, 64, 130};

template <class T>
const GpuKernelsOf<T>& gpu_kernels_of() {
  return std::get<GpuKernelsOf<T>>(gpu_emulated::table());
}
template <class T, class Branch>
const GpuNormKernels<T, Branch>& gpu_norms_of() {
  return std::get<GpuNormKernels<T, Branch>>(gpu_emulated::table());
}

/// body(kernels of the GPU, of the CPU, type) for each type.
template <class Body>
void for_each_type(Body body) {
  for (const auto type : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    with_range_kernels(
        type, [&]<class T>(const RangeKernelsOf<T>& cpu) { body(gpu_kernels_of<T>(), cpu, type); });
  }
}

at::Tensor in_f64(const at::Tensor& tensor) {
  return tensor.to(c10::ScalarType::Double);
}

/// Memory of the CPU, filled with what no kernel may leave there.
at::Tensor unwritten(at::IntArrayRef shape, c10::ScalarType type) {
  return at::full(shape, 777.0, at::TensorOptions().dtype(type));
}
at::Tensor unwritten_as(const at::Tensor& tensor) {
  return unwritten(tensor.sizes(), tensor.scalar_type());
}

constexpr double kEps = 1e-5;

TEST(EmulatedGpuNorm, ForwardIsThatOfTheCpu) {
  for_each_type(
      []<class T>(const GpuKernelsOf<T>& gpu, const RangeKernelsOf<T>& cpu, c10::ScalarType type) {
        constexpr int64_t rows = 3;
        for (const int64_t width : kWidths) {
          const at::Tensor x = random({rows, width}, type), weight = random({width}, type);
          const at::Tensor out = unwritten_as(x), expected = unwritten_as(x);
          const at::Tensor inverse = unwritten({2, rows}, compute_type_of(type));
          RmsNormRows<T> args{const_data<T>(x),
                              const_data<T>(weight),
                              data<T>(out),
                              data<ComputeType<T>>(inverse),
                              width,
                              kEps};
          gpu.rms_norm(args, rows, nullptr);
          args.out = data<T>(expected);
          args.inverse_rms += rows;
          cpu.rms_norm(args, 0, rows);
          expect_close(out, in_f64(expected), 4, "out");
          expect_close(inverse[0], in_f64(inverse[1]), 8, "1 / rms");
        }
      });
}

/// What both sides of a comparison are given, and where each writes.
struct NormCase {
  NormCase(int64_t rows_, int64_t width_, c10::ScalarType type, c10::ScalarType branch_type)
      : rows(rows_),
        width(width_),
        residual(random({rows, width}, type)),
        branch(random({rows, width}, branch_type)),
        weight(random({width}, type)),
        gradient(random({rows, width}, type)),
        sum_gradient(random({rows, width}, type)) {}

  int64_t rows, width;
  at::Tensor residual, branch, weight, gradient, sum_gradient;
};
struct NormAnswer {
  explicit NormAnswer(const NormCase& given)
      : sum(unwritten_as(given.residual)),
        out(unwritten_as(given.residual)),
        inverse(unwritten({given.rows}, compute_type_of(given.residual.scalar_type()))),
        x_gradient(unwritten_as(given.residual)),
        branch_gradient(unwritten_as(given.branch)),
        weight_gradient(unwritten_as(given.weight)) {}

  at::Tensor sum, out, inverse, x_gradient, branch_gradient, weight_gradient;
};

template <class T, class Branch>
AddRmsNormRows<T, Branch> forward_arguments(const NormCase& given, const NormAnswer& answer) {
  return {const_data<T>(given.residual),
          const_data<Branch>(given.branch),
          const_data<T>(given.weight),
          data<T>(answer.sum),
          data<T>(answer.out),
          data<ComputeType<T>>(answer.inverse),
          given.width,
          kEps};
}
template <class T, class Branch>
RmsNormGradientRows<T, Branch> backward_arguments(const NormCase& given, const NormAnswer& answer,
                                                  const at::Tensor& partial) {
  return {const_data<T>(given.gradient),
          const_data<T>(given.sum_gradient),
          const_data<T>(answer.sum),
          const_data<T>(given.weight),
          const_data<ComputeType<T>>(answer.inverse),
          data<T>(answer.x_gradient),
          data<Branch>(answer.branch_gradient),
          data<ComputeType<T>>(partial),
          given.width};
}

template <class T, class Branch>
NormAnswer on_gpu(const NormCase& given) {
  NormAnswer answer(given);
  const auto& kernels = gpu_norms_of<T, Branch>();
  kernels.add_rms_norm(forward_arguments<T, Branch>(given, answer), given.rows, nullptr);
  const at::Tensor partial =
      unwritten({gpu_norm_parts(given.rows), given.width}, answer.inverse.scalar_type());
  kernels.rms_norm_gradient(backward_arguments<T, Branch>(given, answer, partial),
                            data<T>(answer.weight_gradient), given.rows, nullptr);
  return answer;
}

template <class T, class Branch, class Kernels>
NormAnswer on_cpu(const NormCase& given, const Kernels& kernels, const RangeKernelsOf<T>& sums) {
  NormAnswer answer(given);
  kernels.add_rms_norm(forward_arguments<T, Branch>(given, answer), 0, given.rows);
  const at::Tensor partial = at::zeros({given.width}, answer.inverse.options());
  kernels.rms_norm_gradient(backward_arguments<T, Branch>(given, answer, partial), 0, given.rows);
  sums.sum_of_rows(
      {const_data<ComputeType<T>>(partial), data<T>(answer.weight_gradient), 1, given.width}, 0,
      given.width);
  return answer;
}

/// Errors of sums and differences are relative to their terms, of which less than one may be left.
void expect_same(const NormAnswer& actual, const NormAnswer& expected, const NormCase& given) {
  expect_same_bits(actual.sum, expected.sum, "sum");
  expect_close(actual.out, in_f64(expected.out), 4, "out");
  const at::Tensor scaled = (in_f64(given.gradient) * in_f64(expected.inverse).unsqueeze(1)).abs();
  const at::Tensor x_terms = scaled * in_f64(given.weight).abs();
  const auto x_term = x_terms.max().item<double>();
  expect_close(actual.x_gradient, in_f64(expected.x_gradient), 8, "x gradient", x_term);
  expect_close(actual.branch_gradient, in_f64(expected.branch_gradient), 8, "branch gradient",
               x_term);
  // These are added up before they are rounded to the weight's type.
  const at::Tensor weight_terms = (scaled * in_f64(expected.sum).abs()).sum(0);
  const double finer =
      unit_roundoff(expected.inverse.scalar_type()) / unit_roundoff(given.weight.scalar_type());
  expect_close(actual.weight_gradient, in_f64(expected.weight_gradient), 8, "weight gradient",
               weight_terms.max().item<double>() * finer);
}

TEST(EmulatedGpuNorm, AddAndGradientsAreThoseOfTheCpu) {
  for_each_type(
      []<class T>(const GpuKernelsOf<T>&, const RangeKernelsOf<T>& cpu, c10::ScalarType type) {
        for (const int64_t width : kWidths) {
          const NormCase given(width < 10 ? 70 : 3, width, type, type);
          expect_same(on_gpu<T, T>(given), on_cpu<T, T>(given, cpu, cpu), given);
        }
      });
}

TEST(EmulatedGpuNorm, NarrowBranchesOfAFloat32Residual) {
  const RangeKernels& cpu = range_kernels();
  for (const int64_t width : {7, 64}) {
    const NormCase bf16(5, width, kF32, c10::ScalarType::BFloat16);
    expect_same(on_gpu<float, Bfloat16>(bf16),
                on_cpu<float, Bfloat16>(bf16, cpu.f32_with_bf16, cpu.f32), bf16);
    const NormCase f16(5, width, kF32, c10::ScalarType::Half);
    expect_same(on_gpu<float, Float16>(f16), on_cpu<float, Float16>(f16, cpu.f32_with_f16, cpu.f32),
                f16);
  }
}

TEST(EmulatedGpuNorm, GradientWithoutASumOrABranch) {
  const NormCase given(4, 12, kF32, kF32);
  NormAnswer with = on_gpu<float, float>(given), without(given);
  const at::Tensor partial = unwritten({1, 12}, kF32);
  auto args = backward_arguments<float, float>(given, with, partial);
  args.sum_gradient = nullptr;
  args.branch_gradient = nullptr;
  args.x_gradient = data<float>(without.x_gradient);
  gpu_norms_of<float, float>().rms_norm_gradient(args, data<float>(without.weight_gradient), 4,
                                                 nullptr);
  expect_close(without.x_gradient, in_f64(with.x_gradient) - in_f64(given.sum_gradient), 8,
               "x gradient");
  expect_same_bits(without.weight_gradient, with.weight_gradient, "weight gradient");
}

TEST(EmulatedGpuNorm, TwoRunsAreTheSameBitForBit) {
  const NormCase given(170, 12, kF32, kF32);
  const NormAnswer first = on_gpu<float, float>(given), second = on_gpu<float, float>(given);
  expect_same_bits(first.out, second.out, "out");
  expect_same_bits(first.weight_gradient, second.weight_gradient, "weight gradient");
}

TEST(EmulatedGpuNorm, MemoryThatIsNotAlignedIsReadElementByElement) {
  const at::Tensor memory = random({65}, kF32), weight = random({32}, kF32);
  const at::Tensor x = memory.narrow(0, 1, 64), out = unwritten({64}, kF32);
  const at::Tensor copy = x.clone(), expected = unwritten({64}, kF32);
  const at::Tensor inverse = unwritten({2}, kF32);
  const auto& kernels = gpu_kernels_of<float>();
  kernels.rms_norm({const_data<float>(x), const_data<float>(weight), data<float>(out),
                    data<float>(inverse), 32, kEps},
                   2, nullptr);
  kernels.rms_norm({const_data<float>(copy), const_data<float>(weight), data<float>(expected),
                    data<float>(inverse), 32, kEps},
                   2, nullptr);
  expect_close(out, in_f64(expected), 4, "out");
}

constexpr int64_t kIgnored = -100;

TEST(EmulatedGpu, SwigluIsThatOfTheCpu) {
  for_each_type(
      []<class T>(const GpuKernelsOf<T>& gpu, const RangeKernelsOf<T>& cpu, c10::ScalarType type) {
        constexpr int64_t rows = 3;
        for (const int64_t width : kWidths) {
          // Halves of one buffer, as the merged projection leaves them.
          const at::Tensor both = random({rows, 2 * width}, type), g = random({rows, width}, type);
          const at::Tensor out = unwritten_as(g), expected = unwritten_as(g);
          const T* gate = const_data<T>(both);
          const SwigluRows<T> args{gate, 2 * width, gate + width, 2 * width, data<T>(out), width};
          gpu.swiglu(args, rows, nullptr);
          auto of_cpu = args;
          of_cpu.out = data<T>(expected);
          cpu.swiglu(of_cpu, 0, rows);
          expect_close(out, in_f64(expected), 4, "out");
          const at::Tensor gradient = unwritten_as(both), expected_gradient = unwritten_as(both);
          const auto arguments = [&](const at::Tensor& to) {
            return SwigluGradientRows<T>{const_data<T>(g),    gate,      2 * width,
                                         gate + width,        2 * width, data<T>(to),
                                         data<T>(to) + width, 2 * width, width};
          };
          gpu.swiglu_gradient(arguments(gradient), rows, nullptr);
          cpu.swiglu_gradient(arguments(expected_gradient), 0, rows);
          expect_close(gradient, in_f64(expected_gradient), 8, "gradient");
        }
      });
}

TEST(EmulatedGpu, RotaryIsThatOfTheCpu) {
  for_each_type(
      []<class T>(const GpuKernelsOf<T>& gpu, const RangeKernelsOf<T>& cpu, c10::ScalarType type) {
        constexpr int64_t batch = 2, positions = 3, heads = 3;
        for (const int64_t head_dim : {2, 6, 16, 32}) {
          // Heads before positions in memory, and room behind each head.
          const at::Tensor memory = random({batch, heads, positions, 2 * head_dim}, type);
          const at::Tensor cos = random({positions, head_dim}, type);
          const at::Tensor sin = random({positions, head_dim}, type);
          const at::Tensor out = unwritten({batch, positions, heads, head_dim}, type);
          const at::Tensor expected = unwritten_as(out);
          for (const bool backwards : {false, true}) {
            RotaryTokens<T> args{const_data<T>(memory),
                                 memory.stride(0),
                                 memory.stride(2),
                                 memory.stride(1),
                                 const_data<T>(cos),
                                 const_data<T>(sin),
                                 data<T>(out),
                                 positions,
                                 heads,
                                 head_dim,
                                 backwards};
            gpu.rotary(args, batch * positions, nullptr);
            args.out = data<T>(expected);
            cpu.rotary(args, 0, batch * positions);
            expect_close(out, in_f64(expected), 2, "rotary");
          }
        }
      });
}

TEST(EmulatedGpu, CrossEntropyIsThatOfTheCpu) {
  for_each_type(
      []<class T>(const GpuKernelsOf<T>& gpu, const RangeKernelsOf<T>& cpu, c10::ScalarType type) {
        using Compute = ComputeType<T>;
        constexpr int64_t rows = 4;
        for (const int64_t classes : kWidths) {
          const at::Tensor logits = random({rows, classes}, type) * 8;
          const at::Tensor targets = at::tensor({int64_t{0}, classes - 1, kIgnored, classes / 2});
          const at::Tensor losses = unwritten({3, rows}, compute_type_of(type));
          const at::Tensor scratch = unwritten({classes}, compute_type_of(type));
          const at::Tensor gradient = logits.clone(), expected = unwritten_as(logits);
          CrossEntropyRows<T> args{const_data<T>(logits),
                                   const_data<int64_t>(targets),
                                   kIgnored,
                                   nullptr,
                                   data<Compute>(losses),
                                   nullptr,
                                   classes};
          gpu.cross_entropy(args, rows, nullptr);
          args.gradient = data<T>(expected);
          args.scratch = data<Compute>(scratch);
          args.losses += rows;
          cpu.cross_entropy(args, 0, rows);
          args.logits = args.gradient = data<T>(gradient);
          args.scratch = nullptr;
          args.losses += rows;
          gpu.cross_entropy(args, rows, nullptr);
          expect_close(losses[0], in_f64(losses[1]), 16, "losses", 1);
          expect_same_bits(losses[2], losses[0], "losses beside a gradient");
          expect_close(gradient, in_f64(expected), 16, "gradient", classes == 1 ? 1 : 0);
          EXPECT_EQ(losses[0][2].template item<double>(), 0);
        }
      });
}

TEST(EmulatedGpu, CrossEntropyShowsWhatIsNotANumber) {
  constexpr int64_t rows = 5, classes = 19;
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor logits = random({rows, classes}, kF32);
  logits[1][3] = std::numeric_limits<float>::quiet_NaN();
  logits[2][18] = -infinity;
  const at::Tensor targets =
      at::tensor({int64_t{19}, int64_t{4}, int64_t{4}, int64_t{-1}, int64_t{0}});
  const at::Tensor losses = unwritten({rows}, kF32), gradient = unwritten_as(logits);
  gpu_kernels_of<float>().cross_entropy(
      {const_data<float>(logits), const_data<int64_t>(targets), kIgnored, data<float>(gradient),
       data<float>(losses), nullptr, classes},
      rows, nullptr);
  for (const int64_t row : {0, 1, 3}) {
    EXPECT_TRUE(losses[row].isnan().item<bool>()) << row;
    EXPECT_TRUE(all_nan(gradient[row])) << row;
  }
  for (const int64_t row : {2, 4}) {
    EXPECT_TRUE(losses[row].isfinite().item<bool>()) << row;
    EXPECT_TRUE(gradient[row].isfinite().all().item<bool>()) << row;
  }
  EXPECT_EQ(gradient[2][18].item<float>(), 0);
}

TEST(EmulatedGpu, AdamWIsThatOfTheCpu) {
  for_each_type(
      []<class T>(const GpuKernelsOf<T>& gpu, const RangeKernelsOf<T>& cpu, c10::ScalarType type) {
        // More tensors than a launch takes, and one with more elements than its threads.
        std::vector<int64_t> counts = {1, 7, 64, 700, 0};
        while (counts.size() < 43) counts.push_back(static_cast<int64_t>(counts.size()));
        std::vector<at::Tensor> actual, expected;
        std::vector<AdamWElements<T>> elements;
        // As doubles, what adamw_elements() has.
        static constexpr double corrections[] = {2.0F, 0.01F};
        for (const int64_t count : counts) {
          const at::Tensor p = random({count}, type), g = random({count}, type);
          const at::Tensor m = random({count}, type), v = random({count}, type).abs();
          actual.insert(actual.end(), {p, m, v, g});
          elements.push_back(adamw_elements(data<T>(p), const_data<T>(g), data<T>(m), data<T>(v)));
          auto of_cpu = elements.back();
          for (const auto& tensor : {p, m, v}) expected.push_back(tensor.clone());
          of_cpu.parameter = data<T>(expected[expected.size() - 3]);
          of_cpu.first_moment = data<T>(expected[expected.size() - 2]);
          of_cpu.second_moment = data<T>(expected.back());
          cpu.adamw(of_cpu, 0, count);
          // Every other one reads them when it runs.
          if (elements.size() % 2 == 0) {
            elements.back().corrections = corrections;
            elements.back().second_scale = elements.back().step_size = 1e6;
          }
        }
        gpu.adamw(elements.data(), counts.data(), static_cast<int64_t>(counts.size()), nullptr);
        for (size_t i = 0; i < counts.size(); ++i) {
          expect_close(actual[4 * i], in_f64(expected[3 * i]), 4, "parameter");
          expect_close(actual[4 * i + 1], in_f64(expected[3 * i + 1]), 2, "first moment");
          expect_close(actual[4 * i + 2], in_f64(expected[3 * i + 2]), 2, "second moment");
        }
      });
}

}  // namespace
}  // namespace tinyllama::kernels
