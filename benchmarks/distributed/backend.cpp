#include "benchmarks/distributed/backend.hpp"

#include <stdexcept>

namespace tinyllama::distributed {

bool has_backend() {
  return has_gloo() || has_nccl();
}

std::string backend_of(const instruments::Device& device) {
  return device.is_gpu() && has_nccl() ? "nccl" : "gloo";
}

c10::intrusive_ptr<c10d::Backend> connect(const Rendezvous& rendezvous,
                                          const instruments::Device& device) {
  if (device.is_gpu() && has_nccl()) return connect_nccl(rendezvous);
  if (has_gloo()) return connect_gloo(rendezvous);
  throw std::invalid_argument(
      "more than one rank: this program was built without Gloo's headers, so its ranks cannot talk "
      "to each other; install libgloo-dev and run scripts/bench --setup-only");
}

}  // namespace tinyllama::distributed
