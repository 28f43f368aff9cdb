#include <c10/util/Exception.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "tests/fakes/gpu/fake_gpu.hpp"

namespace fake_gpu {
namespace {

std::string text_of(const char* variable, const char* otherwise) {
  const char* const given = std::getenv(variable);
  return given != nullptr ? given : otherwise;
}

int64_t number_of(const char* variable, int64_t otherwise) {
  const char* const given = std::getenv(variable);
  if (given == nullptr) return otherwise;
  char* end = nullptr;
  const int64_t number = std::strtoll(given, &end, 10);
  TORCH_CHECK(end != given && *end == '\0' && number >= 0, variable, "=", given,
              ": not a whole number");
  return number;
}

Settings read_settings() {
  const bool is_nvidia = text_of("FAKE_GPU_VENDOR", "amd") == "nvidia";
  return {
      .devices = static_cast<int>(number_of("FAKE_GPU_DEVICES", 2)),
      .memory_bytes = number_of("FAKE_GPU_MEMORY", int64_t{4} << 30),
      .is_nvidia = is_nvidia,
      .name = text_of("FAKE_GPU_NAME", is_nvidia ? "NVIDIA H100 80GB HBM3" : "AMD Instinct MI300X"),
      .architecture = text_of("FAKE_GPU_ARCHITECTURE", is_nvidia ? "9.0" : "gfx942"),
      .multiprocessors =
          static_cast<int>(number_of("FAKE_GPU_MULTIPROCESSORS", is_nvidia ? 132 : 304)),
      .are_partitions = number_of("FAKE_GPU_PARTITIONS", 0) != 0,
      .has_flash_attention = number_of("FAKE_GPU_FLASH_ATTENTION", 1) != 0,
      .kernel_time = std::chrono::microseconds(number_of("FAKE_GPU_KERNEL_US", 0)),
      .fault_at = number_of("FAKE_GPU_FAULT_AT", 0),
      .fault_kernel = text_of("FAKE_GPU_FAULT_KERNEL", ""),
      .hang_at = number_of("FAKE_GPU_HANG_AT", 0),
      .backward_events = number_of("FAKE_GPU_BACKWARD_EVENTS", 0),
      .workspace_bytes = number_of("FAKE_GPU_WORKSPACE", 0),
      .refused_allocation = number_of("FAKE_GPU_REFUSED_ALLOCATION", 0),
      .reports = std::getenv("FAKE_GPU_REPORT") != nullptr,
  };
}

/// Shown when the program ends.
struct Report {
  ~Report() {
    if (!settings().reports) return;
    const Counts& seen = counts();
    std::fprintf(stderr,
                 "fake GPU: %ld kernels, %ld allocations, %ld copies, %ld events, %ld waits, "
                 "%ld captures, %ld replays, %ld segments\n",
                 seen.kernels.load(), seen.allocations.load(), seen.copies.load(),
                 seen.events.load(), seen.waits.load(), seen.captures.load(), seen.replays.load(),
                 seen.segments.load());
  }
} const report;

}  // namespace

const Settings& settings() {
  static const Settings read = read_settings();
  return read;
}

Counts& counts() {
  static Counts all;
  return all;
}

void check_alive() {
  const int64_t fault = settings().fault_at;
  if (fault == 0 || counts().suspects < fault) return;
  constexpr int kIllegalAddress = 700;  // of both runtimes
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, kIllegalAddress,
                              std::string(settings().is_nvidia ? "CUDA" : "HIP") +
                                  " error: an illegal memory access was encountered");
}

void refuse_in_capture(std::string_view what) {
  if (!is_capturing()) return;
  invalidate_capture();
  TORCH_CHECK(false, settings().is_nvidia ? "CUDA" : "HIP",
              " error: operation not permitted when stream is capturing (", what, ")");
}

}  // namespace fake_gpu
