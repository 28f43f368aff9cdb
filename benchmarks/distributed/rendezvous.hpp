// Where the ranks meet before they compute anything, and where they look for each other when one is
// lost: a key-value store (c10d's) on rank 0's host.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "benchmarks/distributed/launch_environment.hpp"

namespace tinyllama::distributed {

/// What has to be alike on all ranks, by the words that a user knows it by: options, build, library
/// version.
using Agreement = std::map<std::string, std::string>;

class Rendezvous {
 public:
  /// Opens the store and waits until every rank is there and agrees. Throws std::invalid_argument
  /// that names what to change: a port in use, a master that cannot be reached, a rank that is
  /// there twice, ranks that did not come within the timeout, and what two ranks differ in.
  Rendezvous(LaunchEnvironment where, std::chrono::milliseconds timeout, const Agreement& mine);

  const LaunchEnvironment& where() const { return where_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

  /// What every rank has put under `name`, in the order of ranks; a name serves once. Throws
  /// std::runtime_error naming the ranks that have not within the timeout.
  std::vector<std::string> exchange(const std::string& name, const std::string& mine);

  /// After a failure: says that this rank is there still, and waits for `patience` at most for the
  /// others to do the same. Returns the ranks that did not; rank 0 alone where the store is gone.
  /// Serves once.
  std::vector<int> find_lost_ranks(std::chrono::milliseconds patience);

 private:
  void await_server() const;
  void open();
  void refuse_second();
  void agree(const Agreement& mine);
  std::string place() const;

  LaunchEnvironment where_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
};

/// "rank 2", "ranks 1 and 2", "ranks 1, 2 and 5".
std::string rank_words(const std::vector<int>& ranks);

}  // namespace tinyllama::distributed
