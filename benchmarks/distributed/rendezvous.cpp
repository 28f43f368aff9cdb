#include "benchmarks/distributed/rendezvous.hpp"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/control_collectives/StoreCollectives.hpp>
#include <type_traits>
#include <utility>

#include "core/text.hpp"

namespace tinyllama::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

// More time than the store itself gets, so that its own message comes first.
constexpr milliseconds kSlack(1000);
// Between tries that were refused, and of one try that is not answered at all.
constexpr milliseconds kPause(50);
constexpr milliseconds kLongestTry(2000);
constexpr int kRoundTrips = 16;
constexpr const char* kSilentStore = "rank 0, which keeps the store, does not answer";
const std::string kFirst = "first", kAgreement = "agreement";

std::string words_of(int error) {
  return std::generic_category().message(error);
}

std::string try_once(const addrinfo& to, milliseconds timeout) {
  const int socket = ::socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC, to.ai_protocol);
  if (socket < 0) return words_of(errno);
  const auto close = c10::make_scope_exit([socket] { ::close(socket); });
  // Linux gives up a connection that is not answered within the timeout for sending.
  const timeval limit = {timeout.count() / 1000, timeout.count() % 1000 * 1000};
  if (::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
      ::connect(socket, to.ai_addr, to.ai_addrlen) != 0)
    return words_of(errno == EINPROGRESS ? ETIMEDOUT : errno);
  return {};
}

// Returns or throws what the call does; nothing where it has not ended after `limit`. It then goes
// on in a detached thread, so it must own all that it uses. For c10d's store, which waits without
// end for a server that is there but does not answer.
template <typename Call>
std::optional<std::invoke_result_t<Call>> call_within(std::chrono::milliseconds limit, Call call) {
  using Result = std::invoke_result_t<Call>;
  const auto task = std::make_shared<std::packaged_task<Result()>>(std::move(call));
  std::future<Result> result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

double to_seconds(milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::vector<uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

bool hosts_store(const LaunchEnvironment& where) {
  return where.rank == 0 && !where.agent_store_prefix;
}

std::string read_key(const std::string& name, int rank) {
  return fmt::format("{}/has read/{}", name, rank);
}

// The store is not kept open for this rank any more.
void leave(c10d::Store& store, const LaunchEnvironment& where, const std::string& name) {
  store.set(read_key(name, where.rank), std::string("yes"));
}

ClockOffset ask_rank_0(c10d::Store& store, const LaunchEnvironment& where, const std::string& name,
                       const std::function<double()>& clock) {
  ClockOffset best;
  if (where.rank > 0) best.uncertainty_seconds = std::numeric_limits<double>::infinity();
  // One rank after another, so that none waits for the answers to others.
  for (int rank = 1; rank < where.world_size; ++rank) {
    for (int trip = 0; trip < kRoundTrips; ++trip) {
      const std::string question = fmt::format("{}/{}/{}/question", name, rank, trip);
      const std::string answer = fmt::format("{}/{}/{}/answer", name, rank, trip);
      if (where.rank == 0) {
        store.get(question);
        store.set(answer, fmt::format("{:.9f}", clock()));
      }
      if (where.rank != rank) continue;
      const double asked = clock();
      store.set(question, std::string("?"));
      const std::string told = store.get_to_str(answer);
      const double half_trip = (clock() - asked) / 2;
      store.deleteKey(question);
      store.deleteKey(answer);
      if (half_trip < best.uncertainty_seconds)
        best = {std::stod(told) - asked - half_trip, half_trip};
    }
  }
  return best;
}

// In what two statements differ; empty where they do not. `rank`: who made the second.
std::string difference_of(const std::string& first, const std::string& second, int rank) {
  const auto expected = nlohmann::json::parse(first).get<Agreement>();
  const auto found = nlohmann::json::parse(second).get<Agreement>();
  for (const auto& [what, value] : expected) {
    const auto other = found.find(what);
    const std::string there = other == found.end() ? "nothing" : other->second;
    if (there == value) continue;
    return fmt::format("{}: {} on rank 0 and {} on rank {}: must be the same on all ranks", what,
                       value, there, rank);
  }
  return {};
}

}  // namespace

std::string first_line(const std::exception& error) {
  const std::string text = message_of(error);
  return text.substr(0, text.find('\n'));
}

std::string await_listener(const std::string& address, uint16_t port, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::string failure;
  while (true) {
    addrinfo wanted = {};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* first = nullptr;
    const int lookup =
        ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &first);
    const auto free = c10::make_scope_exit([first] {
      if (first != nullptr) ::freeaddrinfo(first);
    });
    if (lookup != 0) failure = ::gai_strerror(lookup);
    for (const addrinfo* to = first; to != nullptr; to = to->ai_next) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      failure = try_once(*to, std::clamp(left, milliseconds(1), kLongestTry));
      if (failure.empty()) return {};
    }
    if (Clock::now() + kPause >= deadline) return failure;
    std::this_thread::sleep_for(kPause);
  }
}

