#include "cli/rank_addresses.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

using Variables = std::vector<std::pair<const char*, const char*>>;

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : " ") + word;
  return all;
}

// "peers' addresses | own addresses | source", "none", or "refused: ...".
std::string asked(int64_t attention, int64_t ffn, const Variables& variables,
                  const char* pattern = "tcp://{node}:7000", bool counts = true) {
  const auto found =
      find_addresses({attention, ffn, pattern, counts}, Environment(variables.begin(), variables.end()));
  if (!found) {
    EXPECT_EQ(found.error().code, ErrorCode::invalid_argument) << found.error().message;
    return "refused: " + found.error().message;
  }
  if (!*found) return "none";
  return joined((*found)->ffn) + " | " + joined((*found)->listen) + " | " + (*found)->source;
}

Variables step(const char* number, const char* tasks, const char* nodes, const char* counts,
               const Variables& more = {}) {
  Variables all = {{"SLURM_PROCID", number},
                   {"SLURM_STEP_NUM_TASKS", tasks},
                   {"SLURM_STEP_NODELIST", nodes},
                   {"SLURM_STEP_TASKS_PER_NODE", counts}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(RankAddresses, SlurmNamesTheNodes) {
  EXPECT_EQ(asked(1, 3, step("0", "4", "node[01-03,07]", "1(x4)", {{"SLURM_NODEID", "0"}})),
            "tcp://node02:7000 tcp://node03:7000 tcp://node07:7000 | "
            "tcp://0.0.0.0:7000 tcp://0.0.0.0:7000 tcp://0.0.0.0:7000 | SLURM_STEP_NODELIST node[01-03,07]");
  // Two FFN ranks of one node listen at two ports; attention shares the first node.
  EXPECT_EQ(asked(1, 3, step("3", "4", "a,b", "2(x2)", {{"SLURM_NODEID", "1"}})),
            "tcp://a:7000 tcp://b:7000 tcp://b:7001 | "
            "tcp://0.0.0.0:7000 tcp://0.0.0.0:7000 tcp://0.0.0.0:7001 | SLURM_STEP_NODELIST a,b");
  EXPECT_EQ(
      asked(2, 3,
            step("4", "5", "n[1-2]", "3,2", {{"SLURM_DISTRIBUTION", "cyclic:block"}, {"SLURM_NODEID", "0"}})),
      "tcp://n1:7000 tcp://n2:7000 tcp://n1:7001 | "
      "tcp://0.0.0.0:7000 tcp://0.0.0.0:7000 tcp://0.0.0.0:7001 | SLURM_STEP_NODELIST n[1-2]");
  // One node: its loopback, which strangers do not reach.
  EXPECT_EQ(asked(2, 2, step("0", "4", "node5", "4")),
            "tcp://127.0.0.1:7000 tcp://127.0.0.1:7001 | tcp://127.0.0.1:7000 tcp://127.0.0.1:7001 | "
            "SLURM_STEP_NODELIST node5");
}

TEST(RankAddresses, TheStepGoesBeforeTheJobAndCountsMayBeMissing) {
  const Variables job = {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", "j[1-2]"}};
  EXPECT_EQ(asked(1, 1, job), "tcp://j2:7000 | tcp://0.0.0.0:7000 | SLURM_JOB_NODELIST j[1-2]");
  Variables both = job;
  both.insert(both.end(), {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NODELIST", "s[1-2]"}});
  EXPECT_EQ(asked(1, 1, both), "tcp://s2:7000 | tcp://0.0.0.0:7000 | SLURM_STEP_NODELIST s[1-2]");
  EXPECT_EQ(asked(1, 1, {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_NODELIST", "old"}}),
            "tcp://127.0.0.1:7000 | tcp://127.0.0.1:7000 | SLURM_NODELIST old");
}

TEST(RankAddresses, SrunUnderPmi) {
  const Variables nodes = {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", "j[1-2]"}};
  const auto with = [&](Variables more) {
    more.insert(more.end(), nodes.begin(), nodes.end());
    return more;
  };
  const char* expected = "tcp://j2:7000 | tcp://0.0.0.0:7000 | SLURM_JOB_NODELIST j[1-2]";
  EXPECT_EQ(asked(1, 1, with({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})), expected);
  EXPECT_EQ(asked(1, 1, with({{"PMIX_RANK", "1"}})), expected);
  // mpirun inside the job counts by itself: SLURM's numbers are those of its daemons.
  EXPECT_EQ(asked(1, 1, with({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}})), "none");
  EXPECT_EQ(asked(1, 1, with({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}})), "none");
}

TEST(RankAddresses, OtherLaunchers) {
  const char* here =
      "tcp://127.0.0.1:7000 tcp://127.0.0.1:7001 | tcp://127.0.0.1:7000 tcp://127.0.0.1:7001 | ";
  EXPECT_EQ(asked(1, 2,
                  {{"OMPI_COMM_WORLD_RANK", "0"},
                   {"OMPI_COMM_WORLD_SIZE", "3"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}),
            std::string(here) + "OMPI_COMM_WORLD_LOCAL_SIZE 3");
  EXPECT_EQ(asked(1, 2, {{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"}}),
            std::string(here) + "MPI_LOCALNRANKS 3");
  EXPECT_EQ(asked(1, 2,
                  {{"OMPI_COMM_WORLD_RANK", "0"},
                   {"OMPI_COMM_WORLD_SIZE", "3"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
            "none");
  const Variables set = {
      {"LWS_WORKER_INDEX", "2"}, {"LWS_GROUP_SIZE", "3"}, {"LWS_LEADER_ADDRESS", "tandem-0.tandem.models"}};
  EXPECT_EQ(asked(1, 2, set),
            "tcp://tandem-0-1.tandem.models:7000 tcp://tandem-0-2.tandem.models:7000 | tcp://0.0.0.0:7000 "
            "tcp://0.0.0.0:7000 | LWS_LEADER_ADDRESS tandem-0.tandem.models");
  EXPECT_EQ(asked(1, 1, {}), "none");
  EXPECT_EQ(asked(1, 2, {{"JOB_COMPLETION_INDEX", "1"}}), "none");
  // A launch of one role: where the other one's hosts are nobody says.
  EXPECT_EQ(asked(2, 2, step("0", "2", "n[1-2]", "1(x2)")), "none");
  EXPECT_EQ(asked(1, 1, step("1", "2", "n[1-2]", "1(x2)"), "tcp://{node}:7000", false), "none");
}

TEST(RankAddresses, ThePattern) {
  const Variables nodes = step("1", "3", "n[1-2]", "1,2");
  EXPECT_EQ(asked(1, 2, nodes, "ucx://{node}-ib.cluster:7100"),
            "ucx://n2-ib.cluster:7100 ucx://n2-ib.cluster:7101 | ucx://0.0.0.0:7100 ucx://0.0.0.0:7101 | "
            "SLURM_STEP_NODELIST n[1-2]");
  EXPECT_EQ(asked(1, 2, nodes, "{node}:9"),
            "tcp://n2:9 tcp://n2:10 | tcp://0.0.0.0:9 tcp://0.0.0.0:10 | SLURM_STEP_NODELIST n[1-2]");
  EXPECT_EQ(asked(2, 2, {}, "tcp://ffn-{rank}.ffn:7000"),
            "tcp://ffn-0.ffn:7000 tcp://ffn-1.ffn:7000 | tcp://0.0.0.0:7000 tcp://0.0.0.0:7000 | "
            "afd.ffn_address_pattern tcp://ffn-{rank}.ffn:7000");
  EXPECT_EQ(
      asked(2, 1, {}, "tcp://pod-{number}.all:7000"),
      "tcp://pod-2.all:7000 | tcp://0.0.0.0:7000 | afd.ffn_address_pattern tcp://pod-{number}.all:7000");
  // On one host with more around its name: the name, not the loopback.
  EXPECT_EQ(asked(1, 1, step("0", "2", "n", "2"), "tcp://{node}.x:7"),
            "tcp://n.x:7 | tcp://0.0.0.0:7 | SLURM_STEP_NODELIST n");
  EXPECT_EQ(asked(1, 1, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}, "tcp://{node}.x:7"),
            "none");
}

TEST(RankAddresses, WhatCannotBeIsRefusedByName) {
  const auto refused = [](const std::string& said, const char* part) {
    EXPECT_TRUE(said.starts_with("refused: ")) << said;
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  refused(asked(1, 1, step("0", "2", "n[1-2", "1(x2)")), "SLURM_STEP_NODELIST: 'n[1-2': '[' is not closed");
  refused(asked(1, 1, step("0", "2", "n[1-2]", "1(x3)")), "SLURM_STEP_TASKS_PER_NODE: '1(x3)'");
  refused(asked(1, 1, step("0", "2", "n[1-2]", "1,2")), "does not count the 2 tasks of SLURM_PROCID 0 of 2");
  refused(asked(1, 1, step("0", "2", "n[1-2]", "999999999999999999(x2)")), "does not count the 2 tasks");
  refused(asked(1, 1, step("0", "2", "n[1-2]", "1(x2)", {{"SLURM_NODEID", "1"}})),
          "SLURM_NODEID: 1, and in blocks over SLURM_STEP_NODELIST n[1-2] task 0 is on node 0");
  for (const char* way : {"plane=2", "arbitrary"})
    refused(asked(1, 1, step("0", "2", "n[1-2]", "1(x2)", {{"SLURM_DISTRIBUTION", way}})),
            "SLURM_DISTRIBUTION: ");
  refused(asked(1, 2, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "3"}, {"SLURM_JOB_NODELIST", "n[1-2]"}}),
          "SLURM_TASKS_PER_NODE: not set, and SLURM_JOB_NODELIST has 2 nodes for 3 tasks");
  refused(asked(1, 1, {{"SLURM_PROCID", "x"}}), "SLURM_PROCID: 'x' is not a number");
  for (const char* leader : {"set-0", ".svc"})
    refused(asked(1, 1, {{"LWS_WORKER_INDEX", "0"}, {"LWS_GROUP_SIZE", "2"}, {"LWS_LEADER_ADDRESS", leader}}),
            "LWS_LEADER_ADDRESS: '");
  const std::pair<const char*, const char*> patterns[] = {
      {"", "is no address"},
      {"shm:///tmp/{rank}", "is not of tcp or ucx"},
      {"tcp://{host}:7000", "has {host}; known are {node}, {rank} and {number}"},
      {"tcp://{node:7000", "has a '{' that is not closed"},
      {"tcp://node}:7000", "has a '}' that closes nothing"},
      {"tcp://{node}", "needs a host and a port"},
      {"tcp://{node}:0", "needs a host and a port"},
      {"tcp://:7000", "needs a host and a port"},
      {"tcp://{node}:{rank}", "needs a host and a port"},
      {"tcp://ffn:7000", "names one host for 2 FFN ranks"},
  };
  for (const auto& [pattern, part] : patterns) {
    const std::string said = asked(1, 2, {}, pattern);
    refused(said, part);
    EXPECT_TRUE(said.starts_with("refused: afd.ffn_address_pattern: '" + std::string(pattern) + "' "))
        << said;
  }
  refused(asked(1, 2, step("0", "3", "a,b", "1,2"), "tcp://{node}:65535"),
          "FFN rank 1 would listen at port 65536; begin at a lower one");
}

}  // namespace
}  // namespace tandem
