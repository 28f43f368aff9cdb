// The ranks of a run and what they can do together.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "benchmarks/distributed/rendezvous.hpp"
#include "benchmarks/instruments/device.hpp"
#include "model/parameters.hpp"

namespace c10d {
class ProcessGroup;
}

namespace tinyllama::distributed {

/// Connects the ranks; throws std::runtime_error where that fails.
using ConnectRanks = c10::intrusive_ptr<c10d::Backend> (*)(const Rendezvous&);

/// The back-ends of c10d, each from a file of its own; null where its headers were missing.
ConnectRanks gloo_backend();
ConnectRanks nccl_backend();  ///< RCCL in a build for ROCm

class ProcessGroup;

/// When this rank started an operation, and when it began and ended to wait for it: seconds of its
/// own clock, own_seconds().
struct OperationTimes {
  double started;
  double waited;
  double ended;
};

/// std::chrono::steady_clock, in seconds.
double own_seconds();

/// An operation that was started; its tensors must stay as they are until wait() has returned.
class Pending {
 public:
  Pending() = default;  ///< of a world of one: nothing to wait for
  Pending(ProcessGroup& group, const char* operation, c10::intrusive_ptr<c10d::Work> work)
      : group_(&group),
        operation_(operation),
        started_(std::chrono::steady_clock::now()),
        work_(std::move(work)) {}

  /// On a GPU the current stream waits, not this thread. Throws RankLostError.
  void wait();

 private:
  ProcessGroup* group_ = nullptr;
  const char* operation_ = "";
  std::chrono::steady_clock::time_point started_;
  c10::intrusive_ptr<c10d::Work> work_;
};

class ProcessGroup {
 public:
  /// Meets the other ranks, over NCCL where tensors are on a GPU and this program was built with
  /// it, else over Gloo; alone, it is a world of one whose operations are copies or nothing. Throws
  /// what Rendezvous throws, std::invalid_argument where neither back-end was built in, and
  /// RankLostError where the ranks cannot be connected.
  ProcessGroup(const LaunchEnvironment& where, const instruments::Device& device,
               std::chrono::milliseconds timeout, const Agreement& agreement);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return where_.rank; }
  int size() const { return where_.world_size; }
  bool is_first() const { return where_.rank == 0; }
  const LaunchEnvironment& where() const { return where_; }
  const instruments::Device& device() const { return device_; }
  /// "gloo", "nccl"; "none" for a world of one.
  std::string backend_name() const;

  /// What the run is doing from now on ("step 17"), for the message of whoever loses a rank.
  void enter(std::string stage) { stage_ = std::move(stage); }

  /// Called, with what has failed, before this rank asks the others who is lost: that takes up to
  /// the timeout, and a launcher may end this process meanwhile. It must not throw.
  void on_loss(std::function<void(const std::string&)> tell) { tell_of_loss_ = std::move(tell); }

  /// Sum over all ranks, in place. Dense tensors only.
  Pending all_reduce(const at::Tensor& values);
  /// The largest of all ranks, likewise.
  Pending all_reduce_largest(const at::Tensor& values);
  /// `share` [n] becomes this rank's part of the sum of all ranks' `whole` [n x ranks].
  Pending reduce_scatter(const at::Tensor& share, const at::Tensor& whole);
  /// `whole` [n x ranks] becomes every rank's `share` [n], in the order of ranks.
  Pending all_gather(const at::Tensor& whole, const at::Tensor& share);
  /// Returns when every rank has called it. Waits without using the processor.
  void barrier();

  /// From now on adds the times of every operation but a barrier, in the order in which they were
  /// waited for; null: no more. On a GPU they are those of the host, which does not wait.
  void record_operations(std::vector<OperationTimes>* into) { recorded_ = into; }
  /// Rendezvous::align_clock of own_seconds(). All ranks have to call it. Throws RankLostError.
  ClockOffset align_clock();

  /// The same ranks as c10d::Reducer takes them.
  c10::intrusive_ptr<c10d::ProcessGroup> for_reducer() const;
  /// Runs what c10d does with them by itself. Throws RankLostError where it fails.
  void attempt(const char* operation, const std::function<void()>& run);

  /// Exchange numbers and texts, outside what is timed.
  std::vector<double> gather_numbers(double mine);
  double number_of_first(double mine);
  double largest_number(double mine);
  std::vector<std::string> gather_texts(const std::string& name, const std::string& mine);

  /// Empty where all ranks hold the same tensors, to the bit; else which ranks differ from rank 0.
  /// All ranks have to call it, with a `name` that no other call has.
  std::string differing_ranks(const std::string& name, const NamedTensors& tensors);

 private:
  friend class Pending;

  template <typename Start>
  Pending start(const char* operation, Start begin);
  at::Tensor numbers(int64_t count) const;
  /// Ends in RankLostError, which names who is missing. `started`: the operation.
  [[noreturn]] void give_up(const char* operation, std::chrono::steady_clock::time_point started,
                            const std::exception& cause);

  LaunchEnvironment where_;
  instruments::Device device_;
  std::string stage_ = "set-up";
  std::optional<Rendezvous> rendezvous_;
  bool has_lost_a_rank_ = false;
  std::vector<OperationTimes>* recorded_ = nullptr;
  std::function<void(const std::string&)> tell_of_loss_;
  c10::intrusive_ptr<c10d::Backend> backend_;
};

/// `devices`: each rank's device_identity(); empty where it is unknown. Throws
/// std::invalid_argument that names two ranks on one device: NCCL would hang, or fail with a
/// message that does not say so.
void refuse_shared_devices(const std::vector<std::string>& devices);

/// The elements of a dense tensor, whatever its order of dimensions, as a view [numel] of its
/// memory. Throws std::logic_error where it has gaps or overlaps.
at::Tensor dense_values(const at::Tensor& tensor);

}  // namespace tinyllama::distributed
