#include "ffn/ffn_stats.h"

#include <fmt/format.h>

namespace tandem {

std::string describe(const FfnStats& stats) {
  const auto ratio = [](uint64_t sum, uint64_t count) {
    return count == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(count);
  };
  return fmt::format(
      "{} tiles, {} rows in {} groups ({:.1f} clients each, at most {}), {:.1f} rows an expert read; "
      "decode {} ms, prefill {} ms; {} refused, {} cancelled, {} failed",
      stats.tiles, stats.rows, stats.groups, ratio(stats.clients_in_groups, stats.groups),
      stats.max_clients_in_group, ratio(stats.expert_rows, stats.experts_read), stats.decode_us / 1000,
      stats.prefill_us / 1000, stats.tiles_refused, stats.tiles_cancelled, stats.tiles_failed);
}

}  // namespace tandem
