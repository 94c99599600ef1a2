#include "ffn/ffn_scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace tandem {
namespace {

// Past service fades with this much compute time: long against a group (milliseconds), short against a
// prompt.
constexpr double kMemoryMicroseconds = 200e3;
// Weight of the newest call in the mean: follows a change of load within some ten calls.
constexpr double kCallWeight = 0.1;
// A client is ahead when the others have missed about two calls of theirs: fewer would let the accident of
// who was merged with whom decide, more would be waiting for.
constexpr double kLeadCalls = 2;
// Before calls were measured, or where they are shorter than what waking a thread takes.
constexpr double kLeastLeadMicroseconds = 200;
// In calls, what the age bound is at least: some calls of other layers go before, not dozens.
constexpr double kAgeCalls = 8;
// Age bounds that a tile of a client that is ahead waits for: only whom new clients keep overtaking meets it.
constexpr int kStarvedBounds = 16;

// Marks an index in `picked` as a rider's while a group is put together.
constexpr uint32_t kRider = 1u << 31;

Duration age_bound(const SchedulerPolicy& policy, const ServedTime& served, bool prefill) {
  const auto calls = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double, std::micro>(kAgeCalls * served.call_us(prefill)));
  return std::max(prefill ? policy.prefill_age_bound : policy.decode_age_bound, calls);
}

bool prefill_turn(std::span<const QueuedTile> waiting, const SchedulerPolicy& policy,
                  const ServedTime& served) {
  const auto prefill = [](const QueuedTile& tile) { return is_prefill(tile.row_class); };
  if (std::ranges::none_of(waiting, prefill)) return false;
  if (std::ranges::all_of(waiting, prefill)) return true;
  return served.prefill_us < policy.prefill_share * (served.decode_us + served.prefill_us);
}

// The tiles of one class, with who is ahead among their clients.
class ClassView {
 public:
  ClassView(std::span<const QueuedTile> waiting, const SchedulerPolicy& policy, const ServedTime& served,
            bool prefill)
      : waiting_(waiting), age_bound_(age_bound(policy, served, prefill)) {
    double least = std::numeric_limits<double>::infinity();
    for (const QueuedTile& tile : waiting) {
      if (is_prefill(tile.row_class) == prefill && !tile.exempt) least = std::min(least, tile.used_us);
    }
    most_used_ = least + FfnScheduler::lead_bound(served, prefill);
  }

  bool ahead(const QueuedTile& tile) const {
    return !tile.exempt && tile.used_us >= most_used_ && tile.client != starved_client_;
  }

  // The layer of the tile that is too old, if there is one. If that is a client's that is ahead, it is not
  // ahead from now on.
  std::optional<LayerIndex> overdue(std::span<const uint32_t> tiles) {
    const QueuedTile* oldest = nullptr;
    for (const uint32_t index : tiles) {
      const QueuedTile& tile = waiting_[index];
      if (tile.waited <= age_bound_ * (ahead(tile) ? kStarvedBounds : 1)) continue;
      if (oldest == nullptr || tile.waited > oldest->waited) oldest = &tile;
    }
    if (oldest == nullptr) return std::nullopt;
    if (ahead(*oldest)) starved_client_ = oldest->client;
    return oldest->layer;
  }

  // Of tiles sorted by layer, the layer with the most rows of clients that are not ahead; see the header for
  // equal ones.
  LayerIndex largest(std::span<const uint32_t> tiles) const {
    LayerIndex best_layer = waiting_[tiles.front()].layer;
    uint64_t best_rows = 0;
    double best_behind = -1;
    for (size_t at = 0; at < tiles.size();) {
      const LayerIndex layer = waiting_[tiles[at]].layer;
      uint64_t rows = 0;
      double behind = 0;
      for (; at < tiles.size() && waiting_[tiles[at]].layer == layer; ++at) {
        const QueuedTile& tile = waiting_[tiles[at]];
        if (ahead(tile)) continue;
        rows += tile.rows;
        behind = std::max(behind, tile.behind);
      }
      if (rows < best_rows || (rows == best_rows && behind <= best_behind)) continue;
      best_layer = layer;
      best_rows = rows;
      best_behind = behind;
    }
    return best_layer;
  }

