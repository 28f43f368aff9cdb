// NCCL, and RCCL, which a ROCm build of libtorch presents under the same names. CMake defines
// TINY_LLAMA_WITH_NCCL where it has found the headers.
#include "benchmarks/distributed/process_group.hpp"

#ifdef TINY_LLAMA_WITH_NCCL
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace tinyllama::distributed {

namespace {

c10::intrusive_ptr<c10d::Backend> connect_ranks(const Rendezvous& rendezvous) {
  const LaunchEnvironment& where = rendezvous.where();
  // CleanUpOnly: its watchdog ends the operations that a lost rank leaves, not the process, which
  // has results to write.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = rendezvous.timeout();
  const auto store = c10::make_intrusive<c10d::PrefixStore>("nccl", rendezvous.store());
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, where.rank, where.world_size, options);
}

}  // namespace

ConnectRanks nccl_backend() {
  return connect_ranks;
}

}  // namespace tinyllama::distributed

#else
tinyllama::distributed::ConnectRanks tinyllama::distributed::nccl_backend() {
  return nullptr;
}
#endif
