// TileQueue: the tiles that wait for the compute thread of an FFN rank, with the picking of groups. Any
// thread; every call locks briefly but `take_group`, which waits for work.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "afd/tile_frame.h"
#include "ffn/client_load.h"
#include "ffn/ffn_scheduler.h"
#include "ffn/session.h"

namespace tandem {

struct WaitingTile {
  std::shared_ptr<Session> session;
  Lease lease;  // the request's bytes
  TileView tile;
  Instant arrived;
};

// Counts since the start.
struct HoldStats {
  uint64_t holds = 0, joined = 0;  // waits for another client, and how many of them somebody ended
  double held_us = 0;
};

class TileQueue {
 public:
  // `most_tiles`: that all clients can have here at once; no call allocates for so many. `moe_layers`,
  // ascending: what a client asks for after a layer.
  explicit TileQueue(const SchedulerPolicy& policy, size_t most_tiles = 0,
                     std::span<const uint16_t> moe_layers = {});

  // resource_exhausted, naming the quota that the client is over; the tile stays with the caller.
  Status push(WaitingTile& tile, const ClientQuota& quota);

  // Waits for tiles, and where it pays a bounded time for one more (FfnScheduler::hold), and moves the next
  // group into `group` (cleared first), pinning their sessions. Without `homes`, tiles that are no part stay,
  // and so nobody's part ever waits for a home. Returns with an empty group after `wake`. False after `stop`.
  bool take_group(std::vector<WaitingTile>& group, bool homes = true);
  // While a prefill group is being computed, `running_us` so far: moves the decode group that goes between
  // two of its pieces into `group` (cleared first), pinning their sessions. False: none does. Never waits.
  bool take_preempting(double running_us, std::vector<WaitingTile>& group, bool homes = true);
  // Ends a wait in take_group, or the next one. Any thread, under any lock that take_group's caller does not
  // take meanwhile.
  void wake();
  // What the group of this class that was taken last took: for the classes' and the clients' shares.
  void add_served(bool prefill, uint32_t microseconds);
  HoldStats holds() const;

  // Drops what waits of one request (header of a cancel frame) or of a whole session. Returns how many tiles.
  size_t drop_request(const Session& session, const FrameHeader& header);
  size_t drop_session(const Session& session);

  // Nothing waits and nothing is being computed.
  bool idle() const;
  // A group that take_group handed out is finished.
  void group_done();

  void stop();

  // Reads the counters of sessions that this mutex guards.
  template <class Body>
  void locked(Body&& body) const {
    const std::lock_guard lock(mutex_);
    body();
  }

 private:
  template <class Match>
  size_t drop(Match&& match);
  // The mutex is held.
  void view_tiles(bool homes);
  void move_picked(std::vector<WaitingTile>& group);
  void note_arrival(const WaitingTile& tile);
  // A tile begins or ends to wait.
  static void count_waiting(ClientLoad& client, uint32_t rows);
  static void count_gone(ClientLoad& client, uint32_t rows);
  void expect_clients(Instant at);
  // Whether it waited: then everything is to be looked at again.
  bool hold(std::unique_lock<std::mutex>& lock);
  std::optional<LayerIndex> layer_after(LayerIndex layer) const;

  // Of a group in work: whom its time is charged to.
  struct Running {
    std::shared_ptr<ClientLoad> client;
    uint32_t rows = 0;
  };

  const SchedulerPolicy policy_;
  const std::vector<uint16_t> moe_layers_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::vector<WaitingTile> tiles_;
  std::vector<QueuedTile> views_;                      // reused
  std::vector<uint32_t> tile_of_;                      // reused: the tile behind a view
  std::vector<uint32_t> picked_;                       // reused
  std::vector<uint32_t> decode_index_;                 // reused
  std::vector<ExpectedTile> expected_;                 // reused
  std::vector<Running> running_[2];                    // of decode, of prefill
  std::vector<std::shared_ptr<ClientLoad>> answered_;  // who may come with the next layer
  ServedTime served_;
  ShareClock shares_;
  HoldStats holds_;
  uint64_t pushes_ = 0, groups_ = 0;
  bool computing_ = false;
  bool woken_ = false;
  bool stopping_ = false;
};

}  // namespace tandem