 private:
  std::span<const QueuedTile> waiting_;
  const Duration age_bound_;
  double most_used_ = 0;
  uint32_t starved_client_ = UINT32_MAX;
};

// Who goes first inside a group.
bool goes_before(const QueuedTile& left, const QueuedTile& right, uint32_t a, uint32_t b) {
  if (left.used_us != right.used_us) return left.used_us < right.used_us;
  if (left.behind != right.behind) return left.behind > right.behind;
  if (left.waited != right.waited) return left.waited > right.waited;
  return a < b;
}

// Marks riders among the tiles of a layer, and sorts by who goes first.
void rank_group(std::span<const QueuedTile> waiting, const ClassView& view, std::vector<uint32_t>& group) {
  std::ranges::sort(group, [&](uint32_t a, uint32_t b) {  // clients together, each one's oldest first
    const QueuedTile &left = waiting[a], &right = waiting[b];
    if (left.client != right.client) return left.client < right.client;
    if (left.waited != right.waited) return left.waited > right.waited;
    return a < b;
  });
  const QueuedTile* first = nullptr;  // of the client
  for (uint32_t& index : group) {
    const QueuedTile& tile = waiting[index];
    if (first == nullptr || first->client != tile.client) first = &tile;
    if (view.ahead(tile) || (!tile.exempt && tile.request != first->request)) index |= kRider;
  }
  std::ranges::sort(group, [&](uint32_t a, uint32_t b) {
    if ((a & kRider) != (b & kRider)) return (a & kRider) == 0;
    a &= ~kRider;
    b &= ~kRider;
    return goes_before(waiting[a], waiting[b], a, b);
  });
}

// Cuts a ranked group to its limits and takes the marks off.
void cut_group(std::span<const QueuedTile> waiting, uint32_t limit, bool alone,
               std::vector<uint32_t>& group) {
  uint64_t rows = 0, most = limit;
  size_t count = 0;
  bool riding = false;
  for (; count < group.size(); ++count) {
    const uint32_t index = group[count] & ~kRider;
    if ((group[count] & kRider) != 0 && !riding) {
      riding = true;
      if (!alone) most = std::min<uint64_t>(limit, 2 * rows);
    }
    if (count > 0 && rows + waiting[index].rows > most) break;  // the first goes always, whatever its size
    rows += waiting[index].rows;
    group[count] = index;
  }
  group.resize(count);
}

void pick_all(std::span<const QueuedTile> waiting, LayerIndex layer, bool prefill, uint32_t limit,
              std::vector<uint32_t>& picked) {
  for (uint32_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i].layer == layer && is_prefill(waiting[i].row_class) == prefill) picked.push_back(i);
  }
  std::ranges::sort(picked,
                    [&](uint32_t a, uint32_t b) { return goes_before(waiting[a], waiting[b], a, b); });
  cut_group(waiting, limit, true, picked);
}

}  // namespace

void ServedTime::add(bool prefill, double microseconds, double experts) {
  double& call = prefill ? prefill_call_us : decode_call_us;
  call += (call == 0 ? 1 : kCallWeight) * (microseconds - call);
  if (!prefill && experts > 0)
    expert_us += (expert_us == 0 ? 1 : kCallWeight) * (microseconds / experts - expert_us);
  (prefill ? prefill_us : decode_us) += microseconds;
  const double total = decode_us + prefill_us;
  if (total <= kMemoryMicroseconds) return;
  decode_us *= kMemoryMicroseconds / total;
  prefill_us *= kMemoryMicroseconds / total;
}

double expected_experts(const SchedulerPolicy& policy, double rows) {
  if (policy.num_experts == 0) return 0;
  const double share = static_cast<double>(policy.top_k) / policy.num_experts;
  return policy.num_experts * (1 - std::pow(1 - std::min(share, 1.0), rows));
}

double FfnScheduler::lead_bound(const ServedTime& served, bool prefill) {
  return std::max(kLeastLeadMicroseconds, kLeadCalls * served.call_us(prefill));
}

