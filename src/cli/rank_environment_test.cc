#include "cli/rank_environment.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

// Tables of plain text: GCC 12 takes large lists of std::string for uninitialised.
struct Asked {
  const char* role;
  int64_t attention_ranks, ffn_ranks, given = -1;
  RankQuestion question() const { return {role, attention_ranks, ffn_ranks, given}; }
};
using Variables = std::vector<std::pair<const char*, const char*>>;

Environment environment_of(const Variables& variables) {
  return {variables.begin(), variables.end()};
}

struct Case {
  const char* what;
  Asked asked;
  Variables variables;
  const char* role;
  int64_t rank;
  const char* source;
  const char* note = "";
};

constexpr const char* kCluster = "KUBERNETES_SERVICE_HOST";

TEST(RankEnvironment, EverySource) {
  const std::vector<Case> cases = {
      {"no launcher", {"ffn", 1, 1}, {}, "ffn", 0, "the default"},
      {"SLURM, first attention",
       {"", 2, 2},
       {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
       "attention",
       0,
       "SLURM_PROCID 0 of 4"},
      {"SLURM, last attention",
       {"", 2, 2},
       {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}},
       "attention",
       1,
       "SLURM_PROCID 1 of 4"},
      {"SLURM, first FFN",
       {"", 2, 2},
       {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}},
       "ffn",
       0,
       "SLURM_PROCID 2 of 4"},
      {"SLURM, last FFN",
       {"", 3, 2},
       {{"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "5"}},
       "ffn",
       1,
       "SLURM_PROCID 4 of 5"},
      {"the step's size goes before the job's",
       {"", 1, 1},
       {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "16"}, {"SLURM_STEP_NUM_TASKS", "2"}},
       "ffn",
       0,
       "SLURM_PROCID 1 of 2"},
      {"SLURM, a step of one role",
       {"ffn", 2, 3},
       {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "3"}},
       "ffn",
       2,
       "SLURM_PROCID 2 of 3"},
      {"SLURM, all roles, the role said",
       {"ffn", 2, 2},
       {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}},
       "ffn",
       1,
       "SLURM_PROCID 3 of 4"},
      {"Open MPI",
       {"", 1, 2},
       {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}},
       "ffn",
       1,
       "OMPI_COMM_WORLD_RANK 2 of 3"},
      {"Open MPI inside SLURM",
       {"", 1, 1},
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "1"}},
       "ffn",
       0,
       "OMPI_COMM_WORLD_RANK 1 of 2"},
      {"MPICH", {"", 1, 1}, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "attention", 0, "PMI_RANK 0 of 2"},
      {"PMIx without a size", {"", 2, 2}, {{"PMIX_RANK", "3"}}, "ffn", 1, "PMIX_RANK 3"},
      {"a LeaderWorkerSet of Kubernetes",
       {"", 2, 2},
       {{kCluster, "10.0.0.1"}, {"HOSTNAME", "set-0-3"}, {"LWS_WORKER_INDEX", "3"}, {"LWS_GROUP_SIZE", "4"}},
       "ffn",
       1,
       "LWS_WORKER_INDEX 3 of 4"},
      {"an indexed Job of Kubernetes",
       {"", 2, 1},
       {{"JOB_COMPLETION_INDEX", "2"}},
       "ffn",
       0,
       "JOB_COMPLETION_INDEX 2"},
      {"a StatefulSet of one role",
       {"ffn", 2, 4},
       {{kCluster, "10.0.0.1"}, {"HOSTNAME", "tandem-ffn-3"}},
       "ffn",
       3,
       "HOSTNAME tandem-ffn-3"},
      {"POD_NAME before HOSTNAME",
       {"attention", 2, 4},
       {{kCluster, "10.0.0.1"}, {"POD_NAME", "att-1"}, {"HOSTNAME", "node-7"}},
       "attention",
       1,
       "POD_NAME att-1"},
      {"a Deployment's pod has no number",
       {"ffn", 1, 2},
       {{kCluster, "x"}, {"HOSTNAME", "ffn-5d9c-x7k"}},
       "ffn",
       0,
       "the default"},
      {"a host's number is no rank", {"ffn", 1, 4}, {{"HOSTNAME", "node-3"}}, "ffn", 0, "the default"},
      {"a shell of a larger job",
       {"ffn", 1, 1},
       {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}},
       "ffn",
       0,
       "SLURM_PROCID 0 of 16",
       "SLURM_PROCID 0 of 16 is not used: 1A1F has one ffn rank"},
      {"a flag alone", {"ffn", 1, 4, 3}, {}, "ffn", 3, "afd.ffn_rank"},
      {"a flag that agrees",
       {"ffn", 1, 4, 3},
       {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}},
       "ffn",
       3,
       "afd.ffn_rank"},
      {"a flag goes before SLURM, with a line",
       {"ffn", 1, 4, 1},
       {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}},
       "ffn",
       1,
       "afd.ffn_rank",
       "afd.ffn_rank 1 goes before SLURM_PROCID 2 of 4"},
      {"and before what cannot be",
       {"attention", 2, 2, 1},
       {{"SLURM_PROCID", "9"}, {"SLURM_NTASKS", "12"}},
       "attention",
       1,
       "afd.attention_rank",
       "afd.attention_rank 1 goes before SLURM_PROCID 9 of 12"},
  };
  for (const Case& each : cases) {
    const auto answer = find_rank(each.asked.question(), environment_of(each.variables));
    ASSERT_TRUE(answer) << each.what << ": " << answer.error().message;
    EXPECT_EQ(answer->role, each.role) << each.what;
    EXPECT_EQ(answer->rank, each.rank) << each.what;
    EXPECT_EQ(answer->source, each.source) << each.what;
    EXPECT_EQ(answer->note, each.note) << each.what;
  }
}

