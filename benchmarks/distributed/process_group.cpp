#include "benchmarks/distributed/process_group.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "benchmarks/distributed/rank_lost.hpp"

namespace tinyllama::distributed {
namespace {

// What a rank that is alive needs to come out of its own failed operation, at the most.
constexpr std::chrono::milliseconds kPatience(5000);

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
    group_->give_up(operation_, error);
  }
  work_.reset();
}

ProcessGroup::ProcessGroup(const LaunchEnvironment& where, const instruments::Device& device,
                           std::chrono::milliseconds timeout, const Agreement& agreement)
    : where_(where), device_(device) {
  if (where.world_size == 1) return;
  if (!has_backend()) {
    throw std::invalid_argument(fmt::format(
        "{}: this program was built without Gloo's headers, so ranks cannot talk to each other; "
        "install libgloo-dev and run scripts/bench --setup-only",
        where.name()));
  }
  rendezvous_.emplace(where, timeout, agreement);
  try {
    backend_ = connect(*rendezvous_, device);
  } catch (const std::invalid_argument&) {
    throw;
  } catch (const std::exception& error) {
    give_up("connecting the ranks", error);
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

void ProcessGroup::give_up(const char* operation, const std::exception& cause) {
  has_lost_a_rank_ = true;
  const std::vector<int> lost =
      rendezvous_->find_lost_ranks(std::min(kPatience, rendezvous_->timeout()));
  const std::string who = lost.empty()
                              ? "every rank answers, so the network or the operation itself failed"
                              : fmt::format("{} {} not answer: dead, hanging or cut off",
                                            rank_words(lost), lost.size() == 1 ? "does" : "do");
  throw RankLostError(
      fmt::format("{}: {}: {}: {} ({})", where_.name(), stage_, operation, who, first_line(cause)));
}

template <typename Start>
Pending ProcessGroup::start(const char* operation, Start begin) {
  if (!backend_) return {};
  try {
    return {*this, operation, begin()};
  } catch (const std::exception& error) {
    give_up(operation, error);
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
  try {
    return rendezvous_->exchange(name, mine);
  } catch (const std::exception& error) {
    give_up(name.c_str(), error);
  }
}

}  // namespace tinyllama::distributed