bool FfnScheduler::preempts(std::span<const QueuedTile> waiting, const SchedulerPolicy& policy,
                            const ServedTime& served) {
  if (policy.order != GroupOrder::grouped) return false;
  const bool decode_waits =
      std::ranges::any_of(waiting, [](const QueuedTile& tile) { return !is_prefill(tile.row_class); });
  return decode_waits && served.prefill_us >= policy.prefill_share * (served.decode_us + served.prefill_us);
}

void FfnScheduler::next(std::span<const QueuedTile> waiting, const SchedulerPolicy& policy,
                        const ServedTime& served, std::vector<uint32_t>& picked) {
  picked.clear();
  if (waiting.empty()) return;
  const auto limit = [&](bool prefill) { return prefill ? policy.max_prefill_rows : policy.max_decode_rows; };
  if (policy.order != GroupOrder::grouped) {
    const auto oldest = std::ranges::max_element(waiting, {}, &QueuedTile::waited);
    const bool prefill = is_prefill(oldest->row_class);
    if (policy.order == GroupOrder::oldest)
      return pick_all(waiting, oldest->layer, prefill, limit(prefill), picked);
    picked.push_back(static_cast<uint32_t>(oldest - waiting.begin()));
    return;
  }
  const bool prefill = prefill_turn(waiting, policy, served);
  bool alone = true;  // one client is all that waits in this class
  for (uint32_t i = 0; i < waiting.size(); ++i) {
    if (is_prefill(waiting[i].row_class) != prefill) continue;
    picked.push_back(i);
    alone = alone && waiting[i].client == waiting[picked.front()].client;
  }
  std::ranges::sort(picked, {}, [&](uint32_t index) { return std::pair(waiting[index].layer, index); });
  ClassView view(waiting, policy, served, prefill);
  const auto late = view.overdue(picked);
  const LayerIndex layer = late ? *late : view.largest(picked);
  std::erase_if(picked, [&](uint32_t index) { return waiting[index].layer != layer; });
  rank_group(waiting, view, picked);
  cut_group(waiting, limit(prefill), alone, picked);
}

Duration FfnScheduler::hold(std::span<const QueuedTile> waiting, std::span<const ExpectedTile> expected,
                            const SchedulerPolicy& policy, const ServedTime& served) {
  if (waiting.empty() || expected.empty() || policy.order != GroupOrder::grouped || served.expert_us <= 0 ||
      policy.max_hold <= Duration::zero() || policy.num_experts == 0)
    return Duration::zero();
  Duration waited{};
  double rows = 0, clients = 0;
  for (size_t i = 0; i < waiting.size(); ++i) {
    const QueuedTile& tile = waiting[i];
    if (is_prefill(tile.row_class) || tile.layer != waiting.front().layer) return Duration::zero();
    waited = std::max(waited, tile.waited);
    rows += tile.rows;
    const auto earlier = waiting.first(i);
    clients +=
        std::ranges::none_of(earlier, [&](const QueuedTile& other) { return other.client == tile.client; });
  }
  const ExpectedTile* next = nullptr;
  for (const ExpectedTile& tile : expected) {
    if (tile.layer == waiting.front().layer && (next == nullptr || tile.in < next->in)) next = &tile;
  }
  if (next == nullptr || waited + next->in > policy.max_hold) return Duration::zero();
  // One after the other, `waiting` is answered after a call and the other one after both, its arrival `in`
  // less that; merged, all after `in` and one call that is shorter than two by what it saves. Summed over
  // clients, merging is sooner if `in` is less than saved - its own call * (clients that wait / all clients).
  const double mine = expected_experts(policy, rows), theirs = expected_experts(policy, next->rows);
  const double saved = mine + theirs - expected_experts(policy, rows + next->rows);
  const double worth_us = served.expert_us * (saved - theirs * clients / (clients + 1));
  if (std::chrono::duration<double, std::micro>(next->in).count() >= worth_us) return Duration::zero();
  return std::max<Duration>(next->in, std::chrono::microseconds(1));
}

}  // namespace tandem
