#include "benchmarks/scaling/collectives.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace tinyllama::scaling {
namespace {

constexpr int64_t kSmallestBytes = 1024;
constexpr int64_t kSizeFactor = 4;
constexpr int64_t kWarmUpCalls = 3;
constexpr double kShareOfMinTime = 0.1;
// Elements count up to this and start again: they and the sums stay exact in every type.
constexpr int64_t kPattern = 4;
// What the second of the two ranks adds that an element's sum is made of.
constexpr double kSecond = 2;

// A collective of one size, with its tensors.
class Message {
 public:
  Message(Collective collective, int64_t bytes, Dtype dtype, ProcessGroup& group)
      : collective_(collective),
        bytes_(bytes),
        group_(group),
        whole_(at::zeros({bytes / storage_bytes(dtype)},
                         at::TensorOptions(storage_type(dtype)).device(group.device().torch()))),
        share_(at::zeros({whole_.numel() / group.size()}, whole_.options())) {}

  void run() {
    switch (collective_) {
      case Collective::all_reduce:
        return group_.all_reduce(whole_).wait();
      case Collective::reduce_scatter:
        return group_.reduce_scatter(share_, whole_).wait();
      case Collective::all_gather:
        return group_.all_gather(whole_, share_).wait();
    }
  }

  /// Fills in small whole numbers, runs, and compares every element with what it must be. Returns
  /// the first that is wrong, empty where none is. In a sum two ranks have a part in each element,
  /// other ones in the next, so that it is small and tells whose part is missing or counted twice.
  std::string prove() {
    const at::Tensor index = at::arange(whole_.numel(), whole_.options().dtype(at::kLong));
    const at::Tensor pattern = (index.remainder(kPattern) + 1).to(whole_.scalar_type());
    const auto owned_by = [&](int64_t shift) {
      return (index + shift).remainder(group_.size()).eq(group_.rank()).to(whole_.scalar_type());
    };
    const at::Tensor part = owned_by(0) * pattern + owned_by(1) * kSecond;
    const int64_t own = share_.numel() * group_.rank();
    at::Tensor expected;
    at::Tensor actual;
    whole_.copy_(part);
    if (collective_ == Collective::all_gather) {
      whole_.zero_();
      share_.copy_(pattern.narrow(0, own, share_.numel()));
      expected = pattern;
      actual = whole_;
    } else if (collective_ == Collective::reduce_scatter) {
      expected = pattern.narrow(0, own, share_.numel()) + kSecond;
      actual = share_;
    } else {
      expected = pattern + kSecond;
      actual = whole_;
    }
    run();
    group_.device().synchronize();
    std::string failure;
    const at::Tensor wrong = actual.ne(expected).nonzero();
    if (wrong.numel() > 0) {
      const int64_t at = wrong[0][0].item<int64_t>();
      failure = fmt::format("wrong result: {} of {} bytes on rank {}: element {} is {}, not {}",
                            to_string(collective_), bytes_, group_.rank(), at,
                            actual[at].item<double>(), expected[at].item<double>());
    }
    // Sums of sums would run out of the type's range.
    whole_.zero_();
    share_.zero_();
    return failure;
  }

  /// Seconds of a call; `calls` are timed as one.
  RankTimes time(int64_t calls) {
    return time_together(group_, {.run = [this] { run(); }, .calls = calls}, 1);
  }

