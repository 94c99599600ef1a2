// Which of several attention ranks gets a request: by the prompt's prefix that a rank has seen, and by how
// full its KV pool is. Pure functions, any thread; PrefixIndex belongs to whoever holds it.
//
//   score = shared_prefix_tokens - load
//   load  = held_tokens x smallest_pool / pool        held_tokens = max(kv_used_tokens, open_tokens)
//
// All in tokens: a shared prefix saves the work of computing it again, and a load of as many tokens costs the
// wait behind them. The load is the share of the pool that is held, in tokens of the smallest pool, so that
// equal pools compare by tokens and unequal ones fill alike. `open_tokens` counts what this front has just
// sent, which the rank's own count does not show yet. The highest score wins; then fewer open requests, then
// the rank that was chosen longest ago, then the lower number. A rank that is not ready, or whose queue is
// full, has no score.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tandem {

struct RankLoad {
  bool ready = true;
  bool queue_full = false;
  uint64_t shared_prefix_tokens = 0;
  uint64_t kv_pool_tokens = 0, kv_used_tokens = 0;  // as the rank stated them last
  uint64_t open_tokens = 0;  // prompts and answers so far of the requests that this front has there
  uint32_t open_requests = 0;
  uint64_t last_chosen = 0;  // number of the request that went there last; 0: none
};

double rank_score(const RankLoad& rank, uint64_t smallest_pool_tokens);

// The place of the rank that gets the request; nothing when none can take it.
std::optional<size_t> choose_rank(std::span<const RankLoad> ranks);

// Blocks of a prompt by which prefixes are compared: a few KV blocks, so that a shared system prompt counts
// and a shared greeting does not.
inline constexpr size_t kPrefixBlockTokens = 64;

// Hashes of the first 64, 128, ... tokens of a prompt, whole blocks only. Two prompts share a hash when they
// share that prefix and the salt (or collide, which costs a less good choice).
std::vector<uint64_t> prefix_hashes(std::span<const int32_t> prompt, std::string_view salt = {});

// The prefixes that a rank has seen lately; the oldest are forgotten.
class PrefixIndex {
 public:
  // 4096 blocks of 64 tokens: what a KV pool of a quarter of a million tokens could still hold.
  static constexpr size_t kMaxBlocks = 4096;
  explicit PrefixIndex(size_t max_blocks = kMaxBlocks) : max_blocks_(max_blocks) {}

  void add(std::span<const uint64_t> hashes);
  // Tokens of the longest prefix that is known.
  size_t longest(std::span<const uint64_t> hashes) const;
  void clear();
  size_t blocks() const { return last_use_.size(); }

 private:
  struct Use {
    uint64_t hash, number;
  };
  size_t max_blocks_;
  uint64_t uses_ = 0;
  std::unordered_map<uint64_t, uint64_t> last_use_;  // hash -> number of its last use
  std::deque<Use> order_;                            // every use, oldest first; stale ones are skipped
};

}  // namespace tandem