struct Refusal {
  Asked asked;
  Variables variables;
  const char* part;
};

TEST(RankEnvironment, WhatCannotBeIsRefusedByName) {
  const std::vector<Refusal> cases = {
      {{"", 2, 2}, {}, "no launcher says which rank this is"},
      {{"", 2, 2},
       {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "3"}},
       "SLURM_PROCID 1 of 3: 2A2F takes 4 processes"},
      {{"", 2, 2}, {{"JOB_COMPLETION_INDEX", "4"}}, "JOB_COMPLETION_INDEX 4: 2A2F has ranks 0..3"},
      {{"ffn", 2, 2},
       {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}},
       "SLURM_PROCID 1 of 4 is attention rank 1 of 2A2F, and this is tandem ffn; use tandem rank"},
      {{"ffn", 1, 2}, {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "7"}}, "1A2F has 2 ffn ranks, 3 in all"},
      {{"ffn", 1, 2}, {{kCluster, "x"}, {"HOSTNAME", "ffn-2"}}, "HOSTNAME ffn-2: 1A2F has 2 ffn ranks"},
      {{"ffn", 1, 2, 2}, {}, "afd.ffn_rank: 2 is not in 0..1"},
      {{"ffn", 1, 2}, {{"PMI_RANK", "x"}}, "PMI_RANK: 'x' is not a number"},
      {{"ffn", 1, 2}, {{"PMI_RANK", "-1"}}, "PMI_RANK: '-1' is not a number"},
      {{"ffn", 1, 2}, {{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}, "PMI_RANK: 2 is not below PMI_SIZE 2"},
  };
  for (const Refusal& each : cases) {
    const auto answer = find_rank(each.asked.question(), environment_of(each.variables));
    ASSERT_FALSE(answer) << each.part;
    EXPECT_NE(answer.error().message.find(each.part), std::string::npos) << answer.error().message;
  }
}

}  // namespace
}  // namespace tandem
