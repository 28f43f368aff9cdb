#include "benchmarks/distributed/process_group.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "benchmarks/instruments/host_machine.hpp"
#include "core/digest.hpp"

namespace tinyllama::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What a rank that is alive needs to come out of its own failed operation, at the most.
constexpr milliseconds kAnswerTime(5000);
constexpr const char* kBarrier = "barrier";

double to_seconds(Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

void refuse_shared_devices(const std::vector<std::string>& devices) {
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    const auto first = std::ranges::find(devices, devices[rank]) - devices.begin();
    if (devices[rank].empty() || std::cmp_equal(first, rank)) continue;
    throw std::invalid_argument(fmt::format(
        "ranks {} and {} have the same device, {}: NCCL takes one rank a device; start as many "
        "ranks a host as it has GPUs, each with a local rank of its own, or name --device cpu",
        first, rank, devices[rank]));
  }
}

double own_seconds() {
  return to_seconds(Clock::now());
}

void Pending::wait() {
  if (!work_) return;
  const double waited = own_seconds();
  try {
    work_->wait();
  } catch (const std::exception& error) {
    group_->give_up(operation_, started_, error);
  }
  work_.reset();
  if (group_->recorded_ != nullptr && operation_ != kBarrier)
    group_->recorded_->push_back({to_seconds(started_), waited, own_seconds()});
}

ProcessGroup::ProcessGroup(const LaunchEnvironment& where, const instruments::Device& device,
                           milliseconds timeout, const Agreement& agreement)
    : where_(where), device_(device) {
  if (where.world_size == 1) return;
  const bool over_nccl = device.is_gpu() && nccl_backend() != nullptr;
  const ConnectRanks connect = over_nccl ? nccl_backend() : gloo_backend();
  if (connect == nullptr) {
    throw std::invalid_argument(fmt::format(
        "{}: this program was built without Gloo's headers, so ranks cannot talk to each other; "
        "install libgloo-dev and run scripts/bench --setup-only",
        where.name()));
  }
  Agreement all = agreement;
  all["--device"] = std::string(to_string(device.backend()));
  all["back-end"] = over_nccl ? "nccl" : "gloo";
  // c10d logs pages of stack frames for what is told in one line here. NCCL's watchdog says what
  // nobody else does.
  if (!over_nccl && std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    // Once: tests run several ranks in one process.
    static std::once_flag is_quiet;
    std::call_once(is_quiet, [] { FLAGS_caffe2_log_level = c10::GLOG_FATAL; });
  }
  // Gloo writes to connections that the other side may have closed: that is an error of the
  // operation, and not to be the end of this process.
  std::signal(SIGPIPE, SIG_IGN);
  const instruments::OnAllProcessors for_their_threads;
  rendezvous_.emplace(where, timeout, all);
  if (over_nccl)
    refuse_shared_devices(gather_texts("device", instruments::device_identity(device)));
  attempt("connecting the ranks", [&] { backend_ = connect(*rendezvous_); });
}

// The back-end's destructor waits for operations that are under way, which a lost rank will never
// take part in: then it stays until the process ends.
ProcessGroup::~ProcessGroup() {
  if (has_lost_a_rank_) static_cast<void>(backend_.release());
}

std::string ProcessGroup::backend_name() const {
  return backend_ ? backend_->getBackendName() : "none";
}

// Ends this rank's connections first: whoever waits for this one then fails as well, at once. A
// rank that is alive but computes comes to its next operation within the timeout. Gloo's
// monitoredBarrier would find the lost one over those very connections, for rank 0 only, and NCCL
// has none.
void ProcessGroup::give_up(const char* operation, Clock::time_point started,
                           const std::exception& cause) {
  has_lost_a_rank_ = true;
  if (backend_) backend_->abort();
  const std::string what = fmt::format("{}: {}: {}", where_.name(), stage_, operation);
  const std::string why = first_line(cause);
  if (tell_of_loss_) tell_of_loss_(fmt::format("{} failed, asking who is lost ({})", what, why));
  const milliseconds timeout = rendezvous_->timeout();
  const auto spent = std::chrono::duration_cast<milliseconds>(Clock::now() - started);
  const std::vector<int> lost =
      rendezvous_->find_lost_ranks(std::max(timeout - spent, std::min(kAnswerTime, timeout)));
  const std::string who = lost.empty()
                              ? "every rank answers, so the network or the operation itself failed"
                              : fmt::format("{} {} not answer: dead, hanging or cut off",
                                            rank_words(lost), lost.size() == 1 ? "does" : "do");
  throw RankLostError(fmt::format("{}: {} ({})", what, who, why));
}

