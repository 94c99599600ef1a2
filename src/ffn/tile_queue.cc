#include "ffn/tile_queue.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

// Weight of the newest interval in a client's mean: follows a change of load within some twenty tiles.
constexpr double kPaceWeight = 0.1;
constexpr double kMinIntervalMicroseconds = 100;  // tiles of one request arrive together; that is no pace

bool may_go(const WaitingTile& tile, bool homes) {
  return homes || tile.tile.part.is_partial();
}

}  // namespace

TileQueue::TileQueue(const SchedulerPolicy& policy, size_t most_tiles) : policy_(policy) {
  tiles_.reserve(most_tiles);
  views_.reserve(most_tiles);
  tile_of_.reserve(most_tiles);
  picked_.reserve(most_tiles);
  decode_index_.reserve(most_tiles);
}

bool TileQueue::push(WaitingTile& tile, uint32_t max_waiting) {
  {
    const std::lock_guard lock(mutex_);
    Session& session = *tile.session;
    if (session.waiting_tiles >= max_waiting) return false;
    ++session.waiting_tiles;
    ++session.tiles;
    session.rows += tile.tile.header.rows;
    if (session.last_arrival != Instant{}) {
      const double interval = microseconds_since(session.last_arrival, tile.arrived);
      session.mean_interval_us += kPaceWeight * (interval - session.mean_interval_us);
    }
    session.last_arrival = tile.arrived;
    tiles_.push_back(std::move(tile));
  }
  work_.notify_one();
  return true;
}

void TileQueue::view_tiles(bool homes) {
  const Instant at = now();
  views_.clear();
  tile_of_.clear();
  for (uint32_t i = 0; i < tiles_.size(); ++i) {
    const WaitingTile& tile = tiles_[i];
    if (!may_go(tile, homes)) continue;
    tile_of_.push_back(i);
    const Duration waited = at - tile.arrived;
    views_.push_back({.layer = tile.tile.header.layer,
                      .row_class = static_cast<RowClass>(tile.tile.header.row_class),
                      .rows = tile.tile.header.rows,
                      .waited = waited,
                      .behind = microseconds_since(tile.arrived, at) /
                                std::max(tile.session->mean_interval_us, kMinIntervalMicroseconds)});
  }
}

void TileQueue::move_picked(std::vector<WaitingTile>& group) {
  for (const uint32_t picked : picked_) {
    const uint32_t index = tile_of_[picked];
    tiles_[index].session->pins.fetch_add(1);
    --tiles_[index].session->waiting_tiles;
    group.push_back(std::move(tiles_[index]));
  }
  std::erase_if(tiles_,
                [](const WaitingTile& tile) { return tile.session == nullptr; });  // the ones moved away
}

bool TileQueue::take_group(std::vector<WaitingTile>& group, bool homes) {
  group.clear();
  std::unique_lock lock(mutex_);
  const auto may_start = [homes](const WaitingTile& tile) { return may_go(tile, homes); };
  work_.wait(lock, [&] { return stopping_ || woken_ || std::ranges::any_of(tiles_, may_start); });
  if (stopping_) return false;
  if (std::exchange(woken_, false)) return true;
  view_tiles(homes);
  FfnScheduler::next(views_, policy_, served_, picked_);
  move_picked(group);
  computing_ = true;
  return true;
}

bool TileQueue::take_preempting(double running_us, std::vector<WaitingTile>& group, bool homes) {
  group.clear();
  const std::lock_guard lock(mutex_);
  if (stopping_ || tiles_.empty()) return false;
  view_tiles(homes);
  if (views_.empty()) return false;
  ServedTime so_far = served_;
  so_far.add(/*prefill=*/true, running_us);
  if (!FfnScheduler::preempts(views_, policy_, so_far)) return false;
  // Of the decode tiles the group that would go next if they were alone.
  decode_index_.clear();
  size_t kept = 0;
  for (uint32_t i = 0; i < views_.size(); ++i) {
    if (is_prefill(views_[i].row_class)) continue;
    decode_index_.push_back(i);
    views_[kept++] = views_[i];
  }
  views_.resize(kept);
  FfnScheduler::next(views_, policy_, so_far, picked_);
  for (uint32_t& index : picked_) index = decode_index_[index];
  move_picked(group);
  return true;
}

void TileQueue::add_served(bool prefill, uint32_t microseconds) {
  const std::lock_guard lock(mutex_);
  served_.add(prefill, microseconds);
}

template <class Match>
size_t TileQueue::drop(Match&& match) {
  std::vector<WaitingTile> dropped;  // leases go back after the lock
  const std::lock_guard lock(mutex_);
  for (WaitingTile& tile : tiles_) {
    if (!match(tile)) continue;
    --tile.session->waiting_tiles;
    dropped.push_back(std::move(tile));
  }
  std::erase_if(tiles_, [](const WaitingTile& tile) { return tile.session == nullptr; });
  return dropped.size();
}

size_t TileQueue::drop_request(const Session& session, const FrameHeader& header) {
  return drop([&](const WaitingTile& tile) {
    const FrameHeader& waiting = tile.tile.header;
    return tile.session.get() == &session && waiting.step == header.step && waiting.layer == header.layer &&
           waiting.lane == header.lane && waiting.attempt == header.attempt;
  });
}

size_t TileQueue::drop_session(const Session& session) {
  return drop([&](const WaitingTile& tile) { return tile.session.get() == &session; });
}

bool TileQueue::idle() const {
  const std::lock_guard lock(mutex_);
  return tiles_.empty() && !computing_;
}

void TileQueue::group_done() {
  const std::lock_guard lock(mutex_);
  computing_ = false;
}

void TileQueue::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  work_.notify_all();
}

void TileQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
}

}  // namespace tandem
