// Passes the model's ranges on to the profiler of the device's vendor.
#pragma once

#include <ATen/record_function.h>

#include <string>

namespace tinyllama::training {

/// While it lives, every range (component, phase) is pushed and popped as roctx range (ROCm), NVTX
/// range (CUDA) or ITT task (CPU, VTune), whichever this libtorch was built with: rocprofv3, Nsight
/// Systems and VTune show them. See docs/rocprofv3.md.
class RangeEmitter {
 public:
  /// Throws std::invalid_argument where this libtorch has none of them.
  RangeEmitter();
  ~RangeEmitter();
  RangeEmitter(const RangeEmitter&) = delete;
  RangeEmitter& operator=(const RangeEmitter&) = delete;

  /// "roctx or NVTX", "ITT", or nothing.
  static std::string available();

 private:
  at::CallbackHandle callback_;
};

}  // namespace tinyllama::training
