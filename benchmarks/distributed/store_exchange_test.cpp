#include "benchmarks/distributed/store_exchange.hpp"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "benchmarks/distributed/testing.hpp"

namespace tinyllama::distributed {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience(100);

/// A store on a machine that is so busy that its answers come after the shorter waits are over.
class BusyStore final : public c10d::HashStore {
 public:
  using HashStore::wait;
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    if (timeout < kPatience / 2) throw std::runtime_error("wait timeout");
    HashStore::wait(keys, timeout);
  }
};

StoreExchange exchange_of(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  return {store, testing::rank_of(rank, size, 0), "still here"};
}

TEST(StoreExchangeTest, RanksAfterASilentOneAreHeardOnABusyMachine) {
  const auto store = c10::make_intrusive<BusyStore>();
  for (const int rank : {0, 1, 3}) {
    exchange_of(store, rank, 4).state("rank " + std::to_string(rank));
    exchange_of(store, rank, 4).leave();
  }
  const Statements said = exchange_of(store, 0, 4).everyone(kPatience);
  EXPECT_EQ(said, (Statements{"rank 0", "rank 1", std::nullopt, "rank 3"}));
}

TEST(StoreExchangeTest, ARankThatNeverSpeaksHasSaidNothing) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  StoreExchange talk = exchange_of(store, 1, 2);
  EXPECT_EQ(talk.statement_of(0, kPatience), std::nullopt);
  EXPECT_EQ(talk.statement_of(0, milliseconds(0)), std::nullopt);
}

TEST(StoreExchangeTest, ARankThatSpeaksLateIsHeard) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(50));
    exchange_of(store, 0, 2).state("late");
  });
  EXPECT_EQ(exchange_of(store, 1, 2).statement_of(0, milliseconds(10000)), "late");
  late.join();
}

}  // namespace
}  // namespace tinyllama::distributed
