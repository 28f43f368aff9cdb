#include "benchmarks/distributed/launch.hpp"
#include "benchmarks/distributed/process_group.hpp"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "model/testing.hpp"

namespace tinyllama::distributed {
namespace {

using ::tinyllama::testing::error_of;
using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return read_launch_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Variables& variables) {
  return error_of<std::invalid_argument>([&] { read(variables); });
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "node7"},
                             {"MASTER_PORT", "1234"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "8"},
                          {"SLURM_LOCALID", "1"}, {"SLURM_JOB_NODELIST", "gpu[07-08,11]"},
                          {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "123456"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(LaunchEnvironmentTest, EveryLauncherSaysWhoAndWhereARankIs) {
  Variables batch_script = kSlurm;
  batch_script.erase("SLURM_STEP_ID");
  Variables mpirun_in_slurm = kSlurm;
  mpirun_in_slurm.insert(kOpenMpi.begin(), kOpenMpi.end());
  const Variables spread = with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  struct Found {
    Variables variables;
    Launcher launcher;
    std::string name;
    int local_rank;
    std::string master_address;
  };
  const Found cases[] = {
      {{}, Launcher::nobody, "rank 0 of 1", 0, "127.0.0.1"},
      {kTorchrun, Launcher::torchrun, "rank 3 of 8", 1, "node7"},
      {kOpenMpi, Launcher::open_mpi, "rank 1 of 2", 1, "127.0.0.1"},
      {with(spread, "MASTER_ADDR", "host1"), Launcher::open_mpi, "rank 1 of 2", 1, "host1"},
      {kSlurm, Launcher::slurm, "rank 5 of 8", 1, "gpu07"},
      {with(kSlurm, "SLURM_STEP_NUM_TASKS", "6"), Launcher::slurm, "rank 5 of 6", 1, "gpu07"},
      {batch_script, Launcher::nobody, "rank 0 of 1", 0, "127.0.0.1"},
      {mpirun_in_slurm, Launcher::open_mpi, "rank 1 of 2", 1, "127.0.0.1"}};
  for (const auto& [variables, launcher, name, local_rank, master_address] : cases) {
    const LaunchEnvironment found = read(variables);
    EXPECT_EQ(found.launcher, launcher);
    EXPECT_EQ(found.name(), name);
    EXPECT_EQ(found.local_rank, local_rank);
    EXPECT_EQ(found.master_address, master_address);
  }
  EXPECT_EQ(read(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "4(x2)")).local_size, 4);
}

TEST(LaunchEnvironmentTest, JobsGetPortsOfTheirOwn) {
  const auto port = [](const Variables& variables, const std::string& name,
                       const std::string& value) {
    return read(with(variables, name, value)).master_port;
  };
  EXPECT_EQ(read(kTorchrun).master_port, 1234);
  EXPECT_EQ(port(kOpenMpi, "MASTER_PORT", "4321"), 4321);
  const uint16_t one = port(kOpenMpi, "PMIX_NAMESPACE", "job-1@1");
  EXPECT_EQ(port(kOpenMpi, "PMIX_NAMESPACE", "job-1@1"), one);
  EXPECT_NE(port(kOpenMpi, "PMIX_NAMESPACE", "job-2@1"), one);
  EXPECT_NE(port(kSlurm, "SLURM_JOB_ID", "123457"), read(kSlurm).master_port);
}

TEST(LaunchEnvironmentTest, TorchrunsAgentKeepsTheStoreItself) {
  EXPECT_FALSE(read(kTorchrun).agent_store_prefix);
  Variables variables = with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(read(variables).agent_store_prefix, "/worker/attempt_0");
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_EQ(read(variables).agent_store_prefix, "/worker/attempt_2");
}

TEST(LaunchEnvironmentTest, WhatCannotBeIsNamed) {
  const std::pair<Variables, std::string> cases[] = {
      {with(kTorchrun, "RANK", "8"), "RANK=8: must be below WORLD_SIZE=8"},
      {with(kTorchrun, "RANK", "-1"), "RANK=-1"},
      {with(kTorchrun, "WORLD_SIZE", "0"), "WORLD_SIZE=0"},
      {with(kTorchrun, "WORLD_SIZE", "two"), "WORLD_SIZE=two"},
      {with(kTorchrun, "LOCAL_RANK", "4"), "LOCAL_RANK=4"},
      {with(kTorchrun, "MASTER_PORT", "65536"), "MASTER_PORT=65536"},
      {with(kTorchrun, "MASTER_ADDR", ""), "MASTER_ADDR="},
      {{{"RANK", "0"}}, "WORLD_SIZE: is not set"},
      {with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1"), "set MASTER_ADDR"},
      {with(kSlurm, "SLURM_JOB_NODELIST", "gpu["), "gpu["}};
  for (const auto& [variables, part] : cases) EXPECT_CONTAINS(refusal(variables), part);
}

TEST(SharedDevicesTest, TwoRanksOnOneDeviceAreNamed) {
  EXPECT_NO_THROW(refuse_shared_devices({"GPU-a", "GPU-b", "", ""}));
  // Radeon cards, and partitions of a card before ROCm 7.12.
  EXPECT_NO_THROW(refuse_shared_devices(
      {"GPU-XX at 0000:03:00.0 of host 1", "GPU-XX at 0000:83:00.0 of host 1",
       "GPU-XX at 0000:03:00.0 of host 2", "GPU-XX at 0000:03:00.1 of host 1"}));
  try {
    refuse_shared_devices({"GPU-a", "GPU-b", "GPU-c", "GPU-b"});
    FAIL() << "taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_CONTAINS(std::string(error.what()), "ranks 1 and 3 have the same device, GPU-b");
  }
}

TEST(SlurmNodeListTest, TheFirstHostKeepsItsZeros) {
  const std::pair<const char*, const char*> cases[] = {{"node", "node"},
                                                       {"a,b", "a"},
                                                       {"node[01-04,07],login", "node01"},
                                                       {"n[3]", "n3"},
                                                       {"n[1-2].cluster", "n1.cluster"},
                                                       {"rack[2-3]-n[09,11]", "rack2-n09"}};
  for (const auto& [list, first] : cases) EXPECT_EQ(first_slurm_node(list), first);
  for (const char* text : {"", ",a", "n[", "n[]", "n[-3]"})
    EXPECT_THROW(first_slurm_node(text), std::invalid_argument) << text;
}

}  // namespace
}  // namespace tinyllama::distributed
