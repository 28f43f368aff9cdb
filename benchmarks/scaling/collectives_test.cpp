#include "benchmarks/scaling/collectives.hpp"

#include <gtest/gtest.h>

namespace tinyllama::scaling {
namespace {

TEST(MessageSizesTest, SizesGrowByFourAndBucketsAreAmongThem) {
  EXPECT_EQ(message_sizes(20000, {5000, 16384, 30000}, 8),
            (std::vector<int64_t>{1024, 4096, 5000, 16384}));
}

TEST(MessageSizesTest, SizesAreRoundedUpToWholeShares) {
  EXPECT_EQ(message_sizes(4096, {}, 12), (std::vector<int64_t>{1032, 4104}));
}

TEST(BusFactorTest, FactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 2), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, 2), 0.5);
}

}  // namespace
}  // namespace tinyllama::scaling
