// A GPU that lives in the CPU's memory, for tests: a library that registers under DeviceType::CUDA
// what libtorch_cuda would. Preloaded into an unmodified program of a CPU libtorch, or linked into
// one whose own kernels are the emulated ones, it makes the paths for GPUs run.
//
//   guard.cpp       devices, streams, events, synchronisation
//   allocator.cpp   the caching allocator, with its rules of rounding, splitting and pools
//   operators.cpp   every operator: the CPU's kernel over the same memory (host_tensors.cpp)
//   attention.cpp   the attention kernels that libtorch has for GPUs, and the choice among them
//   graph.cpp       captures and replays
//   profiler.cpp    kernels, copies and launches as Kineto's events
//   hip_runtime.cpp, cuda_runtime.cpp   the functions of the runtimes that gpu_runtime.cpp calls
//   emulated_kernels.cpp   our own kernels, in the programs that are linked with the fake
//
// Work is done at once, by the thread that launches it; when it counts as done is kept on a
// timeline a stream, on which each kernel takes FAKE_GPU_KERNEL_US longer than it took here.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fake_gpu {

using Clock = std::chrono::steady_clock;

/// From environment variables, read once.
struct Settings {
  int devices;               // FAKE_GPU_DEVICES, 2
  int64_t memory_bytes;      // FAKE_GPU_MEMORY of each, 4 GiB
  bool is_nvidia;            // FAKE_GPU_VENDOR, amd or nvidia
  std::string name;          // FAKE_GPU_NAME, "AMD Instinct MI300X" or "NVIDIA H100 80GB HBM3"
  std::string architecture;  // FAKE_GPU_ARCHITECTURE, gfx942 or 9.0
  int multiprocessors;       // FAKE_GPU_MULTIPROCESSORS, 304 or 132
  bool are_partitions;       // FAKE_GPU_PARTITIONS, of one card: same UUID and bus address
  bool has_flash_attention;  // FAKE_GPU_FLASH_ATTENTION, 1; 0 leaves sdpa the math backend
  std::chrono::microseconds kernel_time;  // FAKE_GPU_KERNEL_US, 0
  int64_t fault_at;          // FAKE_GPU_FAULT_AT, this kernel leaves an error that sticks; 0: none
  std::string fault_kernel;  // FAKE_GPU_FAULT_KERNEL: of those whose name has this in it
  int64_t hang_at;           // FAKE_GPU_HANG_AT, this kernel never ends; 0: none
  int64_t backward_events;   // FAKE_GPU_BACKWARD_EVENTS, of so many pairs of events one lies in the
                             // wrong order; 0: none
  int64_t workspace_bytes;   // FAKE_GPU_WORKSPACE, which the BLAS keeps for each thread and stream
  int64_t refused_allocation;  // FAKE_GPU_REFUSED_ALLOCATION, this one is out of memory; 0: none
  bool reports;                // FAKE_GPU_REPORT, counts on standard error at the end
};
const Settings& settings();

/// Throws what a device in error answers to every call.
void check_alive();

/// What a capture refuses: waiting, and asking for the outcome of work. It is then invalid.
void refuse_in_capture(std::string_view what);

// ---- guard.cpp

c10::DeviceIndex current_device();
c10::Stream current_stream(c10::DeviceIndex device);

enum class Work { kernel, copy_to_device, copy_to_host, copy_on_device };

/// Does the work, or keeps it for the replays where `stream` is being captured.
void launch(const c10::Stream& stream, const std::string& name, Work kind,
            std::function<void()> work);
/// One step of a replay: as launch(), without a call of the runtime of its own.
void launch_replayed(const c10::Stream& stream, const std::string& name, Work kind,
                     const std::function<void()>& work);
/// The host waits until all of the stream is done.
void wait_for(const c10::Stream& stream);

// ---- allocator.cpp

c10::DeviceAllocator& allocator();
/// Of a device, as its driver sees it: what no segment holds.
int64_t free_memory_bytes(c10::DeviceIndex device);
/// While a stream is captured, its allocations come from a pool of their own, which keeps its
/// segments as long as the graph lives.
void begin_pool(c10::MempoolId_t pool);
void end_pool(c10::MempoolId_t pool);

// ---- graph.cpp

bool is_capturing();
bool is_captured(const c10::Stream& stream);
/// The pool of the capture that is underway.
c10::MempoolId_t pool_of_capture();
/// Keeps one step of the capture that is underway.
void keep_step(const std::string& name, Work kind, std::function<void()> work);
void invalidate_capture();

// ---- profiler.cpp

bool is_recording();
void note_work(const c10::Stream& stream, const std::string& name, Work kind,
               Clock::time_point begin, Clock::time_point end);
/// A call of the runtime on the host.
void note_call(const std::string& name, Clock::time_point begin, Clock::time_point end);

// ---- counts for the report

struct Counts {
  std::atomic<int64_t> kernels = 0, suspects = 0, allocations = 0, copies = 0, events = 0,
                       waits = 0, captures = 0, replays = 0, segments = 0;
};
Counts& counts();

}  // namespace fake_gpu
