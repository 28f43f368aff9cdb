// Which of libtorch's libraries compute on a device: BLAS, attention, and how precisely GEMMs add
// up.
#pragma once

#include <map>
#include <string>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments {

/// "default" leaves the choice to libtorch.
struct LibraryChoices {
  std::string blas = "default";       ///< default, cublas, cublaslt; ROCm: rocblas, hipblaslt, ck
  std::string attention = "default";  ///< of sdpa: default, flash, efficient, cudnn, math
};

/// For the whole process. Narrow GEMMs add up their parts in float32 on a GPU, which libtorch does
/// not do by itself. Throws std::invalid_argument, naming option, value and rule, for a library
/// that this libtorch does not have on this device.
void choose_libraries(const Device& device, const LibraryChoices& choices);

/// What is in force, for the context of results: blas and the precision of sums on a GPU, and the
/// attention backends that sdpa may take.
std::map<std::string, std::string> library_settings(const Device& device);

/// The BLAS that libtorch prefers on a GPU now, as --blas names it; empty on a CPU.
std::string preferred_blas(const Device& device);

}  // namespace tinyllama::instruments
