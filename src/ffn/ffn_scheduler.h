// FfnScheduler: which waiting tiles an FFN rank computes next. A pure function of what waits and what was
// served, so that its rules can be tested as a table. Tiles of one layer and class run as one grouped
// product, whoever sent them.
//
// In this order:
//  1. age: a tile that waited longer than its class's bound decides layer and class; of several the one that
//  exceeded most;
//  2. class: decode (with draft) before prefill (with profile), as long as prefill has had its share of
//  compute time;
//  3. size: the layer with the most rows waiting, since reading the experts' weights is paid once a group;
//  4. pace: at equal size, the layer whose client is furthest behind its own pace; then the lowest layer.
// Within the group the clients furthest behind come first, until the row limit is reached.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "moe/ffn_port.h"

namespace tandem {

struct QueuedTile {
  LayerIndex layer = 0;
  RowClass row_class = RowClass::decode;
  uint32_t rows = 0;
  Duration waited{};
  double behind = 0;  // waiting time divided by the mean time between this client's tiles
};

enum class GroupOrder : uint8_t {
  grouped,  // the rules above
  fifo,     // for comparison: the tile that waited for longest decides layer and class
};

struct SchedulerPolicy {
  GroupOrder order = GroupOrder::grouped;
  // Of compute time, for prefill while decode waits too: a prompt still moves under full decode load.
  double prefill_share = 0.2;
  // A lone client at a rarely visited layer waits no longer than some decode groups take; a prompt can wait
  // for longer.
  Duration decode_age_bound = std::chrono::milliseconds(20);
  Duration prefill_age_bound = std::chrono::milliseconds(500);
  uint32_t max_decode_rows =
      512;  // beyond this rows an expert product is compute-bound: a larger group gains nothing
  uint32_t max_prefill_rows = 256;  // a decode tile waits for at most one such group
};

// Compute time spent on each class; decays, so that a share is a share of recent time.
struct ServedTime {
  double decode_us = 0, prefill_us = 0;

  void add(bool prefill, double microseconds);
};

inline bool is_prefill(RowClass row_class) {
  return row_class == RowClass::prefill || row_class == RowClass::profile;
}

class FfnScheduler {
 public:
  // Whether decode that waits now goes between two pieces of a prefill group in work: unless prefill, the
  // part of this group that is done included, has not had its share.
  static bool preempts(std::span<const QueuedTile> waiting, const SchedulerPolicy& policy,
                       const ServedTime& served);

  // Writes the indices of the tiles to compute next; empty only when nothing waits. `picked` is reused by the
  // caller.
  static void next(std::span<const QueuedTile> waiting, const SchedulerPolicy& policy,
                   const ServedTime& served, std::vector<uint32_t>& picked);
};

}  // namespace tandem
