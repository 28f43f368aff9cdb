#include "benchmarks/distributed/process_group.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "benchmarks/distributed/testing.hpp"
#include "model/testing.hpp"

namespace tinyllama::distributed {
namespace {

using std::chrono::milliseconds;
using testing::Listener;
using testing::run_ranks;
using testing::try_ranks;

const instruments::Device& cpu() {
  static const instruments::Device device = instruments::Device::select("cpu");
  return device;
}

TEST(AwaitListenerTest, WhoeverListensIsFoundEvenLate) {
  const Listener listener, late_one(Listener::Begin::later);
  EXPECT_EQ(await_listener("localhost", listener.port(), milliseconds(500)), "");
  EXPECT_EQ(await_listener("127.0.0.1", testing::free_port(), milliseconds(200)),
            "Connection refused");
  EXPECT_NE(await_listener("no-such-host.invalid", 1, milliseconds(100)), "");
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(200));
    late_one.listen();
  });
  EXPECT_EQ(await_listener("127.0.0.1", late_one.port(), milliseconds(10000)), "");
  late.join();
}

constexpr milliseconds kTimeout(100);

/// A store on a machine that is so busy that its answers come after the shorter waits are over.
class BusyStore final : public c10d::HashStore {
 public:
  using HashStore::wait;
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    if (timeout < kTimeout / 2) throw std::runtime_error("wait timeout");
    HashStore::wait(keys, timeout);
  }
};

StoreExchange exchange_of(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  return StoreExchange{store, testing::rank_of(rank, size, 0), "still here"};
}

TEST(StoreExchangeTest, RanksAfterASilentOneAreHeardOnABusyMachine) {
  const auto store = c10::make_intrusive<BusyStore>();
  for (const int rank : {0, 1, 3}) {
    exchange_of(store, rank, 4).state("rank " + std::to_string(rank));
    exchange_of(store, rank, 4).leave();
  }
  const Statements said = exchange_of(store, 0, 4).everyone(kTimeout);
  EXPECT_EQ(said, (Statements{"rank 0", "rank 1", std::nullopt, "rank 3"}));
}

TEST(StoreExchangeTest, ARankThatSpeaksLateIsHeardAndOneThatNeverDoesIsNot) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  StoreExchange talk = exchange_of(store, 1, 2);
  EXPECT_EQ(talk.statement_of(0, kTimeout), std::nullopt);
  EXPECT_EQ(talk.statement_of(0, milliseconds(0)), std::nullopt);
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(50));
    exchange_of(store, 0, 2).state("late");
  });
  EXPECT_EQ(talk.statement_of(0, milliseconds(10000)), "late");
  late.join();
}

TEST(DenseValuesTest, AnyOrderOfDimensionsIsOneStretchOfMemory) {
  const at::Tensor matrix = at::ones({2, 3}).t();
  const at::Tensor flat = dense_values(matrix);
  EXPECT_EQ(flat.dim(), 1);
  EXPECT_EQ(flat.numel(), 6);
  EXPECT_EQ(flat.data_ptr(), matrix.data_ptr());
  EXPECT_THROW(dense_values(at::ones({4, 4}).narrow(1, 0, 2)), std::logic_error);
}

TEST(ProcessGroupTest, SumsAreThoseOfAllRanksAndSharesInTheirOrder) {
  run_ranks(3, [](ProcessGroup& group) {
    EXPECT_EQ(group.backend_name(), "gloo");
    const at::Tensor values = at::full({5}, static_cast<double>(group.rank() + 1));
    group.all_reduce(values).wait();
    EXPECT_TRUE(values.equal(at::full({5}, 6.0)));
    const at::Tensor share = at::zeros({3});
    group.reduce_scatter(share, at::arange(9, at::kFloat)).wait();
    EXPECT_TRUE(share.equal(at::arange(3 * group.rank(), 3 * group.rank() + 3, at::kFloat) * 3));
    const at::Tensor whole = at::zeros({9});
    group.all_gather(whole, share).wait();
    EXPECT_TRUE(whole.equal(at::arange(9, at::kFloat) * 3));
  });
}

TEST(ProcessGroupTest, NumbersAndTextsAreKnownToAll) {
  std::signal(SIGPIPE, SIG_DFL);
  run_ranks(4, [](ProcessGroup& group) {
    // A connection that the other side closed does not end the process.
    struct sigaction now = {};
    EXPECT_EQ(::sigaction(SIGPIPE, nullptr, &now), 0);
    EXPECT_EQ(now.sa_handler, SIG_IGN);
    EXPECT_EQ(group.gather_numbers(group.rank() * 0.5), (std::vector<double>{0, 0.5, 1, 1.5}));
    EXPECT_EQ(group.number_of_first(7.0 + group.rank()), 7.0);
    EXPECT_EQ(group.largest_number(group.rank()), 3.0);
    EXPECT_EQ(group.gather_texts("name", std::to_string(group.rank())),
              (std::vector<std::string>{"0", "1", "2", "3"}));
  });
}

