#include "ffn/held_experts.h"

#include <fmt/format.h>

namespace tandem {

HeldExperts::HeldExperts(const SplitSettings& settings, std::span<const Piece> pieces)
    : num_experts_(settings.num_experts),
      held_(settings.num_layers + settings.num_draft_layers, std::vector<bool>(settings.num_experts)) {
  for (const Piece& piece : pieces) held_[piece.layer][piece.expert] = true;
}

Status HeldExperts::check(uint32_t layer, const RoutingView& routing) const {
  const std::vector<bool>& held = held_[layer];
  for (size_t i = 0; i < routing.ids.size(); ++i) {
    if (routing.weights[i] == 0.0f || held[static_cast<size_t>(routing.ids[i])]) continue;
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("row {}: expert {} of layer {} is not on this rank; slots of other ranks weigh 0",
                    i / routing.top_k, routing.ids[i], layer));
  }
  return {};
}

}  // namespace tandem
