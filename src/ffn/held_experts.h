// HeldExperts: which experts a rank holds, to refuse a routing that asks for others: their share of the sum
// would be missing, and nobody would notice. Immutable; any thread.
#pragma once

#include <span>
#include <vector>

#include "afd/split_settings.h"
#include "base/result.h"
#include "moe/expert_map.h"

namespace tandem {

class HeldExperts {
 public:
  HeldExperts(const SplitSettings& settings, std::span<const Piece> pieces);

  // invalid_argument naming the row and the expert: a weight that is not 0 for an expert that is not here.
  // Ids and layer were checked.
  Status check(uint32_t layer, const RoutingView& routing) const;

 private:
  uint32_t num_experts_ = 0;
  std::vector<std::vector<bool>> held_;  // [layers][num_experts]
};

}  // namespace tandem
