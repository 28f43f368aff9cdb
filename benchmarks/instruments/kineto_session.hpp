// One recording of Kineto, libtorch's profiler.
#pragma once

#include <torch/csrc/autograd/profiler_kineto.h>

#include <memory>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments {

/// What is recorded beside names and times.
struct KinetoDetail {
  bool shapes = false;
  bool memory = false;
  bool flops = false;
};

/// Records from construction to stop(), or to its end where nobody stops it. Waits for the device
/// at both. libtorch has one such recording at a time.
class KinetoSession {
 public:
  KinetoSession(const Device& device, const KinetoDetail& detail);
  ~KinetoSession();
  KinetoSession(const KinetoSession&) = delete;
  KinetoSession& operator=(const KinetoSession&) = delete;

  std::unique_ptr<torch::autograd::profiler::ProfilerResult> stop();

 private:
  Device device_;
  bool running_ = true;
};

/// Kineto lists kernels, copies, fills and annotations of a GPU alike; only the activity type tells
/// them apart.
bool is_kernel(const torch::autograd::profiler::KinetoEvent& event, const Device& device);
/// A copy from, to, or within the GPU's memory.
bool is_device_copy(const torch::autograd::profiler::KinetoEvent& event, const Device& device);

}  // namespace tinyllama::instruments
