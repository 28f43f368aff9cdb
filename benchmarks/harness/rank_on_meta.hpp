// One rank of a world that nobody has: its step runs on libtorch's meta device, where nothing is
// computed, and its collectives are those that the rank would start.
#pragma once

#include <cstdint>
#include <memory>

#include "model/model_hooks.hpp"
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
  /// Which share of the layers it has; the ranks that have the others stand around it.
  int64_t share() const { return rank % shares.tensor; }
};

/// The groups of a rank, which answer every collective at once. Each is recorded as NCCL's are:
/// c10d::allreduce_, and in it record_param_comms with group, size and elements.
class RankOnMeta {
 public:
  /// `vocab_size`: of the whole model.
  RankOnMeta(const PlaceInWorld& place, int64_t vocab_size);
  ~RankOnMeta();
  RankOnMeta(const RankOnMeta&) = delete;
  RankOnMeta& operator=(const RankOnMeta&) = delete;

  /// The all-reduces of tensor parallelism, for the model that is the rank's share; null where each
  /// rank has whole layers.
  ModelHooks* hooks() const;

  /// From now on the gradients of these parameters, in the model's order, on meta and one at least,
  /// are summed over those that have the same share: c10d's reducer, with the buckets of
  /// torch.nn.parallel.DistributedDataParallel's first step (1 MiB, then 25 MiB). Does nothing
  /// where no other has it.
  void sum_gradients(const NamedTensors& parameters);

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
