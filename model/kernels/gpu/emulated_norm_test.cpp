// RMSNorm of the GPU, run on the host, against the CPU's kernels.
#include <ATen/ops/full.h>

#include "model/kernels/gpu/emulated_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

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

}  // namespace
}  // namespace tinyllama::kernels
