// BuildInfo: which build this binary is, for reports that must be repeatable. Any thread.
#pragma once

#include <string>

namespace tandem {

struct BuildInfo {
  std::string version;
  std::string
      commit;  // when it was built; "+changes" behind it: the tree had changes; "unknown": no git tree
  std::string compiler;
  std::string build_type;
};

const BuildInfo& build_info();

// Differs between any two builds of one machine, where the commit may be the same: commit, size and time of
// this process's executable.
std::string build_stamp();

}  // namespace tandem
