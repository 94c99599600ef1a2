// PrefixCache: which blocks of the pools hold the state of which tokens, so that a sequence that begins as an
// earlier one did goes on from there. Worker thread only; the pools outlive it and stay where they are.
//
// A tree of *units*: as many tokens as make whole blocks of every state group (16 tokens, or 128 with
// DeepSeek-V4's entries). A unit is found by a chained hash, and its tokens and the unit before it are
// compared: a collision costs time and is never a hit. Trees of different salts have nothing in common.
//
// It owns nothing. A sequence that has computed a unit stores it: its blocks are *kept* (block_pool.h), so
// that they wait in line with their contents when the sequence lets go of them, and those that nobody has
// used for longest are taken first. A unit goes with its blocks, and the units behind it go too. Blocks that
// a sequence owns are never taken, so what is in use is pinned.
//
// Groups that keep everything have a unit's blocks in it. What a group with a retention holds is only needed
// where a sequence goes on, at a *resume point*: the end of a unit, with the blocks that rows behind it can
// reach. Resume points are made where they are likely to serve: the last one within a prompt, the last one of
// an answer, and where a prompt left the text of an earlier one. Without such groups every unit is one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "attention/sequence_state.h"
#include "attention/state_pools.h"

namespace tandem {

struct PrefixCacheOptions {
  // Tokens behind a position that its state depends on, compared with those of the unit: 1 with a drafter
  // whose keys at a position hold the token behind it.
  uint32_t lookahead = 0;
  // Of a unit behind one with hash `before`. Null: checksum64. Tests make it worse.
  uint64_t (*hash)(uint64_t before, std::span<const int32_t> tokens) = nullptr;
};

// What a sequence remembers for the cache.
struct PrefixUse {
  std::string salt;      // sequences share with those of the same salt only
  bool may_read = true;  // false: everything is computed, and stored
  // Tokens, from the first on, whose rows a drafter has seen; kept up by the owner.
  uint32_t drafted = 0;
  uint32_t attached = 0;  // tokens that attach() found

  // The state was cleared: nothing of it is stored or shared any more.
  void forget() {
    drafted = attached = stored = 0;
    unit = rolling = 0;
  }

  // The cache's own: how far the sequence is stored, in which unit, and where to make resume points.
  uint32_t stored = 0;
  uint64_t unit = 0;
  uint32_t prompt_point = 0, branch_point = 0, began = 0;
  uint64_t rolling = 0;
};

class PrefixCache {
 public:
  // Null when no state group keeps everything: then there is nothing to share.
  static std::unique_ptr<PrefixCache> create(StatePools& pools, const PrefixCacheOptions& options = {});
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  uint32_t unit_tokens() const { return unit_tokens_; }

  // Whether sequences that begin now are drafted for. A drafter can only go on where it has seen everything:
  // an end that it has is taken if it comes at most `worth` tokens before the longest one (attach).
  void set_drafting(bool drafting) { is_drafting_ = drafting; }

  // The longest stored beginning of `tokens`, without the last one, becomes the empty state's. Returns its
  // tokens; 0 leaves the state as it is.
  uint32_t attach(SequenceState& state, std::span<const int32_t> tokens, uint32_t worth, PrefixUse& use);
  // Stores the whole units among the state's first tokens that are not yet. `tokens` are those whose state
  // that is, and one more at least: what was computed for a last one may have been a draft. Allocates
  // nothing. Before the state gives blocks back.
  void store(const SequenceState& state, std::span<const int32_t> tokens, PrefixUse& use);

  uint32_t num_units() const { return num_units_; }
  // Everything is forgotten; sequences keep what they have.
  void clear();

  // ---- for whoever keeps the cache's contents elsewhere (prefix_store.h) ----

  struct View {
    std::optional<uint32_t> parent;     // number of the unit before
    const std::string* salt = nullptr;  // of its tree
    std::span<const int32_t> tokens;    // unit_tokens() + lookahead()
    bool drafted = false;               // a drafter has seen them
    bool resumes = false, resume_drafted = false;
  };
  StatePools& pools() { return *pools_; }
  const StatePools& pools() const { return *pools_; }
  uint32_t lookahead() const { return lookahead_; }
  // The numbers of the units, those that sequences use first, then those used last, and none before its
  // parent.
  std::vector<uint32_t> units_by_use() const;
  View view(uint32_t unit) const;
  // What tells a unit from all that had its number before; and its number, as long as it lives.
  uint64_t serial(uint32_t unit) const { return units_[unit].serial; }
  std::optional<uint32_t> unit_of_serial(uint64_t serial) const {
    const uint32_t unit = unit_of(serial);
    return unit == kNone ? std::nullopt : std::optional(unit);
  }
  // Grows with every unit that is stored.
  uint64_t num_stored() const { return next_serial_; }
  // Of a group that keeps everything the unit's own, of others those of its resume point.
  std::span<const int32_t> blocks_of(uint32_t unit, uint32_t group) const;
  // Of a unit, or of a resume point, that ends at `end` tokens.
  size_t num_blocks(uint32_t group, uint32_t end) const;
  // Of all blocks of a unit that ends at `end` tokens.
  uint64_t bytes_of_unit(uint32_t end, bool resumes) const;
  // A unit that was computed elsewhere, with blocks that nothing is kept in, for the caller to fill; without
  // a resume point where there are none for it. Nothing: there is no block left, or the unit is known. The
  // blocks are owned until release_taken_over(), which makes the last of them the first to be used again.
  std::optional<uint32_t> take_over(const View& unit);
  void release_taken_over();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // How many units the tree of a salt has; entries of the map do not move.
  using Salt = std::pair<const std::string, uint32_t>;

