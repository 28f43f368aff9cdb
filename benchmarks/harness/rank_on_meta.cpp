#include "benchmarks/harness/rank_on_meta.hpp"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/distributed/make_reducer.hpp"
#include "model/share_hooks.hpp"

namespace tinyllama::harness {
namespace {

// Ranks of the world from `start` on, `stride` apart.
struct Group {
  const char* name;  // a number, as torch.distributed gives
  const char* text;
  int64_t start;
  int64_t stride;
  int64_t size;
  int64_t rank;  // in it
};

Group of_gradients(const PlaceInWorld& place) {
  const int64_t start = place.group_start();
  const int64_t stride = place.group_stride();
  return {"0", "data_parallel", start, stride, place.group_size(), (place.rank - start) / stride};
}

Group of_layers(const PlaceInWorld& place) {
  return {"1", "tensor_parallel",   place.rank - place.share(),
          1,   place.shares.tensor, place.share()};
}

class DoneWork final : public c10d::Work {
 public:
  explicit DoneWork(std::vector<at::Tensor> results) : results_(std::move(results)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  std::vector<at::Tensor> results_;
};

// As c10d::FakeProcessGroup, which cannot serve: its header needs Python's, its work has no result
// for the reducer to take, and it does not record what is communicated.
class AbsentRanks final : public c10d::Backend {
 public:
  explicit AbsentRanks(const Group& group)
      : Backend(static_cast<int>(group.rank), static_cast<int>(group.size)), group_(group) {}

  const std::string getBackendName() const override { return "fake"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& /*options*/) override {
    const auto number = std::make_tuple(++collectives_, /*between two=*/false);
    const auto group = std::make_tuple(std::string(group_.name), std::string(group_.text));
    const std::vector<int64_t> whole;
    const int64_t elements = tensors.front().numel();
    RECORD_PARAM_COMMS_DATA(number, group, tensors, tensors, rank_, "allreduce", elements, elements,
                            tensors.front().scalar_type(), whole, whole,
                            static_cast<int>(group_.start), static_cast<int>(group_.stride), size_);
    return c10::make_intrusive<DoneWork>(tensors);
  }

  int64_t collectives() const { return collectives_; }
  const Group& group() const { return group_; }

 private:
  Group group_;
  int64_t collectives_ = 0;
};

// c10d has kernels for devices with data alone.
std::tuple<std::vector<at::Tensor>, c10::intrusive_ptr<c10d::Work>> allreduce_on_meta(
    at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<c10d::ReduceOp>& operation,
    const std::optional<at::Tensor>& /*sparse_indices*/, bool /*async*/, int64_t /*timeout*/) {
  std::vector<at::Tensor> reduced = tensors.vec();
  c10d::AllreduceOptions options;
  options.reduceOp = *operation;
  auto work = group->getBackend(c10::DeviceType::Meta)->allreduce(reduced, options);
  return {std::move(reduced), std::move(work)};
}

TORCH_LIBRARY_IMPL(c10d, Meta, m) {
  m.impl("allreduce_", allreduce_on_meta);
}

c10::intrusive_ptr<c10d::ProcessGroup> process_group(
    const c10::intrusive_ptr<AbsentRanks>& backend) {
  using Type = c10d::ProcessGroup::BackendType;
  auto group = c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize());
  group->setBackend(c10::DeviceType::Meta, Type::CUSTOM, backend);
  group->setDefaultBackend(Type::CUSTOM);
  return group;
}

class HooksOnMeta final : public ShareHooks {
 public:
  HooksOnMeta(const Group& of, int64_t vocab_size)
      : ShareHooks(of.rank, of.size, vocab_size),
        group_(process_group(c10::make_intrusive<AbsentRanks>(of))) {}

 private:
  void all_reduce(const at::Tensor& values, Reduction reduction) override {
    std::vector<at::Tensor> tensors = {values.detach()};
    c10d::AllreduceOptions options;
    if (reduction == Reduction::largest) options.reduceOp = c10d::ReduceOp::MAX;
    group_->allreduce(tensors, options)->wait();
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

nlohmann::ordered_json described(const Group& group) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < group.size; ++i) ranks.push_back(group.start + i * group.stride);
  return {{"pg_name", group.name},
          {"pg_desc", group.text},
          {"backend_config", "fake"},
          {"pg_size", group.size},
          {"ranks", ranks}};
}

}  // namespace

int64_t PlaceInWorld::group_start() const {
  const int64_t in_stage = group_size() * shares.tensor;
  return rank / in_stage * in_stage + share();
}

struct RankOnMeta::Impl {
  PlaceInWorld place;
  std::optional<HooksOnMeta> hooks;
  c10::intrusive_ptr<AbsentRanks> backend;  // that sums gradients; null without
  std::unique_ptr<c10d::Reducer> reducer;
  int64_t buckets = 0;
  int64_t before = 0;  // collectives of earlier backwards
};

RankOnMeta::RankOnMeta(const PlaceInWorld& place, int64_t vocab_size)
    : impl_(std::make_unique<Impl>()) {
  impl_->place = place;
  if (place.shares.tensor > 1) impl_->hooks.emplace(of_layers(place), vocab_size);
}

RankOnMeta::~RankOnMeta() = default;

ModelHooks* RankOnMeta::hooks() const {
  return impl_->hooks ? &*impl_->hooks : nullptr;
}

void RankOnMeta::sum_gradients(const NamedTensors& parameters) {
  if (impl_->place.group_size() == 1) return;
  impl_->backend = c10::make_intrusive<AbsentRanks>(of_gradients(impl_->place));
  std::vector<at::Tensor> tensors;
  for (const auto& [name, parameter] : parameters) tensors.push_back(parameter);
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      tensors, {c10d::kDefaultFirstBucketBytes, c10d::kDefaultBucketBytesCap},
      std::vector<bool>(tensors.size(), false)));
  // as DistributedDataParallel does: gradients come in the reverse order of the parameters
  std::ranges::reverse(buckets);
  impl_->buckets = std::ssize(buckets);
  impl_->reducer = distributed::make_reducer(
      tensors, buckets, process_group(impl_->backend), std::vector<bool>(tensors.size(), false),
      int64_t{c10d::kDefaultBucketBytesCap}, /*find_unused_parameters=*/false,
      /*gradient_as_bucket_view=*/false, std::unordered_map<size_t, std::string>(),
      int64_t{c10d::kDefaultFirstBucketBytes}, /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false);
}

void RankOnMeta::describe_groups() const {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  if (impl_->backend) groups.push_back(described(impl_->backend->group()));
  if (impl_->hooks) groups.push_back(described(of_layers(impl_->place)));
  if (groups.empty()) return;
  at::RecordFunction range(at::RecordScope::USER_SCOPE);
  const c10::IValue text(groups.dump());
  range.before("## process_group:init ##", c10::ArrayRef<const c10::IValue>(text));
}

void RankOnMeta::begin_backward() {
  if (!impl_->reducer) return;
  impl_->before = impl_->backend->collectives();
  impl_->reducer->prepare_for_backward({});
}

void RankOnMeta::end_backward() const {
  if (!impl_->reducer) return;
  const int64_t reduced = impl_->backend->collectives() - impl_->before;
  if (reduced == impl_->buckets) return;
  throw std::logic_error(
      fmt::format("{} of {} buckets of gradients were reduced: a parameter got no gradient",
                  reduced, impl_->buckets));
}

}  // namespace tinyllama::harness
