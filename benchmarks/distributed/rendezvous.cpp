#include "benchmarks/distributed/rendezvous.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

namespace tinyllama::distributed {
namespace {

using std::chrono::milliseconds;

// libtorch adds a stack trace below the first line.
std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::string key_of(const std::string& name, int rank) {
  return fmt::format("{}/{}", name, rank);
}

std::vector<uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

double to_seconds(milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

std::string rank_words(const std::vector<int>& ranks) {
  std::string words = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) words += i + 1 == ranks.size() ? " and " : ", ";
    words += std::to_string(ranks[i]);
  }
  return words;
}

Rendezvous::Rendezvous(LaunchEnvironment where, milliseconds timeout, const Agreement& mine)
    : where_(std::move(where)), timeout_(timeout) {
  open();
  refuse_second(key_of("here", where_.rank));
  agree(mine);
}

void Rendezvous::open() {
  const bool is_server = where_.rank == 0 && !where_.agent_store_prefix;
  c10d::TCPStoreOptions options;
  options.port = where_.master_port;
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout_;
  try {
    store_ = c10::make_intrusive<c10d::TCPStore>(where_.master_address, options);
    if (where_.agent_store_prefix)
      store_ = c10::make_intrusive<c10d::PrefixStore>(*where_.agent_store_prefix, store_);
    store_ = c10::make_intrusive<c10d::PrefixStore>("tiny_llama", store_);
  } catch (const std::exception& error) {
    const std::string place =
        fmt::format("MASTER_ADDR={} MASTER_PORT={}", where_.master_address, where_.master_port);
    const std::string advice =
        is_server
            ? "the address must be this host's, and the port free; set MASTER_PORT to another "
              "one on all ranks"
            : "nobody answers there; rank 0 has to run on that host, and the network has to "
              "let this one reach it";
    throw std::invalid_argument(fmt::format("{}: {}: {} ({:g} s were given, --timeout)", place,
                                            advice, first_line(error), to_seconds(timeout_)));
  }
}

void Rendezvous::refuse_second(const std::string& key) {
  int64_t count = 0;
  try {
    count = store_->add(key, 1);
  } catch (const std::exception& error) {
    throw std::invalid_argument(fmt::format(
        "MASTER_ADDR={} MASTER_PORT={}: what answers there is not rank 0 of this run: {}",
        where_.master_address, where_.master_port, first_line(error)));
  }
  if (count == 1) return;
  throw std::invalid_argument(fmt::format(
      "{} processes say that they are rank {}: every rank of 0 to {} may be there once; "
      "another run may use MASTER_PORT={} as well",
      count, where_.rank, where_.world_size - 1, where_.master_port));
}

std::vector<int> Rendezvous::missing(const std::string& name, milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::vector<int> found;
  for (int rank = 0; rank < where_.world_size; ++rank) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      // Those who are there already are found even when the time has run out.
      store_->wait({key_of(name, rank)}, std::max(left, milliseconds(1)));
    } catch (const c10::DistNetworkError&) {
      throw;  // the store itself is gone
    } catch (const std::exception&) {
      found.push_back(rank);
    }
  }
  return found;
}

std::vector<std::string> Rendezvous::exchange(const std::string& name, const std::string& mine) {
  store_->set(key_of(name, where_.rank), to_bytes(mine));
  const std::vector<int> absent = missing(name, timeout_);
  if (!absent.empty()) {
    throw std::runtime_error(fmt::format("{} did not come within {:g} s (--timeout)",
                                         rank_words(absent), to_seconds(timeout_)));
  }
  std::vector<std::string> all;
  for (int rank = 0; rank < where_.world_size; ++rank) {
    const std::vector<uint8_t> bytes = store_->get(key_of(name, rank));
    all.emplace_back(bytes.begin(), bytes.end());
  }
  return all;
}

void Rendezvous::agree(const Agreement& mine) {
  Agreement stated = mine;
  stated["number of ranks"] = std::to_string(where_.world_size);
  std::vector<std::string> all;
  try {
    all = exchange("agreement", nlohmann::json(stated).dump());
  } catch (const std::exception& error) {
    throw std::invalid_argument(
        fmt::format("WORLD_SIZE={}: {}", where_.world_size, first_line(error)));
  }
  const auto first = nlohmann::json::parse(all.front()).get<Agreement>();
  for (int rank = 1; rank < where_.world_size; ++rank) {
    const auto other = nlohmann::json::parse(all[static_cast<size_t>(rank)]).get<Agreement>();
    for (const auto& [what, value] : first) {
      const auto found = other.find(what);
      const std::string there = found == other.end() ? "nothing" : found->second;
      if (there == value) continue;
      throw std::invalid_argument(
          fmt::format("{}: {} on rank 0 and {} on rank {}: must be the same on all ranks", what,
                      value, there, rank));
    }
  }
}

std::vector<int> Rendezvous::find_lost_ranks(milliseconds patience) {
  try {
    store_->set(key_of("still here", where_.rank), to_bytes("yes"));
    std::vector<int> lost = missing("still here", patience);
    // Rank 0 keeps the store: it stays until the others have asked.
    store_->set(key_of("has asked", where_.rank), to_bytes("yes"));
    if (where_.rank == 0 && !where_.agent_store_prefix) missing("has asked", patience);
    return lost;
  } catch (const std::exception&) {
    return {0};
  }
}

}  // namespace tinyllama::distributed
