#include "benchmarks/distributed/store_exchange.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tinyllama::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

milliseconds left_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  return std::max(left, milliseconds(0));
}

}  // namespace

StoreExchange::StoreExchange(c10::intrusive_ptr<c10d::Store> store, LaunchEnvironment where,
                             std::string name)
    : store_(std::move(store)), where_(std::move(where)), name_(std::move(name)) {}

std::string StoreExchange::key(const char* what, int rank) const {
  return fmt::format("{}/{}/{}", name_, what, rank);
}

void StoreExchange::state(const std::string& mine) {
  store_->set(key("says", where_.rank), std::vector<uint8_t>(mine.begin(), mine.end()));
}

// Whoever has spoken is found even when the patience has run out: an earlier rank that never comes
// uses all of it up, and the store's answer to a short wait may come too late.
bool StoreExchange::is_there(const std::string& key, milliseconds patience) {
  if (patience > milliseconds(0)) {
    try {
      store_->wait({key}, patience);
      return true;
    } catch (const c10::DistNetworkError&) {
      throw;
    } catch (const std::exception&) {  // the patience has run out
    }
  }
  return store_->check({key});
}

std::optional<std::string> StoreExchange::statement_of(int rank, milliseconds patience) {
  const std::string said = key("says", rank);
  if (!is_there(said, patience)) return std::nullopt;
  const std::vector<uint8_t> bytes = store_->get(said);
  return std::string(bytes.begin(), bytes.end());
}

Statements StoreExchange::everyone(milliseconds patience) {
  Statements all;
  const auto deadline = Clock::now() + patience;
  for (int rank = 0; rank < where_.world_size; ++rank)
    all.push_back(statement_of(rank, left_until(deadline)));
  leave();
  if (where_.rank == 0 && !where_.agent_store_prefix) {
    const auto last = Clock::now() + patience;
    for (int rank = 0; rank < where_.world_size; ++rank) {
      if (all[static_cast<size_t>(rank)]) is_there(key("has read", rank), left_until(last));
    }
  }
  return all;
}

void StoreExchange::leave() {
  store_->set(key("has read", where_.rank), std::string("yes"));
}

}  // namespace tinyllama::distributed
