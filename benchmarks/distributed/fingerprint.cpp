#include "benchmarks/distributed/fingerprint.hpp"

#include <fmt/format.h>

#include <vector>

#include "benchmarks/distributed/digest.hpp"
#include "benchmarks/distributed/gradient_hooks.hpp"

namespace tinyllama::distributed {

std::string fingerprint(const NamedTensors& tensors) {
  Digest digest;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = dense_values(tensor.detach()).cpu();
    digest.add(values.const_data_ptr(), values.nbytes());
  }
  return digest.text();
}

std::string differing_ranks(ProcessGroup& group, const std::string& name,
                            const NamedTensors& tensors) {
  const std::vector<std::string> all = group.gather_texts(name, fingerprint(tensors));
  std::vector<int> different;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all.front()) different.push_back(static_cast<int>(rank));
  }
  if (different.empty()) return {};
  return fmt::format("the weights of {} are not those of rank 0", rank_words(different));
}

}  // namespace tinyllama::distributed
