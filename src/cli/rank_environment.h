// Which rank this process is, from what its launcher says. Pure but for process_environment; any thread.
//
// Launchers, in this order (the one nearest to the process first: mpirun inside a SLURM job knows better):
//
//   Open MPI     OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE
//   MPICH, PMI   PMI_RANK               PMI_SIZE
//   PMIx         PMIX_RANK              PMIX_SIZE, or unknown
//   SLURM        SLURM_PROCID           SLURM_STEP_NUM_TASKS, or SLURM_NTASKS
//   LeaderWorkerSet of Kubernetes
//                LWS_WORKER_INDEX       LWS_GROUP_SIZE
//   Kubernetes   JOB_COMPLETION_INDEX (an indexed Job), or the number behind the last dash of POD_NAME or
//                HOSTNAME (a StatefulSet, where KUBERNETES_SERVICE_HOST is set); the size is unknown
//
// A launcher's number counts either the ranks of one role (its size is that role's) or all: 0..x-1 are
// attention, x..x+y-1 FFN, as vLLM's AFD plugin counts them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/result.h"

namespace tandem {

using Environment = std::map<std::string, std::string>;

struct RankQuestion {
  std::string role;  // "attention", "ffn"; empty: to be found
  int64_t attention_ranks = 1, ffn_ranks = 1;
  int64_t given = -1;  // what the settings say; -1: auto
};

struct RankAnswer {
  std::string role;
  int64_t rank = 0;
  std::string source;  // "afd.ffn_rank", "SLURM_PROCID 3 of 4", "the only one"
  std::string note;    // a line for the log; may be empty
};

// What a launcher says of this process.
struct LauncherPlace {
  std::string launcher;  // "SLURM"
  int64_t number = 0;
  int64_t size = -1;  // unknown
  std::string text;   // "SLURM_PROCID 3 of 4"
};
// None: no launcher says anything. invalid_argument or out_of_range, naming variable and value.
Result<std::optional<LauncherPlace>> find_place(const Environment& environment);

// invalid_argument or out_of_range, naming variable, value and what would do.
Result<RankAnswer> find_rank(const RankQuestion& question, const Environment& environment);

// The variables of this process.
Environment process_environment();

}  // namespace tandem
