#include "moe/expert_placement.h"

#include <algorithm>
#include <string>

namespace tandem {
namespace {

std::string count_text(uint32_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

uint32_t group_count(const ExpertPlacement& placement, uint32_t ranks) {
  switch (placement.kind) {
    case PlacementKind::slice:
      return 1;
    case PlacementKind::hybrid:
      return ranks / placement.slices;
    default:
      return ranks;
  }
}

Status refuse(const std::string& what) {
  return make_error(ErrorCode::invalid_argument, what);
}

// Messages name the settings that a user would change.
Status check(const ExpertMapShape& shape, const ExpertPlacement& placement, uint32_t ranks) {
  const std::string rank_text = count_text(ranks, "FFN rank");
  if (placement.replicas == 0) return refuse("afd.expert_replicas: 0; a piece needs at least one owner");
  if (placement.kind == PlacementKind::hybrid && (placement.slices == 0 || placement.slices > ranks)) {
    return refuse("afd.expert_slices: " + std::to_string(placement.slices) + " with " + rank_text +
                  ": slices of an expert live on different ranks; use 1.." + std::to_string(ranks));
  }
  const uint32_t groups = group_count(placement, ranks);
  const std::string group_text = groups == ranks ? "" : " in " + count_text(groups, "group");
  if (groups > shape.num_experts) {
    return refuse("afd.num_ffn_ranks: " + rank_text + group_text + ", and the model has " +
                  count_text(shape.num_experts, "expert") + " a layer: a " +
                  (groups == ranks ? "rank" : "group") + " needs at least one");
  }
  const uint32_t granules = num_granules(shape.intermediate_size);
  const uint32_t largest = (ranks + groups - 1) / groups;  // group
  if (largest > granules) {
    return refuse("afd.placement: slices of an expert on " + std::to_string(largest) + " of " + rank_text +
                  ", and its " + std::to_string(shape.intermediate_size) + " intermediate rows are " +
                  count_text(granules, "granule") + " of " +
                  std::to_string(slice_granule(shape.intermediate_size)) +
                  "; use hybrid with afd.expert_slices up to " + std::to_string(granules));
  }
  if (placement.replicas > groups) {
    return refuse("afd.expert_replicas: " + std::to_string(placement.replicas) + " with " + rank_text +
                  group_text + ": each replica needs a " + (groups == ranks ? "rank" : "group") +
                  " of its own");
  }
  if (placement.replicas > 1 && ranks % groups != 0) {
    return refuse(
        "afd.expert_replicas: " + std::to_string(placement.replicas) + " with " + rank_text + group_text +
        ": groups of different sizes hold different slices, and a replica is a copy of a slice; use "
        "a number of ranks that " +
        std::to_string(placement.slices) + " divides");
  }
  return {};
}

}  // namespace

bool ExpertShare::contains(uint32_t expert) const {
  return std::ranges::any_of(experts, [&](const ExpertRange& range) { return range.contains(expert); });
}

Result<ExpertShare> held_share(const ExpertMapShape& shape, const ExpertPlacement& placement, uint32_t rank,
                               uint32_t ranks) {
  TANDEM_TRY(check(shape, placement, ranks));
  const uint32_t groups = group_count(placement, ranks);
  uint32_t group = 0;
  while (!expert_share(ranks, group, groups).contains(rank)) ++group;  // ranks are shared out like experts
  const ExpertRange members = expert_share(ranks, group, groups);
  ExpertShare share;
  share.rows = slice_rows(shape.intermediate_size, rank - members.begin, members.end - members.begin);
  share.experts.clear();
  for (uint32_t copy = 0; copy < placement.replicas; ++copy) {
    share.experts.push_back(expert_share(shape.num_experts, (group + groups - copy) % groups, groups));
  }
  std::ranges::sort(share.experts, {}, &ExpertRange::begin);
  return share;
}

std::vector<Piece> share_pieces(const ExpertMapShape& shape, const ExpertShare& share, OwnerId owner) {
  const RowRange rows = share.rows.within(shape.intermediate_size);
  std::vector<Piece> pieces;
  for (const uint16_t layer : shape.moe_layers) {
    for (uint32_t expert = 0; expert < shape.num_experts; ++expert) {
      if (share.contains(expert))
        pieces.push_back({layer, static_cast<uint16_t>(expert), rows.begin, rows.end, owner});
    }
  }
  return pieces;
}

}  // namespace tandem
