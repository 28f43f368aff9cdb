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
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

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

// What each of these ranks hears of the others, over a store as in a run; the last speaks late.
std::map<int, Statements> ask_everyone_of(int size, const std::vector<int>& speakers,
                                          milliseconds timeout, milliseconds late) {
  const uint16_t port = testing::free_port();
  std::map<int, Statements> said;
  for (const int rank : speakers) said[rank] = {};
  std::vector<std::thread> threads;
  for (const int rank : speakers) {
    threads.emplace_back([&, rank] {
      c10d::TCPStoreOptions options;
      options.port = port;
      options.isServer = rank == 0;
      options.waitWorkers = false;
      const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
      if (rank == speakers.back()) std::this_thread::sleep_for(late);
      said.at(rank) = ask_everyone(store, testing::rank_of(rank, size, port), "still here",
                                   std::to_string(rank), timeout);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

TEST(AskEveryoneTest, OnlyTheSilentAreAbsentAndWhoeverSpeaksLateIsHeard) {
  const auto began = std::chrono::steady_clock::now();
  for (const auto& [rank, said] : ask_everyone_of(4, {0, 1, 3}, milliseconds(1000), {})) {
    EXPECT_EQ(said.absent, std::vector<int>{2}) << "told rank " << rank;
    EXPECT_EQ(said.texts, std::vector<std::string>{});
  }
  EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(1000));
  for (const auto& [rank, said] :
       ask_everyone_of(3, {0, 1, 2}, milliseconds(10000), milliseconds(200))) {
    EXPECT_EQ(said.absent, std::vector<int>{}) << "told rank " << rank;
    EXPECT_EQ(said.texts, (std::vector<std::string>{"0", "1", "2"}));
  }
}

// One clock for all threads, beside which rank 1's is 5 s slow and rank 2's 7 s fast.
TEST(AlignClockTest, ClocksAgreeWithinTheirUncertainty) {
  const std::array<double, 3> ahead = {0, -5, 7};
  const auto thrown = try_ranks(3, [&](const LaunchEnvironment& where) {
    Rendezvous meeting(where, milliseconds(20000), {});
    for (int time = 0; time < 2; ++time) {
      const double mine = ahead.at(static_cast<size_t>(where.rank));
      const ClockOffset offset = meeting.align_clock([mine] { return own_seconds() + mine; });
      EXPECT_NEAR(offset.seconds, -mine, offset.uncertainty_seconds + 1e-6);
      EXPECT_LT(offset.uncertainty_seconds, 1);
      EXPECT_EQ(offset.uncertainty_seconds > 0, where.rank > 0);
    }
    // The store stays until all are done.
    meeting.exchange("aligned", "");
  });
  for (const std::string& error : thrown) EXPECT_EQ(error, "");
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
