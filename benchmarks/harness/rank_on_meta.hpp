// One rank of a data-parallel world that nobody has: its step runs on libtorch's meta device, where
// nothing is computed, and its collectives are those that the rank would start.
#pragma once

#include <cstdint>
#include <memory>

#include "model/parameters.hpp"
#include "model/share.hpp"

namespace tinyllama::harness {

/// Ranks are numbered as Megatron-LM does: those that share layers (tensor parallelism) side by
/// side, then those that share a batch, then the stages of a pipeline.
struct PlaceInWorld {
  int64_t world = 1;  ///< ranks; a multiple of those that share a model
  int64_t rank = 0;
  Parallelism shares = {};

  /// The ranks that sum this rank's gradients with it: how many, the first, and the distance from
  /// one to the next.
  int64_t group_size() const { return world / (shares.tensor * shares.pipeline); }
  int64_t group_start() const;
  int64_t group_stride() const { return shares.tensor; }
};

/// c10d's reducer over the gradients of a model on meta, with the buckets of
/// torch.nn.parallel.DistributedDataParallel's first step (1 MiB, then 25 MiB). Its process group
/// answers every collective at once. Each is recorded as NCCL's are: c10d::allreduce_, and in it
/// record_param_comms with group, size and elements.
class RankOnMeta {
 public:
  /// `parameters` in the model's order, on meta; one at least.
  RankOnMeta(const PlaceInWorld& place, const NamedTensors& parameters);
  ~RankOnMeta();
  RankOnMeta(const RankOnMeta&) = delete;
  RankOnMeta& operator=(const RankOnMeta&) = delete;

  /// Records the groups, as torch.distributed does where a profiler begins. Then before each
  /// backward, once its gradients are cleared.
  void describe_groups() const;
  void begin_backward();
  /// After it: throws std::logic_error where a bucket was not reduced, since a parameter of it got
  /// no gradient.
  void end_backward() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tinyllama::harness
