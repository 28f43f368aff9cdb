#include "benchmarks/distributed/run_rank.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "benchmarks/distributed/rank_lost.hpp"

namespace tinyllama::distributed {

using console::ExitCode;

ExitCode run_rank(const char* program,
                  const std::function<ExitCode(const LaunchEnvironment&)>& body) {
  const LaunchEnvironment where = read_launch_environment();
  try {
    return body(where);
  } catch (const RankLostError& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    std::fflush(nullptr);
    std::_Exit(static_cast<int>(ExitCode::failed));
  } catch (const c10::Error& error) {
    if (where.world_size == 1) throw;
    throw std::invalid_argument(
        fmt::format("{}: {}", where.name(), error.what_without_backtrace()));
  } catch (const std::exception& error) {
    if (where.world_size == 1) throw;
    throw std::invalid_argument(fmt::format("{}: {}", where.name(), error.what()));
  }
}

instruments::Device select_device(const std::string& text, const LaunchEnvironment& where) {
  const auto device = instruments::Device::select(text);
  if (!device.is_gpu() || where.world_size == 1 || text.find(':') != std::string::npos)
    return device;
  return instruments::Device::select(
      fmt::format("{}:{}", to_string(device.backend()), where.local_rank));
}

}  // namespace tinyllama::distributed
