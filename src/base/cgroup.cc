#include "base/cgroup.h"

#include <fstream>
#include <sstream>

namespace tandem {
namespace {

bool lists(const std::string& controllers, const std::string& wanted) {
  std::istringstream stream(controllers);
  for (std::string name; std::getline(stream, name, ',');) {
    if (name == wanted) return true;
  }
  return false;
}

}  // namespace

std::string kernel_file_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<std::string> group_in(const std::string& proc_cgroup, CgroupVersion version,
                                    const std::string& controller) {
  // Lines of "number:controllers:group"; v2 has the number 0 and no controllers.
  std::istringstream stream(proc_cgroup);
  for (std::string line; std::getline(stream, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const bool is_v2 = line.substr(0, second) == "0:";
    const bool wanted = version == CgroupVersion::v2
                            ? is_v2
                            : !is_v2 && lists(line.substr(first + 1, second - first - 1), controller);
    if (wanted) return line.substr(second + 1);
  }
  return std::nullopt;
}

std::vector<std::string> way_to_root(const std::string& root, std::string group) {
  std::vector<std::string> way;
  while (!group.empty() && group != "/") {
    way.push_back(root + group);
    const size_t slash = group.rfind('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
  way.push_back(root);
  return way;
}

std::vector<CgroupFolder> cgroup_folders(const std::string& controller) {
  const std::string groups = kernel_file_text("/proc/self/cgroup");
  std::vector<CgroupFolder> folders;
  const auto add = [&](CgroupVersion version, const std::string& root) {
    const auto group = group_in(groups, version, controller);
    if (!group) return;
    for (std::string& path : way_to_root(root, *group)) folders.push_back({version, std::move(path)});
  };
  add(CgroupVersion::v2, "/sys/fs/cgroup");
  add(CgroupVersion::v1, "/sys/fs/cgroup/" + controller);
  return folders;
}

}  // namespace tandem
