// Our own kernels in a program of the fake GPU: those that emulation_testing.hpp compiles for the
// host, launched on its streams and so captured like any other. In place of
// model/kernels/launch.hpp's functions, whose library the linker then leaves out.
#include <mutex>
#include <vector>

#include "model/kernels/launch.hpp"
#include "tests/fakes/gpu/fake_gpu.hpp"

namespace tinyllama::kernels {
namespace {

/// The emulation runs one block at a time.
void run_alone(const std::function<void()>& kernel) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  kernel();
}

void launch_emulated(GpuStream stream, std::function<void()> kernel) {
  const c10::Stream own = fake_gpu::current_stream(fake_gpu::current_device());
  TORCH_CHECK(reinterpret_cast<c10::StreamId>(stream) == own.id(),
              "a kernel was launched on another stream than the current one");
  fake_gpu::launch(own, "tinyllama", fake_gpu::Work::kernel,
                   [kernel = std::move(kernel)] { run_alone(kernel); });
}

/// A kernel of the table that keeps what it was given until it runs.
template <auto kernel>
struct Launched;
template <class Entry, class Arguments,
          void (*Entry::*kernel)(const Arguments&, int64_t, GpuStream)>
struct Launched<kernel> {
  static void run(const Arguments& arguments, int64_t rows, GpuStream stream) {
    launch_emulated(stream, [arguments, rows] {
      (std::get<Entry>(gpu_emulated::table()).*kernel)(arguments, rows, nullptr);
    });
  }
};

template <class T>
void adamw(const AdamWElements<T>* tensors, const int64_t* elements, int64_t count,
           GpuStream stream) {
  launch_emulated(stream, [all = std::vector(tensors, tensors + count),
                           sizes = std::vector(elements, elements + count), count] {
    std::get<GpuKernelsOf<T>>(gpu_emulated::table())
        .adamw(all.data(), sizes.data(), count, nullptr);
  });
}

template <class T, class Branch>
void norm_gradient(const RmsNormGradientRows<T, Branch>& arguments, T* weight_gradient,
                   int64_t rows, GpuStream stream) {
  launch_emulated(stream, [arguments, weight_gradient, rows] {
    std::get<GpuNormKernels<T, Branch>>(gpu_emulated::table())
        .rms_norm_gradient(arguments, weight_gradient, rows, nullptr);
  });
}

template <class T>
void enter(GpuKernelsOf<T>& kernels) {
  using Of = GpuKernelsOf<T>;
  kernels = {.rms_norm = &Launched<&Of::rms_norm>::run,
             .rotary = &Launched<&Of::rotary>::run,
             .swiglu = &Launched<&Of::swiglu>::run,
             .swiglu_gradient = &Launched<&Of::swiglu_gradient>::run,
             .cross_entropy = &Launched<&Of::cross_entropy>::run,
             .adamw = &adamw<T>};
}

template <class T, class Branch>
void enter(GpuNormKernels<T, Branch>& kernels) {
  kernels = {.add_rms_norm = &Launched<&GpuNormKernels<T, Branch>::add_rms_norm>::run,
             .rms_norm_gradient = &norm_gradient<T, Branch>};
}

}  // namespace

const GpuKernels* gpu_kernels() {
  static const GpuKernels kernels = [] {
    GpuKernels table{};
    std::apply([](auto&... entries) { (enter(entries), ...); }, table);
    return table;
  }();
  return &kernels;
}

std::string why_no_gpu_kernels(c10::Device /*device*/) {
  return {};
}

GpuStream current_gpu_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace tinyllama::kernels
