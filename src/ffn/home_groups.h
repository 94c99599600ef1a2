// HomeGroups: the rows that an FFN rank is home to while other ranks compute their part of them. A group of
// home tiles is routed (where the gate is here), dispatched, its parts are sent to the owners; the own part
// is computed by the caller; then the group is parked. When the last owner has answered, the partial sums are
// added in order of rank and the tiles are answered. Nobody waits: a parked group costs its buffers and
// nothing else.
//
// In graph mode kPreparedHomeGroups of them are made at start, with all that groups of capture size need, and
// kept for replays: a replayed group allocates nothing. Every part that a group of captured tiles sends names
// the smallest capture size that holds the part's rows, so that its owner replays too; a part that none
// holds goes without a word, and its owner runs eager.
//
// Belongs to the compute thread of an FFN worker. Groups and their buffers are kept and used again.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ffn/exchange_links.h"
#include "ffn/ffn_stats.h"
#include "ffn/home_group.h"
#include "ffn/tile_queue.h"

namespace tandem {

// Parked groups at most; then no further home tiles are taken up, but parts of others are. Each has at least
// one tile, whose client has a credit less.
inline constexpr uint32_t kMaxHomeGroups = 64;
// Each parked group, the one in work, and the one that goes between its pieces: all of them may wait for
// the same rank.
inline constexpr uint32_t kMostHomeGroups = kMaxHomeGroups + 2;
// Of graph mode. A decode lane has one group under way at a time: two lanes each of eight attention ranks.
// When none is free a group runs eager, and is counted as a miss.
inline constexpr uint32_t kPreparedHomeGroups = 16;

// Turns rows of one layer into a routing: MoeBlock::route_rows. Empty where the gate is on attention.
using MoeRoute =
    std::function<Status(LayerIndex layer, uint32_t rows, ActivationView in, std::span<int32_t> ids,
                         std::span<float> weights, std::span<const int32_t> tokens)>;

class HomeGroups {
 public:
  using Group = HomeGroup;

  // `done`: a tile was answered; its session may be let go. resource_exhausted: no memory for what graph mode
  // prepares.
  static Result<std::unique_ptr<HomeGroups>> create(const SplitSettings& settings, ExchangeKind kind,
                                                    ReplicaChoice choice, ExchangeLinks& exchange,
                                                    std::function<void(WaitingTile&)> done);
  ~HomeGroups();

  bool has_room() const { return parked() < kMaxHomeGroups; }
  // Whether a group can replay now, if it has no more rows than the largest capture size.
  bool has_prepared() const { return !free_prepared_.empty(); }
  size_t parked() const { return parked_.size(); }
  const ExchangeStats& stats() const { return stats_; }
  // What `collect` spent beside adding up, on replayed and on eager groups. Nanoseconds, since the start.
  uint64_t host_ns_replay() const { return host_ns_replay_; }
  uint64_t host_ns_eager() const { return host_ns_eager_; }

  // Takes the tiles over (of one layer and class, none a part), routes them and sends their parts. `replay`:
  // in a prepared group. A tile whose routing is none (its rows are not finite) is answered with the reason,
  // and its neighbours, which are other clients', go on without it. Null: none is left, or it could not be
  // done, and all were answered with the reason. While a group's own part is being computed, another may
  // begin and be done.
  Group* begin(std::span<WaitingTile> tiles, Instant start, const MoeRoute& route, bool replay);
  // What this rank computes of a group: its sums are wanted in the order of the tile. Null: nothing.
  const TileView* own_part(const Group& group) const;
  // Where the sums of the own part go: [rows, hidden] of the reply dtype.
  Result<Buffer> own_sums(Group& group);
  // The own part, if there is one, is computed and its sums are there. Answers the tiles when no other rank
  // has work for them, otherwise parks the group.
  void own_done(Group* group);
  void fail(Group* group, const Error& error);

  // Takes the answers that came meanwhile, and answers the groups that are complete.
  void collect();
  // Ends all parked groups with `error`: nobody writes into them afterwards.
  void fail_all(const Error& error);

 private:
  HomeGroups(const SplitSettings& settings, ExchangeKind kind, ReplicaChoice choice, ExchangeLinks& exchange,
             std::function<void(WaitingTile&)> done);

  Status prepare();
  Group* acquire(bool prepared);
  // Tiles that are wrong by themselves have been answered and are gone.
  Status settle_routing(Group& group, const MoeRoute& route);
  // Answers each tile whose part of `routing` does not pass and gathers the others again. Whether any went.
  Result<bool> drop_wrong_tiles(Group& group, const RoutingRef& routing);
  void answer_error(const Group& group, WaitingTile& tile, const Error& error, Instant end);
  Status dispatch(Group& group);
  Status send_parts(Group& group);
  Status ask(Group& group, size_t part);
  // The word of a part: the capture size that its owner replays, or 0.
  uint32_t word_of(const Group& group, uint32_t rows) const;
  void on_answer(uint32_t rank, const Completion& answer);
  void settle(Group* group, size_t part, const Status& answer);
  void finish(Group* group);
  // Adds the parts up into `out`.
  void add_up(Group& group, std::byte* out);
  // One tile is answered where its reply lies, without a copy, if its client has a slot.
  bool finish_in_place(Group& group);
  FfnTimes times_of(const Group& group, const WaitingTile& tile, Instant end) const;
  void release(Group* group);

  const SplitSettings& settings_;
  const ExchangeKind kind_;
  const ReplicaChoice choice_;
  ExchangeLinks& exchange_;
  const std::function<void(WaitingTile&)> done_;
  std::vector<std::unique_ptr<Group>> groups_;  // all that were ever needed at once, and the prepared ones
  std::vector<Group*> free_, free_prepared_, parked_;
  std::vector<const std::byte*> partials_;  // scratch
  uint32_t next_serial_ = 0;
  ExchangeStats stats_;
  uint64_t host_ns_replay_ = 0, host_ns_eager_ = 0;
};

}  // namespace tandem
