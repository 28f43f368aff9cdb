// Every instruction set that this processor has against float64 or against the others: range
// kernels by themselves, on memory that a test prepares.
#include <cmath>
#include <limits>

#include "model/kernels/cpu_launch.hpp"
#include "model/kernels/kernel_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

constexpr auto kF32 = c10::ScalarType::Float;
constexpr int64_t kRows = 6;

/// body(kernels, table, type) for each type of each instruction set, first of "default".
template <class Body>
void for_each_set_and_type(Body body) {
  const auto& tables = available_range_kernels();
  for (auto table = tables.rbegin(); table != tables.rend(); ++table) {
    SCOPED_TRACE(table->instruction_set);
    body(table->f64, c10::ScalarType::Double);
    body(table->f32, kF32);
    body(table->bf16, c10::ScalarType::BFloat16);
    body(table->f16, c10::ScalarType::Half);
  }
}

/// Remembers what the first instruction set answered for each type and width; compares the others.
class Agreement {
 public:
  void check(const at::Tensor& answer, int64_t width, double units, const char* what) {
    const auto key = std::tuple(answer.scalar_type(), width, std::string(what));
    const auto [first, is_new] =
        first_.try_emplace(key, answer.to(c10::ScalarType::Double, false, /*copy=*/true));
    if (!is_new) expect_close(answer, first->second, units, what);
  }

 private:
  std::map<std::tuple<c10::ScalarType, int64_t, std::string>, at::Tensor> first_;
};

const std::vector<int64_t> kWidths = {2, 7, 12, 33, 64, 130};

at::Tensor values(at::IntArrayRef shape, c10::ScalarType type, uint64_t seed) {
  at::manual_seed(seed);
  return random(shape, type);
}

TEST(RangeKernels, NormsAgreeBetweenInstructionSets) {
  Agreement agreement;
  for_each_set_and_type([&]<class T>(const RangeKernelsOf<T>& kernels, c10::ScalarType type) {
    using Compute = ComputeType<T>;
    for (const int64_t width : kWidths) {
      const at::Tensor x = values({kRows, width}, type, 1), g = values({kRows, width}, type, 2);
      const at::Tensor weight = values({width}, type, 3), branch = values({kRows, width}, type, 4);
      const at::Tensor sum = uninitialized_as(x), out = uninitialized_as(x);
      const at::Tensor gradient = uninitialized_as(x), weight_gradient = uninitialized_as(weight);
      const at::Tensor inverse = uninitialized({kRows}, compute_type_of(type));
      const at::Tensor partial = at::zeros({width}, compute_type_of(type));
      kernels.rms_norm({const_data<T>(x), const_data<T>(weight), data<T>(out),
                        data<Compute>(inverse), width, 1e-5},
                       0, kRows);
      agreement.check(out, width, 4, "norm");
      kernels.add_rms_norm({const_data<T>(x), const_data<T>(branch), const_data<T>(weight),
                            data<T>(sum), data<T>(out), data<Compute>(inverse), width, 1e-5},
                           0, kRows);
      agreement.check(sum, width, 0, "sum");
      agreement.check(out, width, 4, "norm of sum");
      kernels.rms_norm_gradient(
          {const_data<T>(g), const_data<T>(branch), const_data<T>(sum), const_data<T>(weight),
           const_data<Compute>(inverse), data<T>(gradient), nullptr, data<Compute>(partial), width},
          0, kRows);
      agreement.check(gradient, width, 8, "gradient");
      kernels.sum_of_rows({const_data<Compute>(partial), data<T>(weight_gradient), 1, width}, 0,
                          width);
      agreement.check(weight_gradient, width, 16, "weight gradient");
    }
  });
}