  // One stored unit. Its tokens and blocks lie in tokens_ and blocks_ at its own number.
  struct Unit {
    uint64_t serial = 0;  // never used twice; 0: free
    uint64_t hash = 0;
    uint32_t parent = kNone, first_child = kNone, next_sibling = kNone, previous_sibling = kNone;
    uint32_t next_in_bucket = kNone;  // free: the next free one
    Salt* salt = nullptr;
    uint32_t end = 0;      // tokens up to and with it
    bool drafted = false;  // a drafter has seen its tokens
    bool resumes = false, resume_drafted = false;
  };
  explicit PrefixCache(StatePools& pools, const PrefixCacheOptions& options);

  // Where a walk stands: the unit before (kNone: none) and its hash.
  struct Place {
    uint32_t unit = kNone;
    Salt* salt = nullptr;  // null: there is no tree of it
    uint64_t hash = 0;
  };
  Place root_of(const std::string& salt);
  Place behind(uint32_t unit) const { return {unit, units_[unit].salt, units_[unit].hash}; }
  uint32_t child_of(const Place& place, std::span<const int32_t> tokens, uint64_t hash) const;
  uint64_t hash_of(const Place& place, std::span<const int32_t> tokens) const {
    return hash_(place.hash, tokens);
  }
  std::span<const int32_t> tokens_at(std::span<const int32_t> tokens, uint32_t end) const {
    return tokens.subspan(end - unit_tokens_, size_t{unit_tokens_} + lookahead_);
  }
  uint32_t unit_of(uint64_t serial) const;

  uint32_t add(const Place& place, std::span<const int32_t> tokens, uint64_t hash);
  bool wants_resume_point(uint32_t end, const PrefixUse& use) const {
    return end == use.prompt_point || end == use.branch_point || end >= use.began;
  }
  // The unit's blocks are from now on the sequence's.
  void take_blocks(uint32_t unit, const SequenceState& state);
  bool blocks_are_free(uint32_t unit) const;
  bool has_blocks_of(uint32_t unit, const SequenceState& state) const;
  // False: the sequence has let go of a block that it takes.
  bool add_resume_point(uint32_t unit, const SequenceState& state, bool drafted);
  void drop_resume_point(uint32_t unit);
  void drop_tree(uint32_t unit);
  void drop_leaf(uint32_t unit);
  void on_reuse(uint32_t group, int32_t block);

  // Of a group that keeps everything: its blocks in a unit.
  uint32_t blocks_in_unit(uint32_t group) const {
    return unit_tokens_ / pools_->pool(group).spec().tokens_per_block;
  }
  std::span<int32_t> blocks_of(uint32_t unit, uint32_t group);
  bool keeps_all(uint32_t group) const { return pools_->pool(group).spec().keeps_all(); }

  StatePools* pools_;
  uint32_t unit_tokens_ = 0, lookahead_ = 0;
  uint64_t (*hash_)(uint64_t, std::span<const int32_t>);
  bool is_drafting_ = false, has_retained_ = false;

  std::vector<Unit> units_;  // as many as the scarcest group has blocks for
  uint32_t first_free_ = kNone, num_units_ = 0;
  uint64_t next_serial_ = 1;
  std::vector<uint32_t> buckets_;  // by hash: the first unit
  std::vector<int32_t> tokens_;    // [units, unit + lookahead]
  // [units, blocks_per_unit]: of each group, one behind the other: the unit's own, or those of its resume
  // point, from first_reached_block on (fewer where the sequence is young).
  std::vector<int32_t> blocks_;
  std::vector<uint32_t> block_offsets_;  // [groups]: in a unit's blocks
  uint32_t blocks_per_unit_ = 0;
  std::vector<std::vector<uint32_t>> owners_;  // [groups that keep everything][blocks]: the unit
  std::vector<std::vector<std::vector<uint32_t>>> resumers_;  // [retained groups][blocks]: units
  std::unordered_map<std::string, uint32_t> salts_;

  std::vector<uint32_t> taken_over_;

  // Reused by attach.
  std::vector<uint32_t> path_;
  std::vector<std::vector<int32_t>> shared_;  // [groups]
};

}  // namespace tandem
