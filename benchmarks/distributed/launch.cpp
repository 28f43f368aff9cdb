#include "benchmarks/distributed/launch.hpp"
#include "benchmarks/console/exit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "core/digest.hpp"
#include "core/text.hpp"

namespace tinyllama::distributed {
namespace {

using console::ExitCode;

// torch.distributed's own, for whoever starts ranks on one host and sets no port.
constexpr uint16_t kDefaultPort = 29500;
// Ports that jobs are spread over, so that two of them on one host rarely meet; below those that
// Linux gives to outgoing connections (32768 and more).
constexpr uint64_t kFirstJobPort = 20000;
constexpr uint64_t kJobPorts = 12768;
constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kLargestNumber = std::numeric_limits<int64_t>::max();

bool has(const ReadVariable& variable, const char* name) {
  return variable(name).has_value();
}

// Throws where it is not set and there is no `otherwise`.
int64_t number(const ReadVariable& variable, const char* name, int64_t lowest, int64_t highest,
               std::optional<int64_t> otherwise = std::nullopt) {
  const std::optional<std::string> value = variable(name);
  if (!value && otherwise) return *otherwise;
  if (!value) throw std::invalid_argument(fmt::format("{}: is not set", name));
  int64_t found = 0;
  const char* const end = value->data() + value->size();
  const auto [rest, error] = std::from_chars(value->data(), end, found);
  if (error != std::errc{} || rest != end || found < lowest || found > highest) {
    throw std::invalid_argument(
        fmt::format("{}={}: must be an integer from {} to {}", name, *value, lowest, highest));
  }
  return found;
}

// From the variables of these names.
LaunchEnvironment read_ranks(const ReadVariable& variable, Launcher launcher, const char* rank,
                             const char* world_size, const char* local_rank) {
  LaunchEnvironment found;
  found.launcher = launcher;
  found.world_size = static_cast<int>(number(variable, world_size, 1, kMostRanks));
  found.rank = static_cast<int>(number(variable, rank, 0, kMostRanks));
  if (found.rank >= found.world_size) {
    throw std::invalid_argument(
        fmt::format("{}={}: must be below {}={}", rank, found.rank, world_size, found.world_size));
  }
  found.local_rank = static_cast<int>(number(variable, local_rank, 0, found.rank, 0));
  return found;
}

uint16_t port_of_job(uint64_t job) {
  return static_cast<uint16_t>(kFirstJobPort + job % kJobPorts);
}

LaunchEnvironment from_torchrun(const ReadVariable& variable) {
  LaunchEnvironment found =
      read_ranks(variable, Launcher::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK");
  found.master_port = kDefaultPort;
  found.local_size =
      static_cast<int>(number(variable, "LOCAL_WORLD_SIZE", 1, found.world_size, found.local_size));
  if (variable("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    found.agent_store_prefix = fmt::format(
        "/worker/attempt_{}", number(variable, "TORCHELASTIC_RESTART_COUNT", 0, kLargestNumber, 0));
  }
  return found;
}

LaunchEnvironment from_open_mpi(const ReadVariable& variable) {
  LaunchEnvironment found = read_ranks(variable, Launcher::open_mpi, "OMPI_COMM_WORLD_RANK",
                                       "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK");
  const int64_t here =
      number(variable, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks, found.world_size);
  if (here < found.world_size && !has(variable, "MASTER_ADDR")) {
    throw std::invalid_argument(fmt::format(
        "OMPI_COMM_WORLD_SIZE={}, {} of them on this host: mpirun does not say which host rank 0 "
        "is on; set MASTER_ADDR to its name (mpirun -x MASTER_ADDR=...)",
        found.world_size, here));
  }
  found.local_size = static_cast<int>(here);
  found.master_port = kDefaultPort;
  if (const auto job = variable("PMIX_NAMESPACE")) {
    // The same in every process, unlike std::hash.
    Digest digest;
    digest.add(job->data(), job->size());
    found.master_port = port_of_job(digest.value());
  }
  return found;
}

LaunchEnvironment from_slurm(const ReadVariable& variable) {
  const bool has_step_tasks = has(variable, "SLURM_STEP_NUM_TASKS");
  LaunchEnvironment found =
      read_ranks(variable, Launcher::slurm, "SLURM_PROCID",
                 has_step_tasks ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", "SLURM_LOCALID");
  const char* nodes =
      has(variable, "SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  if (const auto list = variable(nodes); list && !has(variable, "MASTER_ADDR")) {
    try {
      found.master_address = first_slurm_node(*list);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(fmt::format("{}={}: {}", nodes, *list, error.what()));
    }
  }
  // "4(x2)": 4 ranks on each of 2 hosts. The largest host counts, and it is named first.
  if (const auto tasks = variable("SLURM_STEP_TASKS_PER_NODE"))
    std::from_chars(tasks->data(), tasks->data() + tasks->size(), found.local_size);
  const int64_t job = number(variable, "SLURM_JOB_ID", 0, kLargestNumber, 0);
  found.master_port = port_of_job(static_cast<uint64_t>(job));
  return found;
}

}  // namespace

std::string_view to_string(Launcher launcher) {
  constexpr std::string_view kNames[] = {"nobody", "torchrun", "slurm", "open_mpi"};
  return kNames[static_cast<size_t>(launcher)];
}

std::string LaunchEnvironment::name() const {
  return fmt::format("rank {} of {}", rank, world_size);
}

std::optional<std::string> environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

LaunchEnvironment read_launch_environment(const ReadVariable& variable) {
  LaunchEnvironment found;
  // mpirun inside a Slurm job has the variables of both. A batch script that starts the program
  // without srun has Slurm's as well, but is no step: it is one process.
  if (has(variable, "RANK") || has(variable, "WORLD_SIZE")) {
    found = from_torchrun(variable);
  } else if (has(variable, "OMPI_COMM_WORLD_SIZE")) {
    found = from_open_mpi(variable);
  } else if (has(variable, "SLURM_PROCID") && has(variable, "SLURM_STEP_ID")) {
    found = from_slurm(variable);
  }
  if (!found.is_distributed()) return found;
  if (const auto address = variable("MASTER_ADDR")) {
    if (address->empty())
      throw std::invalid_argument("MASTER_ADDR=: must be the name or address of rank 0's host");
    found.master_address = *address;
  }
  found.master_port = static_cast<uint16_t>(
      number(variable, "MASTER_PORT", 1, std::numeric_limits<uint16_t>::max(), found.master_port));
  return found;
}

std::string first_slurm_node(std::string_view list) {
  std::string node;
  size_t at = 0;
  bool is_list = true;
  while (is_list && at < list.size() && list[at] != ',') {
    if (list[at] != '[') {
      node += list[at++];
      continue;
    }
    // "[01-04,07]": the first number, with its zeros.
    const size_t close = list.find(']', at);
    const size_t end = list.find_first_of(",-]", at);
    is_list = close != std::string_view::npos && end != at + 1;
    if (is_list) node += list.substr(at + 1, end - at - 1);
    at = close + 1;
  }
  if (!is_list || node.empty())
    throw std::invalid_argument("must be a list of hosts such as node[01-04],login");
  return node;
}

int run_rank(const char* program, const std::function<ExitCode(const LaunchEnvironment&)>& body) {
  return console::run_program(program, [&] {
    const LaunchEnvironment where = read_launch_environment();
    try {
      return body(where);
    } catch (const RankLostError& error) {
      fmt::print(stderr, "{}: {}\n", program, error.what());
      std::fflush(nullptr);
      std::_Exit(static_cast<int>(ExitCode::failed));
    } catch (const console::WrongResultError&) {
      throw;
    } catch (const std::exception& error) {
      if (where.world_size == 1) throw;
      throw std::invalid_argument(fmt::format("{}: {}", where.name(), message_of(error)));
    }
  });
}

void refuse_for_memory(const LaunchEnvironment& where, const instruments::Device& device,
                       double bytes, const std::string& what, const std::string& remedy) {
  const int64_t free = device.free_memory_bytes();
  // Beyond 64 bits the products of a prediction wrap around.
  if (bytes >= 0 && bytes <= static_cast<double>(free)) return;
  constexpr double kMost = 9e18;
  const auto needed = static_cast<int64_t>(bytes < 0 ? kMost : std::min(bytes, kMost));
  const int sharing = where.ranks_sharing(device);
  throw std::invalid_argument(
      fmt::format("{}{} needs {} of memory, and {} is free on {}; {}", what,
                  sharing > 1 ? fmt::format(" on {} ranks of this host", sharing) : "",
                  format_bytes(needed), format_bytes(free), device.description().name, remedy));
}

}  // namespace tinyllama::distributed
