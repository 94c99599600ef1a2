#include "cli/build_info.h"

#include <sys/stat.h>

#include "build_commit.h"

namespace tandem {

const BuildInfo& build_info() {
  static const BuildInfo info{TANDEM_VERSION, TANDEM_COMMIT, "GCC " __VERSION__, TANDEM_BUILD_TYPE};
  return info;
}

std::string build_stamp() {
  struct stat facts{};
  if (::stat("/proc/self/exe", &facts) != 0) return build_info().commit;
  return build_info().commit + ", " + std::to_string(facts.st_size) + " bytes of " +
         std::to_string(facts.st_mtim.tv_sec) + "." + std::to_string(facts.st_mtim.tv_nsec);
}

}  // namespace tandem
