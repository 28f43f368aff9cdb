#include "benchmarks/distributed/process_group.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "benchmarks/distributed/rank_lost.hpp"
#include "benchmarks/instruments/host_machine.hpp"

namespace tinyllama::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What a rank that is alive needs to come out of its own failed operation, at the most.
constexpr milliseconds kPatience(5000);

// c10d logs pages of stack frames for what is told in one line here. NCCL's watchdog says what
// nobody else does.
void silence(const std::string& backend) {
  if (backend == "gloo" && std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr)
    FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

// Gloo writes to connections that the other side may have closed: that is an error of the
// operation, and not to be the end of this process.
void survive_closed_connections() {
  std::signal(SIGPIPE, SIG_IGN);
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

void Pending::wait() {
  if (!work_) return;
  try {
    work_->wait();
  } catch (const std::exception& error) {
    group_->give_up(operation_, started_, error);
  }
  work_.reset();
}

ProcessGroup::ProcessGroup(const LaunchEnvironment& where, const instruments::Device& device,
                           milliseconds timeout, const Agreement& agreement)
    : where_(where), device_(device) {
  if (where.world_size == 1) return;
  if (!has_backend()) {
    throw std::invalid_argument(fmt::format(
        "{}: this program was built without Gloo's headers, so ranks cannot talk to each other; "
        "install libgloo-dev and run scripts/bench --setup-only",
        where.name()));
  }
  Agreement all = agreement;
  all["--device"] = std::string(to_string(device.backend()));
  all["back-end"] = backend_of(device);
  silence(all.at("back-end"));
  survive_closed_connections();
  const instruments::OnAllProcessors for_their_threads;
  rendezvous_.emplace(where, timeout, all);
  const auto started = Clock::now();
  try {
    backend_ = connect(*rendezvous_, device);
  } catch (const std::invalid_argument&) {
    throw;
  } catch (const std::exception& error) {
    give_up("connecting the ranks", started, error);
  }
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
// rank that is alive but computes comes to its next operation within the timeout.
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
      rendezvous_->find_lost_ranks(std::max(timeout - spent, std::min(kPatience, timeout)));
  const std::string who = lost.empty()
                              ? "every rank answers, so the network or the operation itself failed"
                              : fmt::format("{} {} not answer: dead, hanging or cut off",
                                            rank_words(lost), lost.size() == 1 ? "does" : "do");
  throw RankLostError(fmt::format("{}: {} ({})", what, who, why));
}

template <typename Start>
Pending ProcessGroup::start(const char* operation, Start begin) {
  if (!backend_) return {};
  const auto started = Clock::now();
  try {
    return {*this, operation, begin()};
  } catch (const std::exception& error) {
    give_up(operation, started, error);
  }
}

Pending ProcessGroup::all_reduce(const at::Tensor& values) {
  return start("all_reduce", [&] {
    std::vector<at::Tensor> tensors = {values};
    return backend_->allreduce(tensors);
  });
}

Pending ProcessGroup::reduce_scatter(const at::Tensor& share, const at::Tensor& whole) {
  if (!backend_) share.copy_(whole);
  return start("reduce_scatter", [&] {
    at::Tensor output = share;
    at::Tensor input = whole;
    return backend_->_reduce_scatter_base(output, input);
  });
}

Pending ProcessGroup::all_gather(const at::Tensor& whole, const at::Tensor& share) {
  // In place where the share is a part of the whole.
  if (!backend_ && whole.data_ptr() != share.data_ptr()) whole.copy_(share);
  return start("all_gather", [&] {
    at::Tensor output = whole;
    at::Tensor input = share;
    return backend_->_allgather_base(output, input);
  });
}

Pending ProcessGroup::broadcast(const at::Tensor& values) {
  return start("broadcast", [&] {
    std::vector<at::Tensor> tensors = {values};
    return backend_->broadcast(tensors);
  });
}

void ProcessGroup::barrier() {
  c10d::BarrierOptions options;
  if (device_.is_gpu()) options.device = device_.torch();
  start("barrier", [&] { return backend_->barrier(options); }).wait();
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
  const at::Tensor value = numbers(1).fill_(mine);
  broadcast(value).wait();
  return value.item<double>();
}

double ProcessGroup::largest_number(double mine) {
  const std::vector<double> all = gather_numbers(mine);
  return *std::max_element(all.begin(), all.end());
}

std::vector<std::string> ProcessGroup::gather_texts(const std::string& name,
                                                    const std::string& mine) {
  if (!rendezvous_) return {mine};
  const auto started = Clock::now();
  try {
    return rendezvous_->exchange(name, mine);
  } catch (const std::exception& error) {
    give_up(name.c_str(), started, error);
  }
}

}  // namespace tinyllama::distributed
