// libtorch has Gloo inside, but not its headers, which ProcessGroupGloo.hpp includes; only types
// that libtorch makes itself are taken from them, so their version does not matter. CMake defines
// TINY_LLAMA_WITH_GLOO where it has found them.
#include "benchmarks/distributed/process_group.hpp"

#ifdef TINY_LLAMA_WITH_GLOO
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace tinyllama::distributed {
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

c10::intrusive_ptr<c10d::Backend> connect_ranks(const Rendezvous& rendezvous) {
  const LaunchEnvironment& where = rendezvous.where();
  auto options = c10d::ProcessGroupGloo::Options::create(rendezvous.timeout());
  options->devices.push_back(transport(where.master_address));
  const auto store = c10::make_intrusive<c10d::PrefixStore>("gloo", rendezvous.store());
  return c10::make_intrusive<ClosingGloo>(store, where.rank, where.world_size, options);
}

}  // namespace

ConnectRanks gloo_backend() {
  return connect_ranks;
}

}  // namespace tinyllama::distributed

#else
tinyllama::distributed::ConnectRanks tinyllama::distributed::gloo_backend() {
  return nullptr;
}
#endif
