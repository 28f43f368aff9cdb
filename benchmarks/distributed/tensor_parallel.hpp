// Ranks that compute every layer of one batch together (model/share_hooks.hpp), over a group.
#pragma once

#include <cstdint>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"
#include "model/config.hpp"
#include "model/parameters.hpp"
#include "model/share_hooks.hpp"

namespace tinyllama::distributed {

using tinyllama::tensor_share;

/// Copies this rank's share of every parameter of the whole model: of each dimension that is
/// smaller the rank's part. What the vocabulary is filled up with becomes zeros.
void copy_share(const NamedTensors& whole, const NamedTensors& share, int rank);

/// The other way round: tensors with the shapes of `whole`, put together of all ranks' `shares`
/// (parameters or gradients), the same on every rank. All ranks have to call it.
std::vector<at::Tensor> join_shares(ProcessGroup& group, const NamedTensors& whole,
                                    const std::vector<at::Tensor>& shares);

/// The collectives of a share over a group, counted.
class TensorParallel final : public ShareHooks {
 public:
  /// Holds a reference to the group. `whole`: of all ranks together.
  TensorParallel(ProcessGroup& group, const ModelConfig& whole);

  /// Until it is set again nothing is sent: each rank then computes its share alone, with wrong
  /// results, as long as a step takes without communication.
  void set_connected(bool connected) { is_connected_ = connected; }

  /// From now on the all-reduces are counted anew.
  void begin() { sent_.clear(); }
  int64_t calls() const { return static_cast<int64_t>(sent_.size()); }
  int64_t bytes() const;
  /// The all-reduces since begin() once more, without computing: what they cost alone.
  void communicate();

 private:
  void all_reduce(const at::Tensor& values, Reduction reduction) override;

  struct Message {
    int64_t elements;
    at::TensorOptions kind;
    Reduction reduction;
  };

  ProcessGroup& group_;
  bool is_connected_ = true;
  std::vector<Message> sent_;
};

}  // namespace tinyllama::distributed
