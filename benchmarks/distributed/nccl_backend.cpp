// NCCL, and RCCL, which a ROCm build of libtorch presents under the same names.
#include "benchmarks/distributed/backend.hpp"

#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace tinyllama::distributed {

bool has_nccl() {
  return true;
}

c10::intrusive_ptr<c10d::Backend> connect_nccl(const Rendezvous& rendezvous) {
  const LaunchEnvironment& where = rendezvous.where();
  // CleanUpOnly: its watchdog ends the operations that a lost rank leaves, not the process, which
  // has results to write.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = rendezvous.timeout();
  const auto store = c10::make_intrusive<c10d::PrefixStore>("nccl", rendezvous.store());
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, where.rank, where.world_size, options);
}

}  // namespace tinyllama::distributed
