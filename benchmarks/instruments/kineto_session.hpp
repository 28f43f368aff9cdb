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
/// A kernel, a copy or a fill.
bool is_device_work(const torch::autograd::profiler::KinetoEvent& event, const Device& device);
/// A copy between the host's memory and the GPU's.
bool is_transfer(const torch::autograd::profiler::KinetoEvent& event, const Device& device);
/// An operator, a node or a range of libtorch on the host, and not a call of the GPU's runtime,
/// whose numbers of correlation are others.
bool is_host_work(const torch::autograd::profiler::KinetoEvent& event);

}  // namespace tinyllama::instruments
