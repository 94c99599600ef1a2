#include "cli/load_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

std::vector<LoadProfile> make_profiles() {
  // Named after the reports of vLLM's AFD work that measured them, so that figures can stand side by side.
  return {{"seed-503",
           1,
           8275,
           32,
           128,
           3072,
           128,
           {8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128}},
          {"seed-545", 1, 128, 128, 4, 3072, 4, {1, 2, 4}}};
}

uint32_t scaled(uint32_t value, double scale, uint32_t least) {
  return std::max(least, static_cast<uint32_t>(std::lround(value * scale)));
}

}  // namespace

std::vector<std::string> load_profile_names() {
  std::vector<std::string> names;
  for (const LoadProfile& profile : make_profiles()) names.push_back(profile.name);
  return names;
}

LoadProfile load_profile(const std::string& name, double scale) {
  const std::vector<LoadProfile> profiles = make_profiles();
  const auto found = std::ranges::find(profiles, name, &LoadProfile::name);
  LoadProfile profile = found == profiles.end() ? profiles.front() : *found;
  profile.scale = scale;
  profile.input_tokens = scaled(profile.input_tokens, scale, 1);
  profile.output_tokens = scaled(profile.output_tokens, scale, 2);
  profile.concurrency = scaled(profile.concurrency, scale, 1);
  profile.max_num_batched_tokens = scaled(profile.max_num_batched_tokens, scale, 1);
  profile.max_num_seqs = scaled(profile.max_num_seqs, scale, 1);
  for (uint32_t& size : profile.capture_sizes) size = scaled(size, scale, 1);
  profile.capture_sizes.erase(std::ranges::unique(profile.capture_sizes).begin(),
                              profile.capture_sizes.end());
  return profile;
}

Status check_context(const LoadProfile& profile, uint32_t max_positions) {
  if (profile.context_tokens() <= max_positions) return {};
  const LoadProfile whole = load_profile(profile.name, 1);
  // Down to a hundredth, so that the advice itself fits.
  double fits = std::floor(100.0 * max_positions / whole.context_tokens()) / 100;
  while (fits > 0.01 && load_profile(profile.name, fits).context_tokens() > max_positions) fits -= 0.01;
  return make_error(
      ErrorCode::invalid_argument,
      fmt::format("bench.scale: {}: profile {} needs a context of {} tokens and the model has {}; "
                  "use --scale {:.2f} or less",
                  profile.scale, profile.name, profile.context_tokens(), max_positions, fits));
}

}  // namespace tandem