TEST(ProcessGroupTest, RanksWithOtherTensorsThanRank0AreNamed) {
  run_ranks(3, [](ProcessGroup& group) {
    const at::Tensor values = at::ones({2, 3}).t();
    EXPECT_EQ(group.differing_ranks("the same", {{"a", values}}), "");
    if (group.rank() == 2) values[2][1] += 1e-6;
    EXPECT_EQ(group.differing_ranks("not the same", {{"a", values}}),
              "the weights of rank 2 are not those of rank 0");
  });
}

TEST(ProcessGroupTest, AWorldOfOneNeedsNobody) {
  ProcessGroup alone({}, cpu(), milliseconds(100), {});
  const at::Tensor values = at::arange(4, at::kFloat);
  alone.all_reduce(values).wait();
  EXPECT_TRUE(values.equal(at::arange(4, at::kFloat)));
  const at::Tensor share = at::zeros({4});
  alone.reduce_scatter(share, values).wait();
  EXPECT_TRUE(share.equal(values));
  EXPECT_EQ(alone.gather_numbers(2.5), std::vector<double>{2.5});
  EXPECT_EQ(alone.backend_name(), "none");
  alone.barrier();
}

TEST(ProcessGroupFaultTest, WhatRanksDifferInAndWhoNeverComesIsNamedOnAll) {
  struct Fault {
    std::array<int, 2> world_sizes;
    std::array<const char*, 2> seqs;
    const char* said;
  };
  const Fault faults[] = {{{2, 2}, {"128", "256"}, "--seq: 128 on rank 0 and 256 on rank 1"},
                          {{2, 3}, {"8", "8"}, "number of ranks: 2 on rank 0 and 3 on rank 1"},
                          {{3, 3}, {"8", "8"}, "rank 2 did not come"}};
  for (const auto& [world_sizes, seqs, said] : faults) {
    const auto thrown = try_ranks(2, [&sizes = world_sizes,
                                      &texts = seqs](LaunchEnvironment where) {
      const auto rank = static_cast<size_t>(where.rank);
      where.world_size = sizes.at(rank);
      ProcessGroup(where, cpu(), milliseconds(8000), {{"--seq", texts.at(rank)}, {"--seed", "42"}});
    });
    for (const auto& error : thrown) EXPECT_CONTAINS(error, said);
  }
}

TEST(ProcessGroupFaultTest, TwoProcessesCannotBeTheSameRank) {
  std::promise<void> both_have_ended;
  const auto thrown = try_ranks(2, [&](const LaunchEnvironment& where) {
    if (where.rank == 0) {
      // The store stays, as in a run.
      const ProcessGroup group(where, cpu(), milliseconds(20000), {});
      both_have_ended.get_future().wait();
      return;
    }
    std::string said;
    std::mutex guard;
    const auto again = [&] {
      const std::string words = ::tinyllama::testing::error_of<std::invalid_argument>(
          [&] { ProcessGroup(where, cpu(), milliseconds(20000), {}); });
      const std::lock_guard<std::mutex> lock(guard);
      said += words;
    };
    std::thread other(again);
    again();
    other.join();
    both_have_ended.set_value();
    EXPECT_CONTAINS(said, "processes say that they are rank 1");
  });
}

TEST(ProcessGroupFaultTest, APlaceWhereRanksCannotMeetIsNamed) {
  const Listener silent;
  const auto refusal = [](int rank, uint16_t port, milliseconds timeout) {
    const std::string said = ::tinyllama::testing::error_of<std::invalid_argument>(
        [&] { ProcessGroup(testing::rank_of(rank, 2, port), cpu(), timeout, {}); });
    EXPECT_CONTAINS(said, "MASTER_PORT=" + std::to_string(port));
    return said;
  };
  EXPECT_CONTAINS(refusal(1, testing::free_port(), milliseconds(700)), "nobody answers");
  EXPECT_CONTAINS(refusal(1, silent.port(), milliseconds(3000)), "is not rank 0 of this run");
  EXPECT_CONTAINS(refusal(0, silent.port(), milliseconds(1500)), "the port free");
}

TEST(RankWordsTest, RanksAreListedAsPeopleDo) {
  EXPECT_EQ(rank_words({2}), "rank 2");
  EXPECT_EQ(rank_words({1, 2}), "ranks 1 and 2");
  EXPECT_EQ(rank_words({1, 2, 5}), "ranks 1, 2 and 5");
}

}  // namespace
}  // namespace tinyllama::distributed
