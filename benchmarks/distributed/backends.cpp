// The back-ends of c10d. libtorch has them inside, but not the headers that theirs include, of
// which only types are used that libtorch makes itself, so that their version does not matter.
// CMake defines TINY_LLAMA_WITH_GLOO and TINY_LLAMA_WITH_NCCL where it has found them.
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "benchmarks/distributed/process_group.hpp"

#ifdef TINY_LLAMA_WITH_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif
#ifdef TINY_LLAMA_WITH_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace tinyllama::distributed {

#ifdef TINY_LLAMA_WITH_GLOO
namespace {

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
}

// As torch.distributed does: the interface that the user names. Ranks that meet on the loopback
// address are all on this host; elsewhere the host's own name decides.
std::shared_ptr<gloo::transport::Device> transport(const std::string& master_address) {
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0')
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  if (is_loopback(master_address))
    return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

// Without an end of its own, a rank whose neighbours are alive would wait for its timeout.
class ClosingGloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  // The contexts are libtorch's own, whose type information it keeps to itself.
  __attribute__((no_sanitize("vptr"))) void abort() override {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

c10::intrusive_ptr<c10d::Backend> connect_over_gloo(const Rendezvous& rendezvous) {
  const LaunchEnvironment& where = rendezvous.where();
  auto options = c10d::ProcessGroupGloo::Options::create(rendezvous.timeout());
  options->devices.push_back(transport(where.master_address));
  const auto store = c10::make_intrusive<c10d::PrefixStore>("gloo", rendezvous.store());
  return c10::make_intrusive<ClosingGloo>(store, where.rank, where.world_size, options);
}

}  // namespace

ConnectRanks gloo_backend() {
  return connect_over_gloo;
}
#else
ConnectRanks gloo_backend() {
  return nullptr;
}
#endif

#ifdef TINY_LLAMA_WITH_NCCL
namespace {

c10::intrusive_ptr<c10d::Backend> connect_over_nccl(const Rendezvous& rendezvous) {
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
  return connect_over_nccl;
}
#else
ConnectRanks nccl_backend() {
  return nullptr;
}
#endif

}  // namespace tinyllama::distributed
