// What libtorch's operators do in a piece of work: how many there are, the FLOPs of their matrix
// multiplications (GEMMs), the kernels they launch on a GPU, and Kineto's (libtorch's profiler's)
// recording of it all.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/instruments/device.hpp"

namespace torch::autograd::profiler {
struct KinetoEvent;
struct ProfilerResult;
}  // namespace torch::autograd::profiler

namespace tinyllama::instruments {

/// Operators that pass through libtorch's dispatcher while `work` runs, on any thread, those that
/// other operators call included.
int64_t count_operators(const std::function<void()>& work);

struct OperatorProfile {
  /// FLOPs of the GEMMs, counted by Kineto from the shapes of their operands: a multiply-add is 2.
  /// Independent of the model's own formulas, which it proves.
  int64_t gemm_flops = 0;
  /// Operators (sorted) that Kineto does not count and that may contain GEMMs: gemm_flops may lack
  /// theirs.
  std::vector<std::string> unknown_operators;
  /// Kernels launched on the GPU; nothing on a CPU, and where the profiler did not see them all.
  std::optional<int64_t> kernels;
  /// Time of all kernels, copies and fills on the GPU; nothing in the same cases.
  std::optional<double> device_seconds{};
  std::string lack{};  ///< SeenWork::lack()
  /// How scaled_dot_product_attention was computed: "flash", "efficient", "cudnn" or "math", on AMD
  /// GPUs with the library; empty where nobody asked for it.
  std::string attention_backend{};
};

/// Runs `work` once under the profiler; not to be timed. Throws what `work` throws.
OperatorProfile profile_operators(const Device& device, const std::function<void()>& work);

/// A GEMM of libtorch's, whose FLOPs Kineto computes from the shapes of its operands, or our own,
/// of [m, k] and [n, k].
bool is_gemm(std::string_view name);
/// Whether an operator that is not known multiplies matrices, by its name.
bool is_gemm_like(std::string_view name);
/// The backend of attention whose operator this is; empty for other operators.
std::string attention_backend_of(std::string_view name);
/// Operators that touch no element: views, allocations, and those that only call others. Their own
/// time is the library's, not the computation's.
bool is_dispatch_only(std::string_view name);

/// What is recorded beside names and times.
struct KinetoDetail {
  bool shapes = false;
  bool memory = false;
  bool flops = false;
};

/// Records from construction to stop(), or to destruction without one. Waits for the device at
/// both. libtorch has one such recording at a time.
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
/// The GPU's work in a recording, compared with what the host launched: some versions of ROCm lose
/// the kernels of graphs, and kernels that were not seen must not count as zero.
struct SeenWork {
  int64_t launches = 0;  ///< of kernels and graphs, by calls of the runtime
  int64_t kernels = 0;   ///< at least one a launch, where none was lost
  double seconds = 0;    ///< of kernels, copies and fills

  void add(const torch::autograd::profiler::KinetoEvent& event, const Device& device);
  /// Why number and time of the kernels are unknown: none was recorded, or fewer than were
  /// launched. Empty where they are known.
  std::string lack() const;
};

/// Puts number and time of the kernels into the profile, or why they are unknown.
void keep(const SeenWork& seen, OperatorProfile& profile);

/// Whether this call of CUDA's or HIP's runtime launches kernels.
bool is_launch(std::string_view name);

/// For sorting: of each thread in the order of their begins, what encloses others before them.
bool opens_before(const torch::autograd::profiler::KinetoEvent* a,
                  const torch::autograd::profiler::KinetoEvent* b);

/// An operator, a node or a range of libtorch on the host, and not a call of the GPU's runtime,
/// whose correlation numbers are a series of their own.
bool is_host_work(const torch::autograd::profiler::KinetoEvent& event);

}  // namespace tinyllama::instruments
