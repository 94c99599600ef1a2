#include "bench/step_profile.h"

#include <algorithm>
#include <map>

namespace tandem::bench {
namespace {

// The first pattern that a path contains names its kind.
struct Kind {
  const char* pattern;
  const char* kind;
};
constexpr Kind kKinds[] = {
    {"quantize", "quantising rows"},
    {"/router", "router"},
    {"/top_k", "top-k"},
    {"/routed/", "experts"},
    {"/shared", "shared experts"},
    {"/combine", "combine"},
    {"moe.shared", "shared experts"},
    {"moe.route", "router"},
    {"moe.submit", "expert dispatch"},
    {"moe.collect", "wait for experts"},
    {"sampling", "sampling"},
    {"mlp.", "dense MLP"},
    {"connection", "residual streams"},
    {"norm", "norms"},
    {"residual", "residual"},
    {"rope", "rope"},
    {"_write", "cache write"},
    {"round", "rounding"},
    {"attention.gqa", "attention"},
    {"attention.mla", "attention"},
    {"attention.attention", "attention"},
    {"attention.index_select", "attention index"},
    {"compress", "compressor"},
    {"absorb", "absorbed projections"},
    {"attention.", "projections"},
    {"head.", "head"},
    {"embedding", "embedding"},
};

}  // namespace

std::string operation_kind(const std::string& path) {
  for (const Kind& kind : kKinds) {
    if (path.find(kind.pattern) != std::string::npos) return kind.kind;
  }
  return "other";
}

std::vector<ProfileLine> profile_lines(const TimeProfile& profile, int steps, double seconds, double waited) {
  std::map<std::string, ProfileLine> kinds;
  std::vector<std::string> paths(profile.nodes().size());
  double covered = 0;
  for (size_t i = 1; i < profile.nodes().size(); ++i) {
    const TimeProfile::Node& node = profile.nodes()[i];
    paths[i] = node.parent == 0 ? node.name : paths[node.parent] + "/" + node.name;
    ProfileLine& line = kinds[operation_kind(paths[i])];
    const double self = std::chrono::duration<double>(node.self).count();
    line.seconds += self / steps;
    line.calls += static_cast<double>(node.count) / steps;
    covered += self;
  }
  std::vector<ProfileLine> lines;
  for (auto& [kind, line] : kinds) {
    line.operation = kind;
    lines.push_back(line);
  }
  std::ranges::sort(lines, [](const ProfileLine& a, const ProfileLine& b) { return a.seconds > b.seconds; });
  lines.push_back({"between operations", std::max(0.0, seconds - covered) / steps, 0, 0});
  lines.push_back({"(waiting for threads)", waited / steps, 0, 0});
  for (ProfileLine& line : lines) line.share = line.seconds * steps / seconds;
  return lines;
}

}  // namespace tandem::bench
