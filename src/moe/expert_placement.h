// Placement: which pieces each FFN rank holds. Ranks form groups; whole experts are shared out over the
// groups, and each group's experts are sliced over its ranks:
//   expert  groups of one rank: whole experts
//   slice   one group of all ranks: a slice of every expert
//   hybrid  groups of `slices` ranks, or of more where the ranks do not divide: a slice of some experts
// With replicas the share of group g is held by the groups g, g + 1, ... too (counted around), as a whole: so
// that a row's replica is a choice of a group, and a rank never holds two slices of one expert.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "moe/expert_map.h"
#include "moe/expert_slice.h"

namespace tandem {

enum class PlacementKind : uint8_t { expert, slice, hybrid };

struct ExpertPlacement {
  PlacementKind kind = PlacementKind::expert;
  uint32_t slices = 2;    // that an expert is cut into; hybrid only
  uint32_t replicas = 1;  // groups that hold each piece
};

// What one rank holds of every layer: these experts, and of each these rows. All of all unless said
// otherwise.
struct ExpertShare {
  std::vector<ExpertRange> experts = {ExpertRange{}};  // ascending, disjoint
  RowRange rows;
  bool contains(uint32_t expert) const;
  bool operator==(const ExpertShare&) const = default;
};

// The share of rank `rank` of `ranks`. invalid_argument, naming the setting and what would do: more groups
// than experts, more ranks in a group than granules in an expert, more slices than ranks, more replicas than
// groups, or replicas in groups of different sizes, whose slices would differ.
Result<ExpertShare> held_share(const ExpertMapShape& shape, const ExpertPlacement& placement, uint32_t rank,
                               uint32_t ranks);

// The pieces of a share, ordered as ExpertMap has them.
std::vector<Piece> share_pieces(const ExpertMapShape& shape, const ExpertShare& share, OwnerId owner);

}  // namespace tandem
