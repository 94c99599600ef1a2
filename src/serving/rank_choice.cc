#include "serving/rank_choice.h"

#include <algorithm>
#include <tuple>

namespace tandem {

double rank_score(const RankLoad& rank, uint64_t smallest_pool_tokens) {
  const auto held = static_cast<double>(std::max(rank.kv_used_tokens, rank.open_tokens));
  const double scale = rank.kv_pool_tokens == 0 ? 1.0
                                                : static_cast<double>(smallest_pool_tokens) /
                                                      static_cast<double>(rank.kv_pool_tokens);
  return static_cast<double>(rank.shared_prefix_tokens) - held * scale;
}

std::optional<size_t> choose_rank(std::span<const RankLoad> ranks) {
  uint64_t smallest = UINT64_MAX;
  for (const RankLoad& rank : ranks) {
    if (rank.kv_pool_tokens > 0) smallest = std::min(smallest, rank.kv_pool_tokens);
  }
  std::optional<size_t> best;
  const auto order = [&](size_t i) {
    const RankLoad& rank = ranks[i];
    return std::tuple(-rank_score(rank, smallest), rank.open_requests, rank.last_chosen, i);
  };
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].ready || ranks[i].queue_full) continue;
    if (!best || order(i) < order(*best)) best = i;
  }
  return best;
}

std::vector<uint64_t> prefix_hashes(std::span<const int32_t> prompt, std::string_view salt) {
  std::vector<uint64_t> hashes;
  hashes.reserve(prompt.size() / kPrefixBlockTokens);
  uint64_t hash = 14695981039346656037u;  // FNV-1a over 32-bit words
  const auto add = [&hash](uint32_t word) { hash = (hash ^ word) * 1099511628211u; };
  for (const char byte : salt) add(0x100u + static_cast<unsigned char>(byte));
  for (size_t i = 0; i < prompt.size(); ++i) {
    add(static_cast<uint32_t>(prompt[i]));
    if ((i + 1) % kPrefixBlockTokens == 0) hashes.push_back(hash);
  }
  return hashes;
}

void PrefixIndex::add(std::span<const uint64_t> hashes) {
  // The deepest block first, so that a prefix is forgotten from its end and what is known stays reachable.
  for (auto it = hashes.rbegin(); it != hashes.rend(); ++it) {
    last_use_[*it] = ++uses_;
    order_.push_back({*it, uses_});
  }
  while (last_use_.size() > max_blocks_ || order_.size() > 4 * max_blocks_) {
    const Use oldest = order_.front();
    order_.pop_front();
    const auto known = last_use_.find(oldest.hash);
    if (known != last_use_.end() && known->second == oldest.number) last_use_.erase(known);
  }
}

size_t PrefixIndex::longest(std::span<const uint64_t> hashes) const {
  for (size_t blocks = hashes.size(); blocks > 0; --blocks) {
    if (last_use_.contains(hashes[blocks - 1])) return blocks * kPrefixBlockTokens;
  }
  return 0;
}

void PrefixIndex::clear() {
  last_use_.clear();
  order_.clear();
}

}  // namespace tandem
