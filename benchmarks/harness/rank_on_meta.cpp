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

namespace tinyllama::harness {
namespace {

constexpr const char* kGroupName = "0";
constexpr const char* kGroupText = "data_parallel";

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
  explicit AbsentRanks(const PlaceInWorld& place)
      : Backend(static_cast<int>((place.rank - place.group_start()) / place.group_stride()),
                static_cast<int>(place.group_size())),
        place_(place) {}

  const std::string getBackendName() const override { return "fake"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& /*options*/) override {
    const auto number = std::make_tuple(++collectives_, /*between two=*/false);
    const auto group = std::make_tuple(std::string(kGroupName), std::string(kGroupText));
    const std::vector<int64_t> whole;
    const int64_t elements = tensors.front().numel();
    RECORD_PARAM_COMMS_DATA(number, group, tensors, tensors, rank_, "allreduce", elements, elements,
                            tensors.front().scalar_type(), whole, whole,
                            static_cast<int>(place_.group_start()),
                            static_cast<int>(place_.group_stride()), size_);
    return c10::make_intrusive<DoneWork>(tensors);
  }

  int64_t collectives() const { return collectives_; }

 private:
  PlaceInWorld place_;
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

}  // namespace

int64_t PlaceInWorld::group_start() const {
  const int64_t in_stage = group_size() * shares.tensor;
  return rank / in_stage * in_stage + rank % shares.tensor;
}

struct RankOnMeta::Impl {
  explicit Impl(const PlaceInWorld& its_place)
      : place(its_place), backend(c10::make_intrusive<AbsentRanks>(place)) {}

  PlaceInWorld place;
  c10::intrusive_ptr<AbsentRanks> backend;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::unique_ptr<c10d::Reducer> reducer;
  int64_t buckets = 0;
  int64_t before = 0;  // collectives of earlier backwards
};

RankOnMeta::RankOnMeta(const PlaceInWorld& place, const NamedTensors& parameters)
    : impl_(std::make_unique<Impl>(place)) {
  using Group = c10d::ProcessGroup;
  AbsentRanks& backend = *impl_->backend;
  impl_->group = c10::make_intrusive<Group>(backend.getRank(), backend.getSize());
  impl_->group->setBackend(c10::DeviceType::Meta, Group::BackendType::CUSTOM, impl_->backend);
  impl_->group->setDefaultBackend(Group::BackendType::CUSTOM);
  std::vector<at::Tensor> tensors;
  for (const auto& [name, parameter] : parameters) tensors.push_back(parameter);
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      tensors, {c10d::kDefaultFirstBucketBytes, c10d::kDefaultBucketBytesCap},
      std::vector<bool>(tensors.size(), false)));
  // as DistributedDataParallel does: gradients come in the reverse order of the parameters
  std::ranges::reverse(buckets);
  impl_->buckets = std::ssize(buckets);
  impl_->reducer = distributed::make_reducer(
      tensors, buckets, impl_->group, std::vector<bool>(tensors.size(), false),
      int64_t{c10d::kDefaultBucketBytesCap}, /*find_unused_parameters=*/false,
      /*gradient_as_bucket_view=*/false, std::unordered_map<size_t, std::string>(),
      int64_t{c10d::kDefaultFirstBucketBytes}, /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false);
}

RankOnMeta::~RankOnMeta() = default;

void RankOnMeta::describe_groups() const {
  const PlaceInWorld& place = impl_->place;
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < place.group_size(); ++i)
    ranks.push_back(place.group_start() + i * place.group_stride());
  const nlohmann::ordered_json groups = {{{"pg_name", kGroupName},
                                          {"pg_desc", kGroupText},
                                          {"backend_config", "fake"},
                                          {"pg_size", place.group_size()},
                                          {"ranks", ranks}}};
  at::RecordFunction range(at::RecordScope::USER_SCOPE);
  const c10::IValue text(groups.dump());
  range.before("## process_group:init ##", c10::ArrayRef<const c10::IValue>(text));
}

void RankOnMeta::begin_backward() {
  impl_->before = impl_->backend->collectives();
  impl_->reducer->prepare_for_backward({});
}

void RankOnMeta::end_backward() const {
  const int64_t reduced = impl_->backend->collectives() - impl_->before;
  if (reduced == impl_->buckets) return;
  throw std::logic_error(
      fmt::format("{} of {} buckets of gradients were reduced: a parameter got no gradient",
                  reduced, impl_->buckets));
}

}  // namespace tinyllama::harness
