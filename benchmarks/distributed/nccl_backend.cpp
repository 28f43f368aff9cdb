// NCCL, and RCCL, which a ROCm build of libtorch presents under the same names.
#include "benchmarks/distributed/backend.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace tinyllama::distributed {

bool has_nccl() {
  return true;
}

c10::intrusive_ptr<c10d::Backend> connect_nccl(const Rendezvous& rendezvous) {
  const LaunchEnvironment& where = rendezvous.where();
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = rendezvous.timeout();
  const auto store = c10::make_intrusive<c10d::PrefixStore>("nccl", rendezvous.store());
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, where.rank, where.world_size, options);
}

}  // namespace tinyllama::distributed
