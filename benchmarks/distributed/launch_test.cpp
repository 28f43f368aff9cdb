#include "benchmarks/distributed/launch.hpp"

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

TEST(LaunchEnvironmentTest, WithoutALauncherItIsAWorldOfOne) {
  const LaunchEnvironment alone = read({});
  EXPECT_FALSE(alone.is_distributed());
  EXPECT_EQ(alone.rank, 0);
  EXPECT_EQ(alone.world_size, 1);
}

TEST(LaunchEnvironmentTest, TorchrunSaysEverything) {
  const LaunchEnvironment found = read(kTorchrun);
  EXPECT_EQ(found.launcher, Launcher::torchrun);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.world_size, 8);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.master_address, "node7");
  EXPECT_EQ(found.master_port, 1234);
  EXPECT_FALSE(found.agent_store_prefix);
  EXPECT_EQ(found.name(), "rank 3 of 8");
}

TEST(LaunchEnvironmentTest, TorchrunsAgentKeepsTheStoreItself) {
  Variables variables = with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(read(variables).agent_store_prefix, "/worker/attempt_0");
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_EQ(read(variables).agent_store_prefix, "/worker/attempt_2");
}

TEST(LaunchEnvironmentTest, OpenMpiOnOneHostNeedsNoAddress) {
  const LaunchEnvironment found = read(kOpenMpi);
  EXPECT_EQ(found.launcher, Launcher::open_mpi);
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.master_address, "127.0.0.1");
}

TEST(LaunchEnvironmentTest, OpenMpiJobsGetPortsOfTheirOwn) {
  const uint16_t one = read(with(kOpenMpi, "PMIX_NAMESPACE", "job-1@1")).master_port;
  EXPECT_EQ(read(with(kOpenMpi, "PMIX_NAMESPACE", "job-1@1")).master_port, one);
  EXPECT_NE(read(with(kOpenMpi, "PMIX_NAMESPACE", "job-2@1")).master_port, one);
  EXPECT_EQ(read(with(kOpenMpi, "MASTER_PORT", "4321")).master_port, 4321);
}

TEST(LaunchEnvironmentTest, OpenMpiOnSeveralHostsHasToSayWhereRank0Is) {
  const Variables spread = with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  EXPECT_CONTAINS(refusal(spread), "MASTER_ADDR");
  EXPECT_EQ(read(with(spread, "MASTER_ADDR", "host1")).master_address, "host1");
}

TEST(LaunchEnvironmentTest, SlurmsFirstNodeIsWhereRanksMeet) {
  const LaunchEnvironment found = read(kSlurm);
  EXPECT_EQ(found.launcher, Launcher::slurm);
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.world_size, 8);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.master_address, "gpu07");
  EXPECT_NE(found.master_port, read(with(kSlurm, "SLURM_JOB_ID", "123457")).master_port);
  EXPECT_EQ(read(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "4(x2)")).local_size, 4);
}

TEST(LaunchEnvironmentTest, AStepOfAJobMayHaveFewerTasksThanTheJob) {
  EXPECT_EQ(read(with(kSlurm, "SLURM_STEP_NUM_TASKS", "6")).world_size, 6);
}

TEST(LaunchEnvironmentTest, ABatchScriptIsNoRank) {
  Variables batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  EXPECT_FALSE(read(batch).is_distributed());
}

TEST(LaunchEnvironmentTest, MpirunInsideASlurmJobIsOpenMpis) {
  Variables both = kSlurm;
  both.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(read(both).launcher, Launcher::open_mpi);
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
      {with(kSlurm, "SLURM_JOB_NODELIST", "gpu["), "gpu["}};
  for (const auto& [variables, part] : cases) EXPECT_CONTAINS(refusal(variables), part);
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
