#include "ffn/tile_queue.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace tandem {
namespace {

// Weight of the newest interval in a client's mean: follows a change of load within some twenty tiles.
constexpr double kPaceWeight = 0.1;
constexpr double kMinIntervalMicroseconds = 100;  // tiles of one request arrive together; that is no pace

// Equal for the tiles of one request. Sessions that share an account may use the same numbers: they are told
// apart by an odd factor, which spreads session numbers over all bits.
uint64_t request_of(const ClientLoad& client, const FrameHeader& header) {
  const uint64_t request = uint64_t{header.step} << 32 | uint64_t{header.lane} << 16 | header.attempt;
  return request ^ uint64_t { client.number - client.account->number } * 0x9e3779b97f4a7c15u;
}

bool may_go(const WaitingTile& tile, bool homes) {
  return homes || tile.tile.part.is_partial();
}

}  // namespace

TileQueue::TileQueue(const SchedulerPolicy& policy, size_t most_tiles, std::span<const uint16_t> moe_layers)
    : policy_(policy), moe_layers_(moe_layers.begin(), moe_layers.end()) {
  tiles_.reserve(most_tiles);
  views_.reserve(most_tiles);
  tile_of_.reserve(most_tiles);
  picked_.reserve(most_tiles);
  decode_index_.reserve(most_tiles);
  expected_.reserve(most_tiles);
  answered_.reserve(most_tiles);
  for (std::vector<Running>& running : running_) running.reserve(most_tiles);
}

Status TileQueue::push(WaitingTile& tile, const ClientQuota& quota) {
  {
    const std::lock_guard lock(mutex_);
    ClientLoad& client = tile.session->load();
    const ClientAccount& account = *client.account;
    const uint32_t rows = tile.tile.header.rows;
    if (account.waiting_tiles >= quota.tiles) {
      ++client.refused;
      return make_error(ErrorCode::resource_exhausted,
                        std::to_string(account.waiting_tiles) +
                            " tiles of this client wait already, its quota (afd.client_waiting_tiles)");
    }
    if (account.waiting_rows + rows > quota.rows) {
      ++client.refused;
      return make_error(ErrorCode::resource_exhausted,
                        std::to_string(account.waiting_rows) + " rows of this client wait already, and " +
                            std::to_string(rows) + " more are beyond its quota of " +
                            std::to_string(quota.rows) + " (afd.client_waiting_rows)");
    }
    note_arrival(tile);
    tiles_.push_back(std::move(tile));
    ++pushes_;
  }
  work_.notify_one();
  return {};
}

void TileQueue::count_waiting(ClientLoad& client, uint32_t rows) {
  ++client.waiting_tiles;
  client.waiting_rows += rows;
  ++client.account->waiting_tiles;
  client.account->waiting_rows += rows;
}

void TileQueue::count_gone(ClientLoad& client, uint32_t rows) {
  --client.waiting_tiles;
  client.waiting_rows -= rows;
  --client.account->waiting_tiles;
  client.account->waiting_rows -= rows;
}

void TileQueue::note_arrival(const WaitingTile& tile) {
  ClientLoad& client = tile.session->load();
  const FrameHeader& header = tile.tile.header;
  const bool prefill = is_prefill(static_cast<RowClass>(header.row_class));
  shares_.arrive(client.account->share, prefill, FfnScheduler::credit(served_, prefill));
  count_waiting(client, header.rows);
  ++client.tiles;
  client.rows += header.rows;
  if (client.last_arrival != Instant{}) {
    const double interval = microseconds_since(client.last_arrival, tile.arrived);
    client.mean_interval_us += kPaceWeight * (interval - client.mean_interval_us);
  }
  client.last_arrival = tile.arrived;
  if (prefill || !client.answered) return;
  if (layer_after(client.last_layer) == header.layer)
    client.next_layer.observe(microseconds_since(*client.answered, tile.arrived));
  client.answered.reset();
}

std::optional<LayerIndex> TileQueue::layer_after(LayerIndex layer) const {
  const auto next = std::ranges::upper_bound(moe_layers_, layer);
  if (next == moe_layers_.end()) return std::nullopt;  // a step's end: sampling and more, nobody's habit
  return *next;
}

