// How a program that may be one of several ranks starts and ends: its rank and the number of ranks,
// which the launcher says in environment variables, and how errors end it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/instruments/device.hpp"

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
  /// Set where torchrun itself hosts the store at that address: the prefix of our keys in it.
  std::optional<std::string> agent_store_prefix;

  /// Whose memory one device is, or one host.
  int ranks_sharing(const instruments::Device& device) const {
    return device.is_gpu() ? 1 : local_size;
  }
  bool is_distributed() const { return launcher != Launcher::nobody; }
  /// "rank 1 of 4"
  std::string name() const;
};

/// An environment variable, or nothing where it is not set.
using ReadVariable = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> environment_variable(const char* name);

/// torchrun (and whoever sets the same: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT),
/// then Open MPI's mpirun (OMPI_COMM_WORLD_RANK, ...), then Slurm's srun (SLURM_PROCID, ...); a
/// world of one where none of these variables is set. MASTER_ADDR and MASTER_PORT are read with
/// every launcher. Throws std::invalid_argument that names the variable, its value and the rule.
LaunchEnvironment read_launch_environment(const ReadVariable& variable = environment_variable);

/// The first host of Slurm's short form of a list, "node01" of "node[01-04,07],login". Throws
/// std::invalid_argument naming the rule where the text is no such list.
std::string first_slurm_node(std::string_view list);

/// What ends a run that has started: some rank does not take part any more. The message names this
/// rank, what it was doing, and the ranks that do not answer.
class RankLostError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// console::run_program of a body that gets what the launcher says. Errors of one of several ranks
/// say which. Where a rank is lost, it ends the process: destructors would wait for operations that
/// the lost rank will never take part in.
int run_rank(const char* program,
             const std::function<console::ExitCode(const LaunchEnvironment&)>& body);

/// Throws std::invalid_argument before the first allocation, and not in the words of an allocator,
/// where this host's ranks need more than is free on the device. `bytes`: of all that share it;
/// `what` needs them ("--batch 8: a step"), `remedy`: what to do.
void refuse_for_memory(const LaunchEnvironment& where, const instruments::Device& device,
                       double bytes, const std::string& what, const std::string& remedy);

}  // namespace tinyllama::distributed
