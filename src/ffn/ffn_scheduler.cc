#include "ffn/ffn_scheduler.h"

#include <algorithm>
#include <optional>

namespace tandem {
namespace {

// Past service fades with this much compute time: long against a group (milliseconds), short against a
// prompt.
constexpr double kMemoryMicroseconds = 200e3;

struct Choice {
  bool prefill = false;
  LayerIndex layer = 0;
};

// The tile that exceeded its age bound by most, if one did.
std::optional<Choice> overdue(std::span<const QueuedTile> waiting, const SchedulerPolicy& policy) {
  std::optional<Choice> choice;
  Duration worst = Duration::zero();
  for (const QueuedTile& tile : waiting) {
    const bool prefill = is_prefill(tile.row_class);
    const Duration excess = tile.waited - (prefill ? policy.prefill_age_bound : policy.decode_age_bound);
    if (excess <= worst) continue;
    worst = excess;
    choice = Choice{prefill, tile.layer};
  }
  return choice;
}

bool prefill_turn(std::span<const QueuedTile> waiting, const SchedulerPolicy& policy,
                  const ServedTime& served) {
  const auto prefill = [](const QueuedTile& tile) { return is_prefill(tile.row_class); };
  if (std::ranges::none_of(waiting, prefill)) return false;
  if (std::ranges::all_of(waiting, prefill)) return true;
  return served.prefill_us < policy.prefill_share * (served.decode_us + served.prefill_us);
}

// The layer of a class with the most rows; see the header for equal ones.
LayerIndex largest_layer(std::span<const QueuedTile> waiting, bool prefill) {
  LayerIndex best_layer = 0;
  uint64_t best_rows = 0;
  double best_behind = -1;
  for (const QueuedTile& first : waiting) {
    if (is_prefill(first.row_class) != prefill) continue;
    uint64_t rows = 0;
    double behind = 0;
    for (const QueuedTile& tile : waiting) {
      if (tile.layer != first.layer || is_prefill(tile.row_class) != prefill) continue;
      rows += tile.rows;
      behind = std::max(behind, tile.behind);
    }
    const bool better = rows != best_rows       ? rows > best_rows
                        : behind != best_behind ? behind > best_behind
                                                : first.layer < best_layer;
    if (!better) continue;
    best_layer = first.layer;
    best_rows = rows;
    best_behind = behind;
  }
  return best_layer;
}

}  // namespace

void ServedTime::add(bool prefill, double microseconds) {
  (prefill ? prefill_us : decode_us) += microseconds;
  const double total = decode_us + prefill_us;
  if (total <= kMemoryMicroseconds) return;
  decode_us *= kMemoryMicroseconds / total;
  prefill_us *= kMemoryMicroseconds / total;
}

bool FfnScheduler::preempts(std::span<const QueuedTile> waiting, const SchedulerPolicy& policy,
                            const ServedTime& served) {
  if (policy.order == GroupOrder::fifo) return false;
  const bool decode_waits =
      std::ranges::any_of(waiting, [](const QueuedTile& tile) { return !is_prefill(tile.row_class); });
  return decode_waits && served.prefill_us >= policy.prefill_share * (served.decode_us + served.prefill_us);
}

void FfnScheduler::next(std::span<const QueuedTile> waiting, const SchedulerPolicy& policy,
                        const ServedTime& served, std::vector<uint32_t>& picked) {
  picked.clear();
  if (waiting.empty()) return;
  Choice choice;
  if (policy.order == GroupOrder::fifo) {
    const auto oldest = std::ranges::max_element(waiting, {}, &QueuedTile::waited);
    choice = {is_prefill(oldest->row_class), oldest->layer};
  } else if (const auto late = overdue(waiting, policy)) {
    choice = *late;
  } else {
    choice.prefill = prefill_turn(waiting, policy, served);
    choice.layer = largest_layer(waiting, choice.prefill);
  }
  for (uint32_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i].layer == choice.layer && is_prefill(waiting[i].row_class) == choice.prefill)
      picked.push_back(i);
  }
  std::ranges::sort(picked, [&](uint32_t a, uint32_t b) {
    const QueuedTile &left = waiting[a], &right = waiting[b];
    if (left.behind != right.behind) return left.behind > right.behind;
    if (left.waited != right.waited) return left.waited > right.waited;
    return a < b;
  });
  const uint32_t limit = choice.prefill ? policy.max_prefill_rows : policy.max_decode_rows;
  uint32_t rows = waiting[picked[0]].rows;  // the first goes always, whatever its size
  size_t count = 1;
  while (count < picked.size() && rows + waiting[picked[count]].rows <= limit)
    rows += waiting[picked[count++]].rows;
  picked.resize(count);
}

}  // namespace tandem
