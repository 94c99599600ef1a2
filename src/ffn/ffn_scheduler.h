// FfnScheduler: which waiting tiles an FFN rank computes next. A pure function of what waits and what was
// served, so that its rules can be tested as a table. Tiles of one layer and class run as one grouped
// product, whoever sent them.
//
// In this order:
//  1. class: decode (with draft) before prefill (with profile), as long as prefill has had its share of
//  compute time. That share is what keeps prompts moving; nothing else takes decode's place;
//  2. fairness, inside the class: a client that has used more compute time than the one that used least, by
//  more than some calls take, is *ahead*. It decides nothing, and goes along with others only as a rider;
//  3. age: a tile that waited for longer than its class's bound decides the layer; of several the one that
//  waited longest. A tile of a client that is ahead does so after many times that bound;
//  4. size: the layer with the most rows waiting, since reading the experts' weights is paid once a group;
//  5. pace: at equal size, the layer whose client is furthest behind its own pace; then the lowest layer.
// Into the group goes one request (its oldest at the layer) of each client that is not ahead, who used least
// first, until the row limit is reached. Further requests, and clients that are ahead, are riders: they go
// along as long as they do not make the group more than twice as large, or where nobody else waits.
//
// So a client that floods waits in its own queue: others meet a call of its requests now and then, never all
// of them. Every tile is computed: calls of others raise their accounts until nobody is ahead of them.
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
  double behind = 0;     // waiting time divided by the mean time between this client's tiles
  uint32_t client = 0;   // equal for the tiles of one client
  uint64_t request = 0;  // equal for the tiles of one request of the client
  double used_us = 0;    // the client's account in this class (client_share.h)
  bool exempt = false;   // of another FFN rank: the work of many clients, which were weighed there
};

// A client that is computing between two layers and is about to ask for the next one.
struct ExpectedTile {
  LayerIndex layer = 0;
  uint32_t rows = 0;
  Duration in{};  // from now
};

enum class GroupOrder : uint8_t {
  grouped,  // the rules above
  oldest,   // for comparison: the tile that waited for longest decides layer and class
  fifo,     // for comparison: that tile alone
};

struct SchedulerPolicy {
  GroupOrder order = GroupOrder::grouped;
  // Of compute time, for prefill while decode waits too: a prompt still moves under full decode load.
  double prefill_share = 0.2;
  // A lone client at a rarely visited layer waits no longer than some decode groups take; a prompt can wait
  // for longer. Where calls are long, so many calls instead (kAgeCalls): else every tile of a large model
  // would be old, and oldest first merges nothing.
  Duration decode_age_bound = std::chrono::milliseconds(20);
  Duration prefill_age_bound = std::chrono::milliseconds(500);
  uint32_t max_decode_rows =
      512;  // beyond this rows an expert product is compute-bound: a larger group gains nothing
  uint32_t max_prefill_rows = 256;  // a decode tile waits for at most one such group
  // How long a tile may wait, the compute thread idle, for a client that is about to ask for the same layer.
  // What merging saves decides; this only bounds it, below what anybody notices in a token. 0: never.
  Duration max_hold = std::chrono::milliseconds(2);
  // Experts of a layer and of a row: how many experts so many rows read. 0: unknown, nothing is held.
  uint32_t num_experts = 0, top_k = 0;
};

// Compute time spent on each class; decays, so that a share is a share of recent time.
struct ServedTime {
  double decode_us = 0, prefill_us = 0;
  double decode_call_us = 0, prefill_call_us = 0;  // of one call, lately
  double expert_us = 0;                            // of a decode call for each expert that it reads, lately

  // `experts`: that the call is expected to have read; 0: unknown.
  void add(bool prefill, double microseconds, double experts = 0);
  double call_us(bool prefill) const { return prefill ? prefill_call_us : decode_call_us; }
};

inline bool is_prefill(RowClass row_class) {
  return row_class == RowClass::prefill || row_class == RowClass::profile;
}

// Experts of a layer that `rows` rows read, if they choose evenly.
double expected_experts(const SchedulerPolicy& policy, double rows);

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

  // How long the compute thread should leave what waits for one of `expected` to join it; zero: compute now.
  // Only where nothing else is to be done (all that waits is decode of one layer), only while the clients'
  // mean time to their answers gets shorter by it, and never beyond policy.max_hold of any tile's waiting.
  static Duration hold(std::span<const QueuedTile> waiting, std::span<const ExpectedTile> expected,
                       const SchedulerPolicy& policy, const ServedTime& served);

  // How much more compute time than another one a client may have used before it is ahead, and the credit
  // with which a client begins that comes with nothing waiting. Microseconds.
  static double lead_bound(const ServedTime& served, bool prefill);
  static double credit(const ServedTime& served, bool prefill) { return 1.25 * lead_bound(served, prefill); }
};

}  // namespace tandem
