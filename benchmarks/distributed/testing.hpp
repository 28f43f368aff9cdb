// Ranks as threads of one test program, and a small model on each of them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "model/relative_error.hpp"
#include "model/testing.hpp"
#include "model/train_step.hpp"

namespace tinyllama::distributed::testing {

/// Somebody else, who has a port and never answers there.
class Listener {
 public:
  enum class Begin { now, later };

  explicit Listener(Begin begin = Begin::now) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_, any, length) != 0 || ::getsockname(socket_, any, &length) != 0)
      throw std::runtime_error("cannot bind");
    port_ = ntohs(address.sin_port);
    if (begin == Begin::now) listen();
  }
  ~Listener() { ::close(socket_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  void listen() const {
    if (::listen(socket_, 5) != 0) throw std::runtime_error("cannot listen");
  }
  uint16_t port() const { return port_; }

 private:
  int socket_;
  uint16_t port_ = 0;
};

/// A port that nobody listens on now.
inline uint16_t free_port() {
  return Listener(Listener::Begin::later).port();
}

inline LaunchEnvironment rank_of(int rank, int size, uint16_t port) {
  LaunchEnvironment where;
  where.launcher = Launcher::torchrun;
  where.rank = rank;
  where.local_rank = rank;
  where.world_size = size;
  where.master_port = port;
  return where;
}

/// Runs `body` once a rank, each in a thread of its own, and returns what each of them threw, in
/// its words; empty where nothing.
inline std::vector<std::string> try_ranks(int size,
                                          const std::function<void(LaunchEnvironment)>& body) {
  const uint16_t port = free_port();
  std::vector<std::string> thrown(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank_of(rank, size, port));
      } catch (const std::exception& error) {
        thrown[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

/// The same with a group each; none may throw.
inline void run_ranks(int size, const std::function<void(ProcessGroup&)>& body) {
  constexpr std::chrono::seconds kTimeout(20);
  const auto thrown = try_ranks(size, [&](const LaunchEnvironment& where) {
    ProcessGroup group(where, instruments::Device::select("cpu"), kTimeout, {});
    body(group);
    group.barrier();
  });
  for (const std::string& error : thrown) EXPECT_EQ(error, "");
}

// The allocator that counts must be there before the first tensor.
class AllocatorEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { instruments::host_allocator::install(); }
};
inline const ::testing::Environment* const kAllocatorEnvironment =
    ::testing::AddGlobalTestEnvironment(new AllocatorEnvironment);

/// Bytes of this process's tensors, read while none of its ranks allocates; waits until they are
/// `expected`, 5 s at most: Gloo's threads let go of a message a moment after it has arrived.
inline int64_t live_bytes(ProcessGroup& group, std::optional<int64_t> expected = {}) {
  using Clock = std::chrono::steady_clock;
  group.barrier();
  const auto read = [] { return instruments::host_allocator::read().live_bytes; };
  const auto end = Clock::now() + std::chrono::seconds(5);
  while (expected && read() != *expected && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const int64_t bytes = read();
  group.barrier();
  return bytes;
}

// Rounding of sums in another order, in float32; in an update it counts for more.
inline constexpr double kAllowed = 1e-6;
inline constexpr double kAllowedWeights = 1e-5;
/// After so many steps weights are compared.
inline constexpr int kSteps = 3;

inline constexpr int64_t kSeq = 5;
inline constexpr int64_t kSamplesOfARank = 2;

/// The same on every rank: weights, and a batch of the samples of all ranks.
struct SmallTraining {
  explicit SmallTraining(int ranks, const Variant& variant = {})
      : initializer(7, Dtype::f32, c10::Device(c10::DeviceType::CPU)),
        model(tinyllama::testing::small_config(), variant, kSeq, initializer),
        parameters(model.parameters()),
        optimizer(parameters, variant, {.learning_rate = 1e-2}),
        step(model, optimizer),
        all(random_token_batch(model.config(), kSamplesOfARank * ranks, kSeq, initializer)) {
    // Beyond the first step, in which an update is the sign of its gradient.
    for (const auto& [name, moment] : optimizer.second_moments()) moment.fill_(0x1p-12);
  }

  TokenBatch samples_of(int rank) const {
    return {all.tokens.narrow(0, kSamplesOfARank * rank, kSamplesOfARank),
            all.targets.narrow(0, kSamplesOfARank * rank, kSamplesOfARank)};
  }

  TensorInitializer initializer;
  TinyLlama model;
  NamedTensors parameters;
  AdamW optimizer;
  TrainStep step;
  TokenBatch all;
};

/// Largest difference between tensors of two lists, each over the largest magnitude of its expected
/// tensor.
inline double largest_difference(const std::vector<at::Tensor>& actual,
                                 const std::vector<at::Tensor>& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest =
        std::max(largest, largest_error(to_values(actual.at(i)), to_values(expected[i])).relative);
  }
  return largest;
}

inline std::vector<at::Tensor> copies(const NamedTensors& named) {
  std::vector<at::Tensor> found;
  for (const auto& [name, tensor] : named) found.push_back(tensor.detach().clone());
  return found;
}

inline std::vector<at::Tensor> gradient_copies(const NamedTensors& named) {
  std::vector<at::Tensor> found;
  for (const auto& [name, tensor] : named) found.push_back(tensor.grad().clone());
  return found;
}

}  // namespace tinyllama::distributed::testing
