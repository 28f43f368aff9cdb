#include "benchmarks/distributed/fingerprint.hpp"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "benchmarks/distributed/gradient_hooks.hpp"

namespace tinyllama::distributed {

std::string fingerprint(const NamedTensors& tensors) {
  uint64_t hash = 14695981039346656037ULL;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = dense_values(tensor.detach()).cpu();
    const auto* bytes = static_cast<const unsigned char*>(values.const_data_ptr());
    const size_t count = values.nbytes();
    size_t at = 0;
    for (; at + sizeof(uint64_t) <= count; at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, sizeof word);
      // A multiplication alone would never carry high bits down.
      hash = (hash ^ word) * 1099511628211ULL;
      hash ^= hash >> 29;
    }
    for (; at < count; ++at) hash = (hash ^ bytes[at]) * 1099511628211ULL;
  }
  return fmt::format("{:016x}", hash);
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
