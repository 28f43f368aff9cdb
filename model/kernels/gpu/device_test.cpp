// The kernels on a GPU against those on the CPU, through the functions on tensors that both are
// behind: forward, backward and update. Skipped where there is no GPU, or none for this build.
#include <c10/core/impl/VirtualGuardImpl.h>

#include "model/kernels/gpu/conversions_testing.hpp"
#include "model/kernels/kernel_testing.hpp"
#include "model/kernels/kernels.hpp"
#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

class GpuDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA) ||
        c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount() == 0) {
      GTEST_SKIP() << "no GPU is here";
    }
    const std::string reason = why_no_gpu_kernels(c10::Device(c10::DeviceType::CUDA, 0));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

at::Tensor on_gpu(const at::Tensor& tensor) {
  return tensor.to(c10::Device(c10::DeviceType::CUDA));
}

void expect_like_cpu(const Function& function, const Tensors& inputs, const char* what) {
  Tensors moved;
  for (const at::Tensor& input : inputs) moved.push_back(on_gpu(input));
  const auto [expected, expected_gradients] = evaluated(function, inputs);
  const auto [actual, gradients] = evaluated(function, moved);
  for (size_t i = 0; i < expected.size(); ++i)
    expect_close(actual[i].cpu(), expected[i].to(kF64), 16, what);
  for (size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(i);
    expect_close(gradients[i].cpu(), expected_gradients[i].to(kF64), 16, what);
  }
}

TEST_F(GpuDevice, FunctionsWithGradientsAreThoseOfTheCpu) {
  for (const auto type : kTypes) {
    for (const int64_t width : {64, 130}) {
      const at::Tensor x = random({5, 77, width}, type), y = random({5, 77, width}, type);
      const at::Tensor weight = random({width}, type);
      expect_like_cpu([](const auto& in) { return Tensors{rms_norm(in[0], in[1], 1e-5)}; },
                      {x, weight}, "rms_norm");
      expect_like_cpu(
          [](const auto& in) {
            const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2], 1e-5);
            return Tensors{sum, norm};
          },
          {x, y, weight}, "add_rms_norm");
      expect_like_cpu([](const auto& in) { return Tensors{swiglu(in[0], in[1])}; }, {x, y},
                      "swiglu");
      expect_like_cpu([](const auto& in) { return Tensors{swiglu_merged(in[0])}; }, {x},
                      "swiglu_merged");
    }
    const at::Tensor cos = random({9, 1, 32}, type), sin = random({9, 1, 32}, type);
    const auto turned = [&](const Tensors& in) {
      const auto device = in[0].device();
      return Tensors{rotate(in[0].transpose(1, 2), cos.to(device), sin.to(device))};
    };
    expect_like_cpu(turned, {random({2, 3, 7, 32}, type)}, "rotate");
  }
}

TEST_F(GpuDevice, NarrowBranchOfAFloat32Residual) {
  for (const auto type : {c10::ScalarType::BFloat16, c10::ScalarType::Half}) {
    const at::Tensor residual = random({70, 64}, c10::ScalarType::Float);
    expect_like_cpu(
        [](const auto& in) {
          const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2], 1e-5);
          return Tensors{sum, norm};
        },
        {residual, random({70, 64}, type), random({64}, c10::ScalarType::Float)}, "add_rms_norm");
  }
}

TEST_F(GpuDevice, ConversionsAreExact) {
  expect_exact_conversions(c10::Device(c10::DeviceType::CUDA));
}

TEST_F(GpuDevice, CrossEntropyIsThatOfTheCpu) {
  for (const auto type : kTypes) {
    const at::Tensor logits = random({33, 1000}, type) * 4;
    const at::Tensor targets = at::arange(33) * 30;
    targets[4] = -100;
    at::Tensor expected = logits.clone(), actual = on_gpu(logits);
    const at::Tensor losses = cross_entropy_losses(actual, on_gpu(targets), -100);
    const at::Tensor cpu_losses = cross_entropy_rows_(expected, targets, -100);
    cross_entropy_rows_(actual, on_gpu(targets), -100);
    expect_close(losses.cpu(), cpu_losses.to(c10::ScalarType::Double), 16, "losses");
    expect_close(actual.cpu(), expected.to(c10::ScalarType::Double), 16, "gradient");
  }
}

TEST_F(GpuDevice, AdamWIsThatOfTheCpu) {
  for (const auto type : kTypes) {
    std::vector<at::Tensor> expected[4], actual[4];
    for (const int64_t count : {3, 700, 100000}) {
      for (int kind = 0; kind < 4; ++kind) {
        const at::Tensor values = random({count}, type);
        expected[kind].push_back(kind == 3 ? values.abs() : values);
        actual[kind].push_back(on_gpu(expected[kind].back()));
      }
    }
    const AdamWOptions options = {.learning_rate = 1e-3};
    adamw_(expected[0], expected[1], expected[2], expected[3], options, 3);
    adamw_(actual[0], actual[1], actual[2], actual[3], options, 3);
    for (const int kind : {0, 2, 3}) {
      for (size_t i = 0; i < expected[kind].size(); ++i) {
        expect_close(actual[kind][i].cpu(), expected[kind][i].to(c10::ScalarType::Double), 8,
                     "updated");
      }
    }
  }
}

}  // namespace
}  // namespace tinyllama::kernels
