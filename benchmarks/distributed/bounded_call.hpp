// Calls that may never return, given up after a while.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace tinyllama::distributed {

/// What the call returns or throws; nothing where it has not returned after `limit`: it then goes
/// on in a thread that nobody waits for, so it must own all that it uses. c10d's store waits
/// without end for a server that is there but does not answer.
template <typename Call>
std::optional<std::invoke_result_t<Call>> call_within(std::chrono::milliseconds limit, Call call) {
  using Result = std::invoke_result_t<Call>;
  const auto task = std::make_shared<std::packaged_task<Result()>>(std::move(call));
  std::future<Result> result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace tinyllama::distributed