TEST(RangeKernels, ElementwiseKernelsAgreeBetweenInstructionSets) {
  Agreement agreement;
  for_each_set_and_type([&]<class T>(const RangeKernelsOf<T>& kernels, c10::ScalarType type) {
    for (const int64_t width : kWidths) {
      const at::Tensor a = values({kRows, width}, type, 1), b = values({kRows, width}, type, 2);
      const at::Tensor c = values({kRows, width}, type, 3), out = uninitialized_as(a);
      const at::Tensor other = uninitialized_as(a);
      kernels.swiglu({const_data<T>(a), width, const_data<T>(b), width, data<T>(out), width}, 0,
                     kRows);
      agreement.check(out, width, 8, "swiglu");
      kernels.swiglu_gradient({const_data<T>(c), const_data<T>(a), width, const_data<T>(b), width,
                               data<T>(out), data<T>(other), width, width},
                              0, kRows);
      agreement.check(out, width, 8, "gate gradient");
      agreement.check(other, width, 8, "up gradient");
      const int64_t even = width / 2 * 2;
      kernels.rotary({const_data<T>(a), 0, width, width, const_data<T>(b), const_data<T>(c),
                      data<T>(out), kRows, 1, even, false},
                     0, kRows);
      agreement.check(out.view(-1).narrow(0, 0, kRows * even), width, 2, "rotary");
      const at::Tensor p = a.clone(), m = b.clone(), v = c.abs();
      kernels.adamw(adamw_elements(data<T>(p), const_data<T>(b), data<T>(m), data<T>(v)), 1,
                    p.numel());
      agreement.check(p, width, 4, "parameter");
      agreement.check(v, width, 2, "second moment");
    }
  });
}

TEST(RangeKernels, CrossEntropyAgreesBetweenInstructionSets) {
  Agreement agreement;
  for_each_set_and_type([&]<class T>(const RangeKernelsOf<T>& kernels, c10::ScalarType type) {
    using Compute = ComputeType<T>;
    for (const int64_t classes : kWidths) {
      const at::Tensor logits = values({kRows, classes}, type, 1);
      const at::Tensor targets = at::arange(kRows, at::kLong).remainder(classes);
      const at::Tensor losses = uninitialized({kRows}, compute_type_of(type));
      const at::Tensor scratch = uninitialized({classes}, compute_type_of(type));
      kernels.cross_entropy(
          {const_data<T>(logits), const_data<int64_t>(targets), -1, data<T>(logits),
           data<Compute>(losses), data<Compute>(scratch), classes},
          0, kRows);
      agreement.check(losses, classes, 8,
                      (std::string("losses of ") + c10::toString(type)).c_str());
      agreement.check(logits, classes, 8, "gradient");
    }
  });
}

TEST(RangeKernels, ExpIsWithinTwoUnitsInTheLastPlace) {
  // Across the whole range in which e^x is neither flushed to 0 nor infinite.
  const at::Tensor x = at::linspace(-86.6, 88.72, 200'003, kF32);
  const at::Tensor expected = x.to(c10::ScalarType::Double).exp();
  for (const RangeKernels& table : available_range_kernels()) {
    SCOPED_TRACE(table.instruction_set);
    const at::Tensor actual = at::empty_like(x);
    table.exp(x.const_data_ptr<float>(), actual.data_ptr<float>(), x.numel());
    double worst = 0;
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double exact = expected.const_data_ptr<double>()[i];
      const auto rounded = static_cast<float>(exact);
      const double unit = std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
      worst = std::max(worst, std::abs(actual.const_data_ptr<float>()[i] - exact) / unit);
    }
    EXPECT_LE(worst, 2.0);
    RecordProperty(std::string("worst_ulp_") + table.instruction_set, std::to_string(worst));
  }
}

TEST(RangeKernels, ExpOfExtremes) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {infinity, 1e30F, 89.5F, 88.9F, -infinity, -1e30F, -105.0F,
                                0.0F,     -0.0F, NAN,   1.0F,  -1e-30F,   1e-30F};
  for (const RangeKernels& table : available_range_kernels()) {
    SCOPED_TRACE(table.instruction_set);
    std::vector<float> actual(x.size());
    table.exp(x.data(), actual.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(actual[i]));
      } else {
        EXPECT_FLOAT_EQ(actual[i], std::exp(x[i])) << "exp of " << x[i];
      }
    }
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
