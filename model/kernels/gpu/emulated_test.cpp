// The GPU's kernels, run on the host in place of the CPU's: the tests of the functions on tensors
// (../*_test.cpp) are linked with this file, whose range kernels are the GPU's. Below, what those
// functions do on a GPU alone.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <tuple>
#include <vector>

#include "model/kernels/gpu/conversions_testing.hpp"
#include "model/kernels/gpu/elements.hpp"
#include "model/kernels/gpu/gpu_kernels.hpp"
#include "model/kernels/kernel_testing.hpp"
#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

// What a GPU does with all rows at once must not be shared out over threads of the CPU.
class OneThread : public ::testing::Environment {
 public:
  void SetUp() override { at::set_num_threads(1); }
};
::testing::Environment* const one_thread = ::testing::AddGlobalTestEnvironment(new OneThread);

template <class Entry>
const Entry& emulated() {
  return std::get<Entry>(gpu_emulated::table());
}

/// A range kernel that is the GPU's of this name.
template <auto kernel>
struct AllRows;
template <class Entry, class Arguments,
          void (*Entry::*kernel)(const Arguments&, int64_t, GpuStream)>
struct AllRows<kernel> {
  static void run(const Arguments& arguments, int64_t begin, int64_t end) {
    TORCH_CHECK(begin == 0, "rows are shared out");
    (emulated<Entry>().*kernel)(arguments, end, nullptr);
  }
};

template <class T>
void adamw(const AdamWElements<T>& tensor, int64_t begin, int64_t end) {
  TORCH_CHECK(begin == 0, "elements are shared out");
  emulated<GpuKernelsOf<T>>().adamw(&tensor, &end, 1, nullptr);
}

/// On a GPU the sum over parts of the rows is made by the same call.
template <class T, class Branch>
void norm_gradient(const RmsNormGradientRows<T, Branch>& arguments, int64_t begin, int64_t end) {
  TORCH_CHECK(begin == 0, "rows are shared out");
  const int64_t width = arguments.width;
  // Filled with what no kernel may leave there.
  std::vector<ComputeType<T>> parts(static_cast<size_t>(gpu_norm_parts(end) * width), 777);
  std::vector<T> sum(static_cast<size_t>(width));
  auto of_gpu = arguments;
  of_gpu.weight_gradient = parts.data();
  emulated<GpuNormKernels<T, Branch>>().rms_norm_gradient(of_gpu, sum.data(), end, nullptr);
  for (size_t i = 0; i < sum.size(); ++i)
    arguments.weight_gradient[i] += gpu_emulated::widened(sum[i]);
}

template <class T>
void sum_of_rows(const SumOfRows<T>& arguments, int64_t begin, int64_t end) {
  TORCH_CHECK(arguments.rows == 1, "rows are shared out");
  for (int64_t i = begin; i < end; ++i)
    arguments.out[i] = gpu_emulated::narrowed<T>(arguments.parts[i]);
}

template <class T>
void enter(RangeKernelsOf<T>& kernels) {
  using Gpu = GpuKernelsOf<T>;
  kernels.rms_norm = &AllRows<&Gpu::rms_norm>::run;
  kernels.add_rms_norm = &AllRows<&GpuNormKernels<T, T>::add_rms_norm>::run;
  kernels.rms_norm_gradient = &norm_gradient<T, T>;
  kernels.sum_of_rows = &sum_of_rows<T>;
  kernels.rotary = &AllRows<&Gpu::rotary>::run;
  kernels.swiglu = &AllRows<&Gpu::swiglu>::run;
  kernels.swiglu_gradient = &AllRows<&Gpu::swiglu_gradient>::run;
  kernels.cross_entropy = &AllRows<&Gpu::cross_entropy>::run;
  kernels.adamw = &adamw<T>;
}

template <class Branch>
void enter(MixedNormKernels<Branch>& kernels) {
  kernels.add_rms_norm = &AllRows<&GpuNormKernels<float, Branch>::add_rms_norm>::run;
  kernels.rms_norm_gradient = &norm_gradient<float, Branch>;
}

}  // namespace

// In place of instruction_sets.cpp's.
const RangeKernels& range_kernels() {
  return available_range_kernels().front();
}
const std::vector<RangeKernels>& available_range_kernels() {
  static const std::vector<RangeKernels> only = [] {
    RangeKernels table{};
    table.instruction_set = "a GPU, emulated";
    enter(table.f32);
    enter(table.f64);
    enter(table.bf16);
    enter(table.f16);
    enter(table.f32_with_bf16);
    enter(table.f32_with_f16);
    return std::vector{table};
  }();
  return only;
}

namespace {

TEST(EmulatedGpu, ConversionsAreExact) {
  expect_exact_conversions(c10::DeviceType::CPU);
}

// Where the CPU throws, nobody looks at targets before a GPU's kernel does.
TEST(EmulatedGpu, ATargetOutOfRangeMakesItsRowNan) {
  const at::Tensor logits = random({3, 19}, kF32);
  const at::Tensor targets = at::tensor({int64_t{19}, int64_t{-1}, int64_t{18}});
  const at::Tensor losses = at::full({3}, 777.0), gradient = at::full_like(logits, 777.0);
  emulated<GpuKernelsOf<float>>().cross_entropy(
      {const_data<float>(logits), const_data<int64_t>(targets), /*ignored_target=*/-100,
       data<float>(gradient), data<float>(losses), nullptr, 19},
      3, nullptr);
  for (const int64_t row : {0, 1}) {
    EXPECT_TRUE(losses[row].isnan().item<bool>()) << row;
    EXPECT_TRUE(all_nan(gradient[row])) << row;
  }
  EXPECT_TRUE(losses[2].isfinite().item<bool>());
  EXPECT_TRUE(gradient[2].isfinite().all().item<bool>());
}

TEST(EmulatedGpu, MoreTensorsThanALaunchTakesAreUpdatedAsOneByOne) {
  for (const auto type : kTypes) {
    with_range_kernels(type, [&]<class T>(const RangeKernelsOf<T>& one_by_one) {
      // Of one with more elements than a launch's threads, and of none.
      std::vector<int64_t> counts = {1, 7, 64, 700, 0};
      while (counts.size() < 43) counts.push_back(static_cast<int64_t>(counts.size()));
      std::vector<at::Tensor> actual, expected;
      std::vector<AdamWElements<T>> elements;
      for (const int64_t count : counts) {
        const at::Tensor p = random({count}, type), m = random({count}, type);
        const at::Tensor v = random({count}, type).abs(), g = random({count}, type);
        actual.insert(actual.end(), {p, m, v, g});
        expected.insert(expected.end(), {p.clone(), m.clone(), v.clone(), g});
        const auto of = [](const std::vector<at::Tensor>& all) {
          const auto* last = &all.back();
          return adamw_elements(data<T>(last[-3]), const_data<T>(last[0]), data<T>(last[-2]),
                                data<T>(last[-1]));
        };
        elements.push_back(of(actual));
        one_by_one.adamw(of(expected), 0, count);
      }
      emulated<GpuKernelsOf<T>>().adamw(elements.data(), counts.data(),
                                        static_cast<int64_t>(counts.size()), nullptr);
      for (size_t i = 0; i < actual.size(); ++i)
        expect_close(actual[i], expected[i].to(kF64), 2, "updated");
    });
  }
}

}  // namespace
}  // namespace tinyllama::kernels
