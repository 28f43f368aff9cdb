// What range kernels of every instruction set that this processor has are built from: exp and the
// rounding to narrow types. The kernels themselves are tested on each by running this program with
// ATEN_CPU_CAPABILITY.
#include <cmath>
#include <limits>

#include "model/kernels/kernel_testing.hpp"
#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

using Function = void (*)(const float* x, float* out, int64_t count);

at::Tensor of_each(Function function, const at::Tensor& x) {
  const at::Tensor out = at::empty_like(x);
  function(x.const_data_ptr<float>(), out.data_ptr<float>(), x.numel());
  return out;
}

double worst_ulp(const at::Tensor& actual, const at::Tensor& exact) {
  double worst = 0;
  for (int64_t i = 0; i < actual.numel(); ++i) {
    const double expected = exact.const_data_ptr<double>()[i];
    const auto rounded = static_cast<float>(expected);
    const double unit = std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
    worst = std::max(worst, std::abs(actual.const_data_ptr<float>()[i] - expected) / unit);
  }
  return worst;
}

TEST(RangeKernels, ExpIsWithinTwoUnitsInTheLastPlace) {
  // Across the whole range in which results are neither flushed to 0 nor infinite.
  const at::Tensor x = at::linspace(-86.6, 88.72, 200'003, kF32);
  const at::Tensor t = at::linspace(-126, 127, 200'003, kF32);
  for (const RangeKernels& table : available_range_kernels()) {
    SCOPED_TRACE(table.instruction_set);
    EXPECT_LE(worst_ulp(of_each(table.exp, x), x.to(kF64).exp()), 2.0);
    EXPECT_LE(worst_ulp(of_each(table.exp2, t), t.to(kF64).exp2()), 2.0);
    EXPECT_LE(worst_ulp(of_each(table.exp2_narrow, t), t.to(kF64).exp2()), 0x1p-18 / 0x1p-24);
  }
}

TEST(RangeKernels, ExpOfExtremes) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {infinity, 1e30F, 89.5F, 88.9F, -infinity, -1e30F, -105.0F,
                                0.0F,     -0.0F, NAN,   1.0F,  -1e-30F,   1e-30F};
  const std::vector<float> t = {-infinity, -1e30F, -151.0F, 0.0F,  -0.0F,
                                NAN,       1.0F,   -1e-30F, 1e-30F};
  const auto expect = [](Function function, const std::vector<float>& arguments,
                         float (*exact)(float), float tolerance) {
    std::vector<float> actual(arguments.size());
    function(arguments.data(), actual.data(), static_cast<int64_t>(arguments.size()));
    for (size_t i = 0; i < arguments.size(); ++i) {
      const float expected = exact(arguments[i]);
      if (std::isfinite(expected))
        EXPECT_NEAR(actual[i], expected, tolerance * expected) << "of " << arguments[i];
      else
        EXPECT_TRUE(std::isnan(expected) ? std::isnan(actual[i]) : actual[i] == expected);
    }
  };
  for (const RangeKernels& table : available_range_kernels()) {
    SCOPED_TRACE(table.instruction_set);
    expect(table.exp, x, std::exp, 0x1p-22F);
    expect(table.exp2, t, std::exp2, 0);
    expect(table.exp2_narrow, t, std::exp2, 0x1p-18F);
  }
}

// A sum over one row is a conversion from float32; of few elements at a time, as the order of a
// longer row's float32 values is the kernels' own affair.
template <class T>
at::Tensor narrowed(const RangeKernelsOf<T>& kernels, const at::Tensor& wide,
                    c10::ScalarType type) {
  constexpr int64_t few = 7;
  const int64_t count = wide.numel();
  const at::Tensor out = uninitialized(wide.sizes(), type);
  for (int64_t begin = 0; begin < count; begin += few) {
    kernels.sum_of_rows({const_data<float>(wide), data<T>(out), 1, count}, begin,
                        std::min(begin + few, count));
  }
  return out;
}

TEST(RangeKernels, NarrowTypesAreRoundedToNearestEven) {
  // Each of the 2^16 values, the values between neighbours (ties) and those just beside the ties.
  const at::Tensor bits = at::arange(65536, at::kInt).to(c10::ScalarType::Short);
  for (const RangeKernels& table : available_range_kernels()) {
    SCOPED_TRACE(table.instruction_set);
    for (const auto type : {c10::ScalarType::BFloat16, c10::ScalarType::Half}) {
      const at::Tensor each = bits.view(type).to(kF32);
      const at::Tensor finite = each.masked_select(each.isfinite());
      const at::Tensor middles =
          (finite.narrow(0, 1, finite.numel() - 1) + finite.narrow(0, 0, finite.numel() - 1)) / 2;
      const at::Tensor all =
          at::cat({each, middles, at::nextafter(middles, at::full_like(middles, INFINITY)),
                   at::nextafter(middles, at::full_like(middles, -INFINITY)),
                   at::tensor({3.4e38, -3.4e38, 65519.99, 65520.0, 1e-45, -1e-45}).to(kF32)});
      const at::Tensor actual = type == c10::ScalarType::Half ? narrowed(table.f16, all, type)
                                                              : narrowed(table.bf16, all, type);
      const at::Tensor nan = all.isnan();
      EXPECT_TRUE(at::equal(actual.isnan(), nan));
      // 0 - 0 and 0 + -0 are 0: a sum loses the sign of zero, so values are compared, not bits.
      EXPECT_TRUE(at::equal(actual.masked_select(~nan), all.to(type).masked_select(~nan)));
    }
  }
}

}  // namespace
}  // namespace tinyllama::kernels
