#include "benchmarks/harness/case.hpp"

#include <fmt/format.h>

namespace tinyllama::harness {

std::string Case::name() const {
  return fmt::format("{}/{}/{}/{}/{}/batch:{}/seq:{}", component->name, to_string(pass),
                     workload.variant.name(), size, to_string(workload.dtype), workload.batch,
                     workload.seq);
}

}  // namespace tinyllama::harness
