// Addresses of the FFN ranks where nobody lists them: made from the hosts that a launcher names. Pure, any
// thread.
//
//   SLURM            SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE, or SLURM_JOB_NODELIST and
//                    SLURM_TASKS_PER_NODE, in the order that SLURM_DISTRIBUTION says; also under PMI or PMIx
//                    when srun started this process
//   Open MPI, MPICH  ranks of one host only: they do not name the hosts
//   LeaderWorkerSet  LWS_LEADER_ADDRESS: worker i of pod "set-0" is pod "set-0-i" of the same service
//
// The launcher must count the ranks of both roles: the hosts of another launch are not known here. A pattern
// without {node} needs no launcher.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/rank_environment.h"

namespace tandem {

struct AddressQuestion {
  int64_t attention_ranks = 1, ffn_ranks = 1;
  // "tcp://{node}:7000": {node} is the rank's host, and the port counts up where a host has several FFN
  // ranks; {rank} is the FFN rank, {number} the rank among all (attention first). tcp or ucx.
  std::string pattern;
  bool launcher_counts = true;  // false: this process is another rank than its launcher counts
};

struct RankAddresses {
  std::vector<std::string> ffn;  // as peers connect, in order of rank
  std::vector<std::string>
      listen;          // as each listens: what a host's own name means on it, its peers cannot know
  std::string source;  // "SLURM_STEP_NODELIST node[01-03]"
};

// None: nothing names hosts. invalid_argument, naming variable or setting, value and what would do.
Result<std::optional<RankAddresses>> find_addresses(const AddressQuestion& question,
                                                    const Environment& environment);

}  // namespace tandem