 private:
  Collective collective_;
  int64_t bytes_;
  ProcessGroup& group_;
  at::Tensor whole_;
  at::Tensor share_;
};

struct MessageRecord {
  Collective collective;
  int64_t bytes;
  int64_t calls = 1;
  RowRecord row = {};
};

// Tensors live for one measurement only: all sizes together would not fit where the largest does.
Message message_of(const MessageRecord& record, Dtype dtype, ProcessGroup& group) {
  return {record.collective, record.bytes, dtype, group};
}

std::vector<MessageRecord> planned_messages(const ScalingOptions& options,
                                            const ProcessGroup& group,
                                            const std::vector<int64_t>& bucket_bytes) {
  int64_t largest = kSmallestBytes;
  for (const int64_t bytes : bucket_bytes) largest = std::max(largest, bytes);
  const int64_t granularity = storage_bytes(options.dtype) * group.size();
  std::vector<MessageRecord> records;
  for (const Collective collective :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    if (!options.measures(std::string(to_string(collective)))) continue;
    for (const int64_t bytes :
         message_sizes(options.max_bytes.value_or(largest), bucket_bytes, granularity)) {
      const std::string name = fmt::format("{}/{}/bytes:{}/ranks:{}", to_string(collective),
                                           to_string(options.dtype), bytes, group.size());
      records.push_back({collective, bytes, 1, {.name = name, .unit = "us"}});
    }
  }
  return records;
}

// What is wrong with its result on any rank, empty where nothing is.
std::string prepare(MessageRecord& record, const ScalingOptions& options, ProcessGroup& group) {
  Message message = message_of(record, options.dtype, group);
  const std::string proof = "proof of " + record.row.name;
  group.enter(proof);
  if (options.verify) {
    for (const std::string& failure : group.gather_texts(proof, message.prove())) {
      if (!failure.empty()) return failure;
    }
  }
  const double seconds = message.time(kWarmUpCalls).seconds.front();
  record.calls = agreed_iterations(group, options.min_seconds * kShareOfMinTime, seconds);
  return {};
}

void measure(MessageRecord& record, const ScalingOptions& options, ProcessGroup& group) {
  Message message = message_of(record, options.dtype, group);
  message.time(1);  // fresh memory
  const RankTimes mine = message.time(record.calls);
  const RoundSamples samples = gather_samples(group, mine.seconds);
  const double seconds = slowest_seconds(samples);
  const double algorithm = static_cast<double>(record.bytes) / seconds * 1e-9;
  add_waits(record.row, group, mine, record.calls);
  harness::Counters counters = {
      {"ranks", group.size()},
      {"message_bytes", static_cast<double>(record.bytes)},
      {"algorithm_GB_per_second", algorithm},
      {"bus_GB_per_second", algorithm * bus_factor(record.collective, group.size())}};
  counters.merge(wait_counters(record.row));
  record.row.repetitions.push_back({seconds, mine.cpu_seconds, record.calls, counters});
  record.row.samples.push_back(samples);
}

}  // namespace

std::string_view to_string(Collective collective) {
  constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather"};
  return kNames[static_cast<size_t>(collective)];
}

std::vector<int64_t> message_sizes(int64_t largest, const std::vector<int64_t>& bucket_bytes,
                                   int64_t granularity) {
  std::vector<int64_t> sizes;
  const auto add = [&](int64_t bytes) {
    sizes.push_back((bytes + granularity - 1) / granularity * granularity);
  };
  for (int64_t bytes = kSmallestBytes; bytes <= largest; bytes *= kSizeFactor) add(bytes);
  for (const int64_t bytes : bucket_bytes) {
    if (bytes <= largest) add(bytes);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

double bus_factor(Collective collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  return collective == Collective::all_reduce ? 2 * others : others;
}

std::string measure_collectives(const ScalingOptions& options, ProcessGroup& group,
                                console::Progress& progress,
                                const std::vector<int64_t>& bucket_bytes, ScalingResults& results) {
  if (group.size() == 1) return {};
  std::vector<MessageRecord> records = planned_messages(options, group, bucket_bytes);
  if (records.empty()) return {};
  for (MessageRecord& record : records) {
    if (any_rank_interrupted(group)) return {};
    const std::string failure = prepare(record, options, group);
    if (!failure.empty()) return failure;
  }
  measure_rounds(
      options, group, progress, results, records,
      [&](MessageRecord& record, const std::string& place) {
        group.enter(fmt::format("{}, {}", place, record.row.name));
        measure(record, options, group);
      },
      [&] { return fmt::format("{} messages", records.size()); });
  return {};
}

}  // namespace tinyllama::scaling
