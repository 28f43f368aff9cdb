// Where the ranks meet before they compute anything, and where they look for each other when one is
// lost: a key-value store (c10d's) on rank 0's host.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "benchmarks/distributed/launch.hpp"

namespace tinyllama::distributed {

/// What has to be equal on all ranks (options, build, library version), by names that users know.
using Agreement = std::map<std::string, std::string>;

/// What the ranks have said under one name, and which of them have said nothing.
struct Statements {
  std::vector<std::string> texts;  ///< by rank; empty where one is absent
  std::vector<int> absent;
};

/// Says `mine` under a name that serves once, and waits for `timeout` at most until every rank has.
/// The process that hosts the store then waits, for another `timeout` at most, until those that
/// have spoken have read too. Throws c10::DistNetworkError where the store is gone.
Statements ask_everyone(const c10::intrusive_ptr<c10d::Store>& store,
                        const LaunchEnvironment& where, const std::string& name,
                        const std::string& mine, std::chrono::milliseconds timeout);

/// What to add to this rank's clock to have rank 0's, and how far off that may be.
struct ClockOffset {
  double seconds = 0;
  double uncertainty_seconds = 0;
};

class Rendezvous {
 public:
  /// Opens the store and waits until every rank is there and agrees. Throws std::invalid_argument
  /// that names what to change: a port in use, a master that cannot be reached, a rank that is
  /// there twice, ranks that did not come within the timeout, and what two ranks differ in.
  Rendezvous(LaunchEnvironment where, std::chrono::milliseconds timeout, const Agreement& mine);

  const LaunchEnvironment& where() const { return where_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

  /// What every rank has put under `name`, in the order of ranks. A name can be used once. Throws
  /// std::runtime_error naming the ranks that have not within the timeout.
  std::vector<std::string> exchange(const std::string& name, const std::string& mine);

  /// Asks rank 0 for its time, over the store. The shortest round trip decides: rank 0 has read its
  /// clock within it, so that half of it is the uncertainty (Cristian 1989, "Probabilistic clock
  /// synchronization"). All ranks have to call it. `clock`: seconds that never run backwards.
  /// Throws std::runtime_error where rank 0 or the store does not answer.
  ClockOffset align_clock(const std::function<double()>& clock);

  /// After a failure: says that this rank is there still, and waits for `timeout` at most for the
  /// others to do the same. Returns the ranks that did not; rank 0 alone where the store is gone.
  /// Can be called once.
  std::vector<int> find_lost_ranks(std::chrono::milliseconds timeout);

 private:
  void await_server() const;
  void open();
  void refuse_second();
  void agree(const Agreement& mine);
  /// Throws std::invalid_argument about the address and port.
  [[noreturn]] void reject(const std::string& what) const;

  LaunchEnvironment where_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  int alignments_ = 0;
};

/// Waits for `timeout` at most until a TCP connection to the address can be made, and closes it.
/// Empty where one was; else why the last try failed. A name that has to be looked up may take
/// longer.
std::string await_listener(const std::string& address, uint16_t port,
                           std::chrono::milliseconds timeout);

/// "rank 2", "ranks 1 and 2", "ranks 1, 2 and 5".
std::string rank_words(const std::vector<int>& ranks);

/// The first line of its message: libtorch adds a stack trace below.
std::string first_line(const std::exception& error);

}  // namespace tinyllama::distributed
