// Which of how many processes this one is, as whoever started it says in the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tinyllama::distributed {

enum class Launcher { nobody, torchrun, slurm, open_mpi };
std::string_view to_string(Launcher launcher);

struct LaunchEnvironment {
  Launcher launcher = Launcher::nobody;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  ///< among the ranks of this host: which of its devices to take
  int local_size = 1;  ///< ranks of this host, as far as the launcher says: they share its memory
  std::string master_address = "127.0.0.1";  ///< of rank 0's host, where the ranks meet
  uint16_t master_port = 0;
  /// torchrun itself keeps the store at that address; ours are the keys with this prefix.
  std::optional<std::string> agent_store_prefix;

  bool is_distributed() const { return launcher != Launcher::nobody; }
  /// "rank 1 of 4"
  std::string name() const;
};

/// An environment variable, or nothing where it is not set.
using ReadVariable = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> environment_variable(const char* name);

/// torchrun (and whoever sets the same: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT),
/// then Open MPI's mpirun (OMPI_COMM_WORLD_RANK, ...), then Slurm's srun (SLURM_PROCID, ...); a
/// world of one where none of them speaks. MASTER_ADDR and MASTER_PORT count with every launcher.
/// Throws std::invalid_argument that names the variable, its value and the rule.
LaunchEnvironment read_launch_environment(const ReadVariable& variable = environment_variable);

}  // namespace tinyllama::distributed
