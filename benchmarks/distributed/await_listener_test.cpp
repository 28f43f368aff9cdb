#include "benchmarks/distributed/await_listener.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "benchmarks/distributed/testing.hpp"

namespace tinyllama::distributed {
namespace {

using std::chrono::milliseconds;

TEST(AwaitListenerTest, WhoeverListensIsFound) {
  const testing::Listener listener;
  EXPECT_EQ(await_listener("127.0.0.1", listener.port(), milliseconds(500)), "");
  EXPECT_EQ(await_listener("localhost", listener.port(), milliseconds(500)), "");
}

TEST(AwaitListenerTest, NobodyIsSaidToBeThereWithinThePatience) {
  EXPECT_EQ(await_listener("127.0.0.1", testing::free_port(), milliseconds(200)),
            "Connection refused");
}

TEST(AwaitListenerTest, WhoeverComesLateIsFound) {
  const testing::Listener listener(testing::Listener::Begin::later);
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(200));
    listener.listen();
  });
  EXPECT_EQ(await_listener("127.0.0.1", listener.port(), milliseconds(10000)), "");
  late.join();
}

TEST(AwaitListenerTest, ANameThatNobodyHasIsNamed) {
  EXPECT_NE(await_listener("no-such-host.invalid", 1, milliseconds(100)), "");
}

}  // namespace
}  // namespace tinyllama::distributed