void TileQueue::view_tiles(bool homes) {
  const Instant at = now();
  views_.clear();
  tile_of_.clear();
  double least[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  for (uint32_t i = 0; i < tiles_.size(); ++i) {
    const WaitingTile& tile = tiles_[i];
    if (!may_go(tile, homes)) continue;
    tile_of_.push_back(i);
    const FrameHeader& header = tile.tile.header;
    const ClientLoad& client = tile.session->load();
    const Duration waited = at - tile.arrived;
    const auto row_class = static_cast<RowClass>(header.row_class);
    const size_t column = is_prefill(row_class) ? 1 : 0;
    const double used = client.account->share.used_us[column];
    views_.push_back({.layer = header.layer,
                      .row_class = row_class,
                      .rows = header.rows,
                      .waited = waited,
                      .behind = microseconds_since(tile.arrived, at) /
                                std::max(client.mean_interval_us, kMinIntervalMicroseconds),
                      .client = client.account->number,
                      .request = request_of(client, header),
                      .used_us = used,
                      .exempt = client.exempt});
    if (!client.exempt) least[column] = std::min(least[column], used);
  }
  for (const bool prefill : {false, true}) {
    const double used = least[prefill ? 1 : 0];
    if (used != std::numeric_limits<double>::infinity()) shares_.advance(prefill, used);
  }
}

void TileQueue::expect_clients(Instant at) {
  expected_.clear();
  // Whoever is not expected leaves the list until the next answer: one that is late, or has left, would stay
  // for ever.
  std::erase_if(answered_, [&](const std::shared_ptr<ClientLoad>& client) {
    const auto layer = layer_after(client->last_layer);
    const auto in = client->answered && layer
                        ? client->next_layer.expected_in(microseconds_since(*client->answered, at))
                        : std::nullopt;
    client->listed = in.has_value();
    if (in)
      expected_.push_back({*layer, client->last_rows, std::chrono::microseconds(static_cast<int64_t>(*in))});
    return !in;
  });
}

bool TileQueue::hold(std::unique_lock<std::mutex>& lock) {
  const auto is_exempt = [](const QueuedTile& tile) { return tile.exempt; };
  if (policy_.max_hold <= Duration::zero() || std::ranges::any_of(views_, is_exempt)) return false;
  const Instant at = now();
  expect_clients(at);
  const Duration time = FfnScheduler::hold(views_, expected_, policy_, served_);
  if (time <= Duration::zero()) return false;
  const uint64_t seen = pushes_;
  const LayerIndex layer = views_.front().layer;  // of all that waits
  const auto joins = [layer](const WaitingTile& tile) {
    const FrameHeader& header = tile.tile.header;
    return header.layer == layer && !is_prefill(static_cast<RowClass>(header.row_class));
  };
  const auto joined = std::ranges::count_if(tiles_, joins);
  ++holds_.holds;
  work_.wait_for(lock, time, [&] { return stopping_ || woken_ || pushes_ != seen; });
  holds_.joined += std::ranges::count_if(tiles_, joins) > joined ? 1 : 0;
  holds_.held_us += microseconds_since(at);
  return true;
}

void TileQueue::move_picked(std::vector<WaitingTile>& group) {
  if (picked_.empty()) return;
  ++groups_;
  const FrameHeader& first = tiles_[tile_of_[picked_.front()]].tile.header;
  std::vector<Running>& running = running_[is_prefill(static_cast<RowClass>(first.row_class)) ? 1 : 0];
  running.clear();
  for (const uint32_t picked : picked_) {
    const uint32_t index = tile_of_[picked];
    WaitingTile& tile = tiles_[index];
    tile.session->pins.fetch_add(1);
    const std::shared_ptr<ClientLoad>& client = tile.session->shared_load();
    const FrameHeader& header = tile.tile.header;
    count_gone(*client, header.rows);
    if (std::exchange(client->last_group, groups_) != groups_) client->last_rows = 0;
    client->last_layer = header.layer;
    client->last_rows += header.rows;
    running.push_back({client, header.rows});
    group.push_back(std::move(tile));
  }
  std::erase_if(tiles_,
                [](const WaitingTile& tile) { return tile.session == nullptr; });  // the ones moved away
}

bool TileQueue::take_group(std::vector<WaitingTile>& group, bool homes) {
  group.clear();
  std::unique_lock lock(mutex_);
  const auto may_start = [homes](const WaitingTile& tile) { return may_go(tile, homes); };
  do {
    work_.wait(lock, [&] { return stopping_ || woken_ || std::ranges::any_of(tiles_, may_start); });
    if (stopping_) return false;
    if (std::exchange(woken_, false)) return true;
    view_tiles(homes);
  } while (hold(lock));
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
  std::vector<Running>& running = running_[prefill ? 1 : 0];
  uint32_t rows = 0;
  for (const Running& tile : running) rows += tile.rows;
  served_.add(prefill, microseconds, expected_experts(policy_, rows));
  const Instant at = now();
  for (Running& tile : running) {
    ClientLoad& client = *tile.client;
    const double part = static_cast<double>(microseconds) * tile.rows / rows;
    client.computed_us += part;
    ShareClock::charge(client.account->share, prefill, part);
    if (prefill || client.waiting_tiles > 0 || client.exempt) continue;
    if (!client.listed && answered_.size() == answered_.capacity()) continue;
    if (!std::exchange(client.listed, true)) answered_.push_back(tile.client);
    client.answered = at;
  }
  running.clear();
}

HoldStats TileQueue::holds() const {
  const std::lock_guard lock(mutex_);
  return holds_;
}

template <class Match>
size_t TileQueue::drop(Match&& match) {
  std::vector<WaitingTile> dropped;  // leases go back after the lock
  const std::lock_guard lock(mutex_);
  for (WaitingTile& tile : tiles_) {
    if (!match(tile)) continue;
    count_gone(tile.session->load(), tile.tile.header.rows);
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
  locked([&] { session.load().answered.reset(); });  // nobody waits for one that has left
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
