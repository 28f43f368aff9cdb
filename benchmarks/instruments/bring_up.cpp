#include "benchmarks/instruments/bring_up.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <stdexcept>

#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/host_machine.hpp"

namespace tinyllama::instruments {
namespace {

Device device_of(char** argv, const MachineChoice& choice) {
  // The ranks of a host would all take its first processors.
  if (!choice.local_rank) pin_openmp_threads(argv, choice.threads);
  // Before the device is asked: few threads do not reach all caches.
  set_threads(choice.threads);
  return Device::select(choice.device, choice.local_rank);
}

// Which attention there is depends on what is allowed.
DeviceTraits traits_of(const Device& device, const LibraryChoices& choices) {
  choose_libraries(device, choices);
  return device_traits(device.torch());
}

}  // namespace

BringUp::BringUp(const char* program, char** argv, const MachineChoice& choice)
    : device_(device_of(argv, choice)),
      current_(device_.torch()),
      traits_(traits_of(device_, choice.libraries)) {
  if (!traits_.no_own_kernels.empty() && choice.says_notes)
    fmt::print(stderr, "{}: note: {}\n", program, traits_.no_own_kernels);
}

Variant BringUp::resolve(const Variant& variant, Dtype dtype) const {
  const std::string refusal = refuse_variant(variant, dtype, traits_);
  if (!refusal.empty())
    throw std::invalid_argument(fmt::format("--variant '{}': {}", variant.name(), refusal));
  return resolved(variant, dtype, traits_);
}

void start_computing() {
  host_allocator::install();
  start_autograd_threads();
}

}  // namespace tinyllama::instruments
