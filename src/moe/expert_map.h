// ExpertMap: all pieces of all routed experts and who holds them. A piece is (layer, expert, slice of the
// intermediate rows); a whole expert is one slice. Assembled from what FFN ranks state; immutable; a change
// makes a new epoch.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem {

struct OwnerId {
  uint16_t rank = 0;
  uint16_t unit = 0;  // NUMA node or device inside the rank
  auto operator<=>(const OwnerId&) const = default;
};

struct Piece {
  uint16_t layer = 0;
  uint16_t expert = 0;
  uint32_t row_begin = 0, row_end = 0;  // intermediate rows
  OwnerId owner;
  auto operator<=>(const Piece&) const = default;
};

// Experts [begin, end) of every layer.
struct ExpertRange {
  uint32_t begin = 0, end = UINT32_MAX;
  bool contains(uint32_t expert) const { return expert >= begin && expert < end; }
  bool operator==(const ExpertRange&) const = default;
};

// The share of rank `rank` of `ranks`: contiguous, all shares together every expert once, sizes differ by at
// most one.
ExpertRange expert_share(uint32_t num_experts, uint32_t rank, uint32_t ranks);

// What a map must cover.
struct ExpertMapShape {
  std::vector<uint16_t> moe_layers;
  uint32_t num_experts = 0;
  uint32_t intermediate_size = 0;
};

class ExpertMap {
 public:
  // Every expert whole, on one owner.
  static ExpertMap whole(const ExpertMapShape& shape, OwnerId owner);
  // From the pieces that ranks state. Refused: a row without an owner (names layers, experts, and rows where
  // it is a slice that is missing), a piece out of range or not cut on granules (expert_slice.h), and slices
  // of one expert that overlap without being equal (replicas must be whole copies of a piece).
  static Result<ExpertMap> assemble(const ExpertMapShape& shape, std::vector<Piece> pieces, uint32_t epoch);

  uint32_t epoch() const { return epoch_; }
  const ExpertMapShape& shape() const { return shape_; }
  std::span<const Piece> pieces() const { return pieces_; }
  // Pieces of one expert, ordered by row_begin, then owner. Empty for a layer without experts.
  std::span<const Piece> pieces(uint16_t layer, uint16_t expert) const;
  std::vector<OwnerId> owners() const;

 private:
  ExpertMapShape shape_;
  std::vector<Piece> pieces_;  // sorted
  uint32_t epoch_ = 0;
};

// "layer 3: experts 0-4, 7; layer 4: experts 1, rows 16..64": for messages. Rows are named where they are not
// all `intermediate_size`.
std::string describe_experts(std::span<const Piece> pieces, uint32_t intermediate_size);

}  // namespace tandem
