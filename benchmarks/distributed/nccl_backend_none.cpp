// For builds of libtorch without a GPU, or without NCCL's headers.
#include <stdexcept>

#include "benchmarks/distributed/backend.hpp"

namespace tinyllama::distributed {

bool has_nccl() {
  return false;
}

c10::intrusive_ptr<c10d::Backend> connect_nccl(const Rendezvous&) {
  throw std::logic_error("built without NCCL");
}

}  // namespace tinyllama::distributed
