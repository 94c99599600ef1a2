// HomeGroups: the rows that an FFN rank is home to while other ranks compute their part of them. A group of
// home tiles is routed (where the gate is here), dispatched, its parts are sent to the owners; the own part
// is computed by the caller; then the group is parked. When the last owner has answered, the partial sums are
// added in order of rank and the tiles are answered. Nobody waits: a parked group costs its buffers and
// nothing else.
//
// Belongs to the compute thread of an FFN worker. Groups and their buffers are kept and used again.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "ffn/exchange_links.h"
#include "ffn/ffn_stats.h"
#include "ffn/tile_queue.h"

namespace tandem {

// Parked groups at most; then no further home tiles are taken up, but parts of others are. Each has at least
// one tile, whose client has a credit less.
inline constexpr uint32_t kMaxHomeGroups = 64;

// Turns rows of one layer into a routing: MoeBlock::route_rows. Empty where the gate is on attention.
using MoeRoute = std::function<Status(LayerIndex layer, uint32_t rows, ActivationView in,
                                      std::span<int32_t> ids, std::span<float> weights)>;

class HomeGroups {
 public:
  struct Group;

  // `done`: a tile was answered; its session may be let go.
  HomeGroups(const SplitSettings& settings, ExchangeKind kind, ExchangeLinks& exchange,
             std::function<void(WaitingTile&)> done);
  ~HomeGroups();

  bool has_room() const { return parked() < kMaxHomeGroups; }
  size_t parked() const { return parked_.size(); }
  const ExchangeStats& stats() const { return stats_; }

  // Takes the tiles over (of one layer and class, none a part), routes them and sends their parts. Null: it
  // could not be done, and the tiles were answered with the reason. While a group's own part is being
  // computed, another may begin and be done.
  Group* begin(std::span<WaitingTile> tiles, Instant start, const MoeRoute& route);
  // What this rank computes of a group: its sums are wanted in the order of the tile. Null: nothing.
  const TileView* own_part(const Group& group) const;
  // The own part is computed (`sums`: its output, empty when there was none). Answers the tiles when no other
  // rank has work for them, otherwise parks the group.
  void own_done(Group* group, std::span<const std::byte> sums);
  void fail(Group* group, const Error& error);

  // Takes the answers that came meanwhile, and answers the groups that are complete.
  void collect();
  // Ends all parked groups with `error`: nobody writes into them afterwards.
  void fail_all(const Error& error);

 private:
  Group* acquire();
  Status gather(Group& group, std::span<WaitingTile> tiles);
  Status dispatch(Group& group, const MoeRoute& route);
  Status send_parts(Group& group);
  Status ask(Group& group, size_t part);
  void on_answer(uint32_t rank, const Completion& answer);
  void finish(Group* group);
  void release(Group* group);

  const SplitSettings& settings_;
  const ExchangeKind kind_;
  ExchangeLinks& exchange_;
  const std::function<void(WaitingTile&)> done_;
  std::vector<std::unique_ptr<Group>> groups_;  // all that were ever needed at once
  std::vector<Group*> free_, parked_;
  std::vector<const std::byte*> partials_;  // scratch
  uint32_t next_serial_ = 0;
  ExchangeStats stats_;
};

}  // namespace tandem
