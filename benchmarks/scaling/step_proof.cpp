#include "benchmarks/scaling/step_proof.hpp"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "benchmarks/distributed/gradient_hooks.hpp"
#include "model/relative_error.hpp"

namespace tinyllama::scaling {
namespace {

// Sums in another order differ by rounding: some hundred units in the last place of the type.
double allowed_error(Dtype dtype) {
  switch (storage_type(dtype)) {
    case c10::ScalarType::BFloat16:
      return 2e-2;
    case c10::ScalarType::Half:
      return 5e-3;
    default:
      return uses_autocast(dtype) ? 2e-2 : 1e-5;
  }
}

struct Worst {
  double error = 0;
  std::string name;

  void add(const std::string& tensor, double found) {
    if (found <= error) return;
    error = found;
    name = tensor;
  }
};

std::vector<at::Tensor> gradients_of(const NamedTensors& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters) gradients.push_back(parameter.grad().clone());
  return gradients;
}

// All ranks take rank 0's word, which alone has compared.
std::string shared_failure(distributed::ProcessGroup& group, const std::string& name,
                           const std::string& mine) {
  return group.gather_texts(name, mine).front();
}

std::string differing_ranks(distributed::ProcessGroup& group, const std::string& name,
                            const NamedTensors& parameters) {
  const std::vector<std::string> all = group.gather_texts(name, fingerprint(parameters));
  std::vector<int> different;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all.front()) different.push_back(static_cast<int>(rank));
  }
  if (different.empty()) return {};
  return fmt::format("wrong result: after one step the weights of {} are not those of rank 0",
                     distributed::rank_words(different));
}

}  // namespace

std::string fingerprint(const NamedTensors& tensors) {
  uint64_t hash = 14695981039346656037ULL;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = distributed::dense_values(tensor.detach()).cpu();
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

StepProof prove_step(StepSession& session, const ScalingOptions& options,
                     distributed::ProcessGroup& group) {
  StepProof proof;
  Worst worst;
  std::vector<at::Tensor> expected;
  group.enter("proof of the step");
  session.clear_gradients();
  if (group.is_first()) {
    session.compute_global_gradients();
    expected = gradients_of(session.parameters());
  }
  for (const StepMode mode : {StepMode::no_overlap, StepMode::overlap}) {
    session.clear_gradients();
    session.attach(mode);
    session.compute_gradients();
    session.detach();
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto& [name, parameter] = session.parameters()[i];
      worst.add("gradient of " + name,
                largest_error(to_values(parameter.grad()), to_values(expected[i])).relative);
    }
  }
  expected.clear();
  proof.max_rel_error = group.number_of_first(worst.error);
  std::string wrong;
  if (worst.error > allowed_error(options.dtype)) {
    wrong = fmt::format(
        "wrong result: {}, summed over {} ranks, differs from one process with all samples by "
        "{:.3g} "
        "of its largest magnitude, allowed are {:g}",
        worst.name, group.size(), worst.error, allowed_error(options.dtype));
  }
  proof.failure = shared_failure(group, "gradients proved", wrong);
  if (!proof.failure.empty()) return proof;
  session.update();
  proof.failure = differing_ranks(group, "weights proved", session.parameters());
  if (!proof.failure.empty() || !options.shard_optimizer) return proof;

  session.attach(StepMode::sharded);
  session.run_sharded();
  session.detach();
  const NamedTensors sharded = session.sharded_parameters();
  proof.failure = differing_ranks(group, "sharded weights proved", sharded);
  if (!proof.failure.empty()) return proof;
  for (size_t i = 0; i < sharded.size() && group.is_first(); ++i) {
    const auto& [name, parameter] = session.parameters()[i];
    const double error = largest_error(to_values(sharded[i].second), to_values(parameter)).relative;
    if (error > allowed_error(options.dtype)) {
      wrong = fmt::format(
          "wrong result: after one step of a sharded optimizer {} differs from that of a whole one "
          "by "
          "{:.3g} of its largest magnitude, allowed are {:g}",
          name, error, allowed_error(options.dtype));
    }
  }
  proof.failure = shared_failure(group, "sharded step proved", wrong);
  return proof;
}

}  // namespace tinyllama::scaling
