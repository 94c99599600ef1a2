#include "moe/replica_choice.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr uint32_t kNothing = UINT32_MAX;

}  // namespace

void ReplicaBalance::reserve(size_t max_items, size_t max_ranks) {
  chosen_.reserve(max_items);
  loads_.reserve(max_ranks);
  moved_.reserve(max_ranks);
  from_.reserve(max_ranks);
  reached_.reserve(max_ranks);
  order_.reserve(max_ranks);
}

void ReplicaBalance::solve(std::span<const std::span<const uint16_t>> owners, size_t num_ranks) {
  chosen_.assign(owners.size(), kNothing);
  loads_.assign(num_ranks, 0);
  for (size_t item = 0; item < owners.size(); ++item) {  // who has no choice first
    if (owners[item].size() != 1) continue;
    chosen_[item] = 0;
    ++loads_[owners[item].front()];
  }
  for (size_t item = 0; item < owners.size(); ++item) {
    if (owners[item].size() > 1) place(owners, item);
  }
}

// The item goes to one of its ranks; if the one with the least is not among them, items move on along the
// shortest way from one of them to it. Items cost the same, so that this keeps the largest load as small as
// can be (an optimal semi-matching, item by item).
void ReplicaBalance::place(std::span<const std::span<const uint16_t>> owners, size_t item) {
  const size_t num_ranks = loads_.size();
  moved_.assign(num_ranks, kNothing);
  from_.assign(num_ranks, kNothing);
  reached_.assign(num_ranks, 0);
  order_.clear();
  for (const uint16_t rank : owners[item]) {
    reached_[rank] = 1;
    order_.push_back(rank);
  }
  const auto least_of_all = std::ranges::min(loads_);
  const auto load_of = [&](uint16_t rank) { return loads_[rank]; };
  for (size_t at = 0; at < order_.size(); ++at) {
    // Nothing is gained by looking further than a rank that has no more than any.
    if (loads_[*std::ranges::min_element(order_, {}, load_of)] == least_of_all) break;
    const uint16_t rank = order_[at];
    for (size_t other = 0; other < item; ++other) {
      if (chosen_[other] == kNothing || owners[other].size() == 1 || owners[other][chosen_[other]] != rank)
        continue;
      for (const uint16_t next : owners[other]) {
        if (reached_[next] != 0) continue;
        reached_[next] = 1;
        moved_[next] = static_cast<uint32_t>(other);
        from_[next] = rank;
        order_.push_back(next);
      }
    }
  }
  uint16_t rank = *std::ranges::min_element(order_, {}, load_of);
  ++loads_[rank];
  // Backwards: each item on the way moves to the rank that was reached by it.
  while (moved_[rank] != kNothing) {
    const uint32_t other = moved_[rank];
    const auto to = std::ranges::find(owners[other], rank);
    chosen_[other] = static_cast<uint32_t>(to - owners[other].begin());
    rank = static_cast<uint16_t>(from_[rank]);
  }
  chosen_[item] = static_cast<uint32_t>(std::ranges::find(owners[item], rank) - owners[item].begin());
}

}  // namespace tandem
