// What ranks tell each other through the store, which lives in the process of rank 0.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "benchmarks/distributed/launch_environment.hpp"

namespace tinyllama::distributed {

/// Of each rank, what it has said; nothing where it has not.
using Statements = std::vector<std::optional<std::string>>;

/// One exchange under a name of its own. All that it uses is its own, so that it can be left behind
/// where the store does not answer (call_within). Its methods throw c10::DistNetworkError where the
/// store is gone.
class StoreExchange {
 public:
  StoreExchange(c10::intrusive_ptr<c10d::Store> store, LaunchEnvironment where, std::string name);

  void state(const std::string& mine);
  /// What one rank has said, once it has; nothing after `patience`.
  std::optional<std::string> statement_of(int rank, std::chrono::milliseconds patience);
  /// The same of all ranks. The process with the store then waits, as long again at most, until
  /// every rank that has said something has read it all.
  Statements everyone(std::chrono::milliseconds patience);
  /// For a rank that leaves before everyone(): nobody need keep the store for it.
  void leave();

 private:
  std::string key(const char* what, int rank) const;
  bool is_there(const std::string& key, std::chrono::milliseconds patience);

  c10::intrusive_ptr<c10d::Store> store_;
  LaunchEnvironment where_;
  std::string name_;
};

}  // namespace tinyllama::distributed