template <typename Start>
Pending ProcessGroup::start(const char* operation, Start begin) {
  Pending pending;
  if (backend_) attempt(operation, [&] { pending = {*this, operation, begin()}; });
  return pending;
}

Pending ProcessGroup::all_reduce(const at::Tensor& values) {
  std::vector<at::Tensor> tensors = {values};
  return start("all_reduce", [&] { return backend_->allreduce(tensors); });
}

Pending ProcessGroup::all_reduce_largest(const at::Tensor& values) {
  std::vector<at::Tensor> tensors = {values};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  return start("all_reduce", [&] { return backend_->allreduce(tensors, options); });
}

Pending ProcessGroup::reduce_scatter(const at::Tensor& share, const at::Tensor& whole) {
  at::Tensor output = share;
  at::Tensor input = whole;
  if (!backend_) output.copy_(input);
  return start("reduce_scatter", [&] { return backend_->_reduce_scatter_base(output, input); });
}

Pending ProcessGroup::all_gather(const at::Tensor& whole, const at::Tensor& share) {
  at::Tensor output = whole;
  at::Tensor input = share;
  // In place where the share is a part of the whole.
  if (!backend_ && output.data_ptr() != input.data_ptr()) output.copy_(input);
  return start("all_gather", [&] { return backend_->_allgather_base(output, input); });
}

void ProcessGroup::barrier() {
  c10d::BarrierOptions options;
  if (device_.is_gpu()) options.device = device_.torch();
  start(kBarrier, [&] { return backend_->barrier(options); }).wait();
}

c10::intrusive_ptr<c10d::ProcessGroup> ProcessGroup::for_reducer() const {
  // It asks for a store of its own, which nothing of what the Reducer does looks into.
  auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(),
                                                       rank(), size());
  if (backend_) {
    group->setBackend(device_.torch().type(), c10d::ProcessGroup::strToBackendType(backend_name()),
                      backend_);
  }
  return group;
}

void ProcessGroup::attempt(const char* operation, const std::function<void()>& run) {
  const auto started = Clock::now();
  try {
    run();
  } catch (const std::exception& error) {
    give_up(operation, started, error);
  }
}

ClockOffset ProcessGroup::align_clock() {
  ClockOffset offset;
  if (rendezvous_)
    attempt("aligning the clocks", [&] { offset = rendezvous_->align_clock(own_seconds); });
  return offset;
}

at::Tensor ProcessGroup::numbers(int64_t count) const {
  return at::empty({count}, at::TensorOptions(c10::ScalarType::Double).device(device_.torch()));
}

std::vector<double> ProcessGroup::gather_numbers(double mine) {
  const at::Tensor share = numbers(1).fill_(mine);
  const at::Tensor whole = numbers(size());
  all_gather(whole, share).wait();
  const at::Tensor here = whole.cpu();
  return {here.const_data_ptr<double>(), here.const_data_ptr<double>() + here.numel()};
}

double ProcessGroup::number_of_first(double mine) {
  return gather_numbers(mine).front();
}

double ProcessGroup::largest_number(double mine) {
  return std::ranges::max(gather_numbers(mine));
}

std::vector<std::string> ProcessGroup::gather_texts(const std::string& name,
                                                    const std::string& mine) {
  std::vector<std::string> texts = {mine};
  if (rendezvous_) attempt(name.c_str(), [&] { texts = rendezvous_->exchange(name, mine); });
  return texts;
}

std::string ProcessGroup::differing_ranks(const std::string& name, const NamedTensors& tensors) {
  Digest digest;
  for (const auto& [tensor_name, tensor] : tensors) {
    const at::Tensor values = dense_values(tensor.detach()).cpu();
    digest.add(values.const_data_ptr(), values.nbytes());
  }
  const std::vector<std::string> all = gather_texts(name, digest.text());
  std::vector<int> different;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all.front()) different.push_back(static_cast<int>(rank));
  }
  if (different.empty()) return {};
  return fmt::format("the weights of {} are not those of rank 0", rank_words(different));
}

at::Tensor dense_values(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense())
    throw std::logic_error("a tensor with gaps cannot be sent as it is");
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

}  // namespace tinyllama::distributed
