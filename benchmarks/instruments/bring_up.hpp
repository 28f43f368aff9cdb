// What every program does between its options and its first tensor.
#pragma once

#include <c10/core/DeviceGuard.h>

#include <optional>
#include <string>

#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/library_choices.hpp"
#include "model/variant.hpp"

namespace tinyllama::instruments {

/// What the options say of the machine.
struct MachineChoice {
  std::string device = "auto";
  std::optional<int> threads{};
  LibraryChoices libraries{};
  std::optional<int> local_rank{};  ///< of one of several ranks, among those of its host
  bool says_notes = true;           ///< not on every rank
};

/// Threads, device and libraries, set in the one order in which each finds what it depends on. The
/// device is the current one for as long as this lives.
class BringUp {
 public:
  /// May start the program anew, by `argv` (pin_openmp_threads). Says on standard error where our
  /// own kernels do not run on the device, and why. Throws what Device::select and choose_libraries
  /// throw.
  BringUp(const char* program, char** argv, const MachineChoice& choice);

  const Device& device() const { return device_; }
  const DeviceTraits& traits() const { return traits_; }
  /// What the variant is on this device. Throws std::invalid_argument that names --variant and the
  /// reason where it cannot run in this dtype.
  Variant resolve(const Variant& variant, Dtype dtype) const;

 private:
  Device device_;
  c10::DeviceGuard current_;
  DeviceTraits traits_;
};

/// Before the first tensor: the allocator that counts, and autograd's threads. oneDNN may announce
/// itself on standard output.
void start_computing();

}  // namespace tinyllama::instruments