// c10d's allGather, whose keys are <name>/<rank>. Beside it: ranks that are absent as numbers,
// which it has in words only, and a store that stays until all have read.
Statements ask_everyone(const StorePointer& store, const LaunchEnvironment& where,
                        const std::string& name, const std::string& mine, milliseconds timeout) {
  const auto gather = [&] {
    c10d::StoreCollectives talk(store, where.rank, where.world_size);
    std::vector<std::string> texts;
    for (const auto& bytes : talk.allGather(name, to_bytes(mine), timeout))
      texts.emplace_back(bytes.begin(), bytes.end());
    return texts;
  };
  Statements said;
  try {
    said.texts = gather();
  } catch (const c10::DistNetworkError&) {
    throw;
  } catch (const std::exception&) {
    for (int rank = 0; rank < where.world_size; ++rank) {
      if (!store->check({fmt::format("{}/{}", name, rank)})) said.absent.push_back(rank);
    }
    // The last came just after the end.
    if (said.absent.empty()) said.texts = gather();
  }
  leave(*store, where, name);
  std::vector<std::string> readers;
  for (int rank = 0; rank < where.world_size; ++rank) {
    if (!std::ranges::count(said.absent, rank)) readers.push_back(read_key(name, rank));
  }
  try {
    if (hosts_store(where)) store->wait(readers, timeout);
  } catch (const std::exception&) {  // whoever has not read by now is lost
  }
  return said;
}

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
  refuse_second();
  agree(mine);
}

void Rendezvous::reject(const std::string& what) const {
  throw std::invalid_argument(fmt::format("MASTER_ADDR={} MASTER_PORT={}: {}",
                                          where_.master_address, where_.master_port, what));
}

// The store's own client tries for longer than its timeout, and cannot tell a silent listener from
// none.
void Rendezvous::await_server() const {
  const auto failure = call_within(
      timeout_ + kSlack, [address = where_.master_address, port = where_.master_port,
                          timeout = timeout_] { return await_listener(address, port, timeout); });
  if (failure && failure->empty()) return;
  reject(fmt::format(
      "nobody answers there; rank 0 has to run on that host, and the network has to let this one "
      "reach it: {} ({:g} s were given, --timeout)",
      failure.value_or("the name was not found"), to_seconds(timeout_)));
}

void Rendezvous::open() {
  const bool is_server = hosts_store(where_);
  c10d::TCPStoreOptions options;
  options.port = where_.master_port;
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout_;
  if (!is_server) await_server();
  std::optional<StorePointer> opened;
  const std::string advice =
      is_server ? "the address must be this host's, and the port free; set MASTER_PORT to another "
                  "one on all ranks"
                : "what listens there is not rank 0 of this run; set MASTER_PORT to another one on "
                  "all ranks";
  try {
    opened = call_within(timeout_ + kSlack, [address = where_.master_address, options] {
      return StorePointer(c10::make_intrusive<c10d::TCPStore>(address, options));
    });
  } catch (const std::exception& error) {
    reject(fmt::format("{}: {} ({:g} s were given, --timeout)", advice, first_line(error),
                       to_seconds(timeout_)));
  }
  if (!opened)
    reject(fmt::format("{}: no answer within {:g} s (--timeout)", advice, to_seconds(timeout_)));
  store_ = *opened;
  if (where_.agent_store_prefix)
    store_ = c10::make_intrusive<c10d::PrefixStore>(*where_.agent_store_prefix, store_);
  store_ = c10::make_intrusive<c10d::PrefixStore>("tiny_llama", store_);
}

