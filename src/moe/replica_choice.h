// Which replica computes an expert when few rows ask for many experts. Then a rank's time is that of reading
// the experts it is asked for, whatever the number of rows: what counts is how many *activated* experts the
// rank that has most of them has. Every activated expert goes to one replica, so that none is read twice, and
// the largest number on one rank is as small as it can be.
//
// Pure; nothing is allocated once the scratch has seen its largest request.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

enum class ReplicaChoice : uint8_t {
  by_row,      // a hash of the row's own routing: bits do not depend on batching
  by_experts,  // as above where rows are few, and by_row otherwise: bits depend on what a row is computed
               // with, unless sums are deterministic
};

// Rows that each activated expert has on average, up to which reading it is what it costs: beyond, a rank's
// time is that of its rows, which by_row spreads.
inline constexpr uint32_t kFewRowsAnExpert = 8;

class ReplicaBalance {
 public:
  // For requests of at most so many activated experts and ranks.
  void reserve(size_t max_items, size_t max_ranks);

  // `owners[i]`: the ranks (below num_ranks) that have item i, at least one. Afterwards chosen(i) is the
  // index into owners[i] of the rank that has it to do.
  void solve(std::span<const std::span<const uint16_t>> owners, size_t num_ranks);
  uint32_t chosen(size_t item) const { return chosen_[item]; }
  uint32_t load(size_t rank) const { return loads_[rank]; }

 private:
  void place(std::span<const std::span<const uint16_t>> owners, size_t item);

  std::vector<uint32_t> chosen_;  // by item
  std::vector<uint32_t> loads_;   // by rank: items
  // Of one search: how a rank was reached, by moving which item, from which rank.
  std::vector<uint32_t> moved_, from_;
  std::vector<uint8_t> reached_;
  std::vector<uint16_t> order_;  // ranks as they were reached
};

}  // namespace tandem
