// The short form in which SLURM writes lists: of nodes ("node[01-03,07],other5", "rack[0-1]node[0-3]-ib") and
// of tasks on each node ("2(x3),1"). Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

// The nodes' names in order. A range counts with the zeros of its first number; of several brackets in a name
// the last turns fastest. invalid_argument naming `variable`, its value and what is wrong: a bracket that
// does not close or stands in another, an empty name or range, a range that goes down, a character that no
// host name has, a node named twice, more names than any cluster has.
Result<std::vector<std::string>> expand_node_list(std::string_view text, std::string_view variable);

// Tasks on each of `num_nodes` nodes. invalid_argument: not this form, or of another number of nodes.
Result<std::vector<int64_t>> expand_task_counts(std::string_view text, size_t num_nodes,
                                                std::string_view variable);

}  // namespace tandem
