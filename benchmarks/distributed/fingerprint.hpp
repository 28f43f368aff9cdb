// Tells whether ranks hold the same tensors, without sending them.
#pragma once

#include <string>

#include "benchmarks/distributed/process_group.hpp"
#include "model/parameters.hpp"

namespace tinyllama::distributed {

/// Differs, but for chance, where any bit of any tensor does. 16 hexadecimal digits.
std::string fingerprint(const NamedTensors& tensors);

/// Empty where all ranks hold the same, to the bit; else which ranks differ from rank 0. All ranks
/// have to call it, with a `name` that no other call has.
std::string differing_ranks(ProcessGroup& group, const std::string& name,
                            const NamedTensors& tensors);

}  // namespace tinyllama::distributed
