// Cgroups: the folders in which the limits of this process stand. A limit of any ancestor binds, so they come
// as the way from the process's own group to the root. Any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tandem {

enum class CgroupVersion { v1, v2 };

struct CgroupFolder {
  CgroupVersion version = CgroupVersion::v2;
  std::string path;
};

// The folders of this process's groups, v2 and the v1 hierarchy of `controller` ("memory", "cpu"). Inside a
// container a group's path may name folders that only the host sees: a folder need not exist.
std::vector<CgroupFolder> cgroup_folders(const std::string& controller);

// The group in the text of /proc/self/cgroup: of the v2 hierarchy, or of the v1 hierarchy that has
// `controller`.
std::optional<std::string> group_in(const std::string& proc_cgroup, CgroupVersion version,
                                    const std::string& controller);

// "/sys/fs/cgroup" and "/a/b": ".../a/b", ".../a", "/sys/fs/cgroup".
std::vector<std::string> way_to_root(const std::string& root, std::string group);

// The text of a file of the kernel's, "" for one that is not there.
std::string kernel_file_text(const std::string& path);

}  // namespace tandem
