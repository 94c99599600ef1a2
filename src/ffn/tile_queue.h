// TileQueue: the tiles that wait for the compute thread of an FFN rank, with the picking of groups. Any
// thread; every call locks briefly but `take_group`, which waits for work.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "afd/tile_frame.h"
#include "ffn/ffn_scheduler.h"
#include "ffn/session.h"

namespace tandem {

struct WaitingTile {
  std::shared_ptr<Session> session;
  Lease lease;  // the request's bytes
  TileView tile;
  Instant arrived;
};

class TileQueue {
 public:
  // `most_tiles`: that all clients can have here at once; no call allocates for so many.
  explicit TileQueue(const SchedulerPolicy& policy, size_t most_tiles = 0);

  // False: the session has `max_waiting` tiles here already; the tile stays with the caller.
  bool push(WaitingTile& tile, uint32_t max_waiting);

  // Waits for tiles and moves the next group into `group` (cleared first), pinning their sessions. Without
  // `homes`, tiles that are no part stay, and so nobody's part ever waits for a home. Returns with an empty
  // group after `wake`. False after `stop`.
  bool take_group(std::vector<WaitingTile>& group, bool homes = true);
  // While a prefill group is being computed, `running_us` so far: moves the decode group that goes between
  // two of its pieces into `group` (cleared first), pinning their sessions. False: none does. Never waits.
  bool take_preempting(double running_us, std::vector<WaitingTile>& group, bool homes = true);
  // Ends a wait in take_group, or the next one. Any thread, under any lock that take_group's caller does not
  // take meanwhile.
  void wake();
  // What a group took, for the classes' shares.
  void add_served(bool prefill, uint32_t microseconds);

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

  const SchedulerPolicy policy_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::vector<WaitingTile> tiles_;
  std::vector<QueuedTile> views_;       // reused
  std::vector<uint32_t> tile_of_;       // reused: the tile behind a view
  std::vector<uint32_t> picked_;        // reused
  std::vector<uint32_t> decode_index_;  // reused
  ServedTime served_;
  bool computing_ = false;
  bool woken_ = false;
  bool stopping_ = false;
};

}  // namespace tandem