void Rendezvous::refuse_second() {
  std::optional<int64_t> count;
  std::string cause = "it did not answer";
  try {
    count = call_within(timeout_, [store = store_, key = fmt::format("here/{}", where_.rank)] {
      return store->add(key, 1);
    });
  } catch (const std::exception& error) {
    cause = first_line(error);
  }
  if (!count) reject("what answers there is not rank 0 of this run: " + cause);
  if (*count == 1) return;
  throw std::invalid_argument(fmt::format(
      "{} processes say that they are rank {}: every rank of 0 to {} may be there once; "
      "another run may use MASTER_PORT={} as well",
      *count, where_.rank, where_.world_size - 1, where_.master_port));
}

std::vector<std::string> Rendezvous::exchange(const std::string& name, const std::string& mine) {
  const auto all = call_within(2 * timeout_ + kSlack,
                               [store = store_, where = where_, name, mine, timeout = timeout_] {
                                 return ask_everyone(store, where, name, mine, timeout);
                               });
  if (!all) throw std::runtime_error(kSilentStore);
  if (all->absent.empty()) return all->texts;
  throw std::runtime_error(fmt::format("{} did not come within {:g} s (--timeout)",
                                       rank_words(all->absent), to_seconds(timeout_)));
}

// A rank that has other ideas of the world than rank 0 would wait for ranks that nobody started: it
// looks at rank 0's statement first, and then leaves its own for rank 0 to see.
void Rendezvous::agree(const Agreement& mine) {
  Agreement stated = mine;
  stated["number of ranks"] = std::to_string(where_.world_size);
  const std::string text = nlohmann::json(stated).dump();
  std::string difference;
  try {
    const auto first =
        call_within(timeout_ + kSlack, [store = store_, where = where_, text, timeout = timeout_] {
          c10d::StoreCollectives talk(store, where.rank, where.world_size);
          if (where.rank == 0) {
            talk.broadcastSend(kFirst, to_bytes(text), timeout);
            return text;
          }
          const auto bytes = talk.broadcastRecv(kFirst, timeout);
          const std::string said(bytes.begin(), bytes.end());
          if (!difference_of(said, text, where.rank).empty()) {
            talk.gatherSend(kAgreement, to_bytes(text), timeout);
            leave(*store, where, kAgreement);
          }
          return said;
        });
    if (!first) throw std::runtime_error(kSilentStore);
    difference = difference_of(*first, text, where_.rank);
    if (difference.empty()) {
      const std::vector<std::string> texts = exchange(kAgreement, text);
      for (size_t rank = 1; rank < texts.size() && difference.empty(); ++rank)
        difference = difference_of(texts.front(), texts[rank], static_cast<int>(rank));
    }
  } catch (const std::exception& error) {
    throw std::invalid_argument(
        fmt::format("WORLD_SIZE={}: {}", where_.world_size, first_line(error)));
  }
  if (!difference.empty()) throw std::invalid_argument(difference);
}

ClockOffset Rendezvous::align_clock(const std::function<double()>& clock) {
  const auto found = call_within(
      2 * timeout_ + kSlack,
      [store = store_, where = where_, clock, name = fmt::format("clock {}", alignments_++)] {
        return ask_rank_0(*store, where, name, clock);
      });
  if (!found) throw std::runtime_error(kSilentStore);
  return *found;
}

std::vector<int> Rendezvous::find_lost_ranks(milliseconds timeout) {
  try {
    const auto all = call_within(2 * timeout + kSlack, [store = store_, where = where_, timeout] {
      return ask_everyone(store, where, "still here", "yes", timeout);
    });
    return all ? all->absent : std::vector<int>{0};
  } catch (const std::exception&) {
    return {0};
  }
}

}  // namespace tinyllama::distributed
