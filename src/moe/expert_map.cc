#include "moe/expert_map.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "moe/expert_slice.h"

namespace tandem {
namespace {

std::string range_text(uint16_t first, uint16_t last) {
  return first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last);
}

std::string slice_text(const Piece& piece) {
  return "layer " + std::to_string(piece.layer) + ", expert " + std::to_string(piece.expert) + ", rows " +
         std::to_string(piece.row_begin) + ".." + std::to_string(piece.row_end);
}

// Pieces of one expert, sorted: each must continue the one before, or be a copy of it on another owner.
// Returns the first rows that nobody covers, empty when there are none.
Result<RowRange> first_gap(std::span<const Piece> pieces, uint32_t intermediate_size) {
  uint32_t covered = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const bool replica =
        i > 0 && piece.row_begin == pieces[i - 1].row_begin && piece.row_end == pieces[i - 1].row_end;
    if (replica && piece.owner == pieces[i - 1].owner) {
      return make_error(ErrorCode::invalid_argument, "expert map: " + slice_text(piece) +
                                                         " is stated twice by rank " +
                                                         std::to_string(piece.owner.rank));
    }
    if (replica) continue;
    if (piece.row_begin < covered) {
      return make_error(ErrorCode::invalid_argument,
                        "expert map: " + slice_text(piece) + " of rank " + std::to_string(piece.owner.rank) +
                            " overlaps rows up to " + std::to_string(covered) +
                            " of another piece; replicas must be copies of a whole piece");
    }
    if (piece.row_begin > covered) return RowRange{covered, piece.row_begin};
    covered = piece.row_end;
  }
  return RowRange{covered, intermediate_size};
}

}  // namespace

std::string describe_experts(std::span<const Piece> pieces, uint32_t intermediate_size) {
  using Rows = std::pair<uint32_t, uint32_t>;
  std::map<std::pair<uint16_t, Rows>, std::set<uint16_t>> by_layer;
  for (const Piece& piece : pieces)
    by_layer[{piece.layer, {piece.row_begin, piece.row_end}}].insert(piece.expert);
  std::string text;
  for (const auto& [key, experts] : by_layer) {
    const auto& [layer, rows] = key;
    text += (text.empty() ? "layer " : "; layer ") + std::to_string(layer) + ": experts ";
    bool first_range = true;
    for (auto it = experts.begin(); it != experts.end();) {
      const uint16_t begin = *it;
      uint16_t end = begin;
      for (++it; it != experts.end() && *it == end + 1; ++it) end = *it;
      text += (first_range ? "" : ", ") + range_text(begin, end);
      first_range = false;
    }
    if (rows != Rows{0, intermediate_size})
      text += ", rows " + std::to_string(rows.first) + ".." + std::to_string(rows.second);
  }
  return text;
}

ExpertRange expert_share(uint32_t num_experts, uint32_t rank, uint32_t ranks) {
  const auto bound = [&](uint64_t r) { return static_cast<uint32_t>(r * num_experts / ranks); };
  return {bound(rank), bound(uint64_t{rank} + 1)};
}

ExpertMap ExpertMap::whole(const ExpertMapShape& shape, OwnerId owner) {
  ExpertMap map;
  map.shape_ = shape;
  for (uint16_t layer : shape.moe_layers) {
    for (uint32_t expert = 0; expert < shape.num_experts; ++expert) {
      map.pieces_.push_back({layer, static_cast<uint16_t>(expert), 0, shape.intermediate_size, owner});
    }
  }
  std::sort(map.pieces_.begin(), map.pieces_.end());
  return map;
}

Result<ExpertMap> ExpertMap::assemble(const ExpertMapShape& shape, std::vector<Piece> pieces,
                                      uint32_t epoch) {
  const std::set<uint16_t> layers(shape.moe_layers.begin(), shape.moe_layers.end());
  for (const Piece& piece : pieces) {
    if (!layers.contains(piece.layer) || piece.expert >= shape.num_experts ||
        piece.row_begin >= piece.row_end || piece.row_end > shape.intermediate_size) {
      return make_error(ErrorCode::invalid_argument, "expert map: rank " + std::to_string(piece.owner.rank) +
                                                         " states " + slice_text(piece) +
                                                         ", which the model does not have");
    }
    if (!is_slice(shape.intermediate_size, {piece.row_begin, piece.row_end})) {
      return make_error(ErrorCode::invalid_argument,
                        "expert map: " + slice_text(piece) + " of rank " + std::to_string(piece.owner.rank) +
                            " is not cut on multiples of " +
                            std::to_string(slice_granule(shape.intermediate_size)) +
                            ", the granule of this model");
    }
  }
  ExpertMap map;
  map.shape_ = shape;
  map.epoch_ = epoch;
  map.pieces_ = std::move(pieces);
  std::sort(map.pieces_.begin(), map.pieces_.end());

  std::vector<Piece> missing;
  for (uint16_t layer : layers) {
    for (uint32_t expert = 0; expert < shape.num_experts; ++expert) {
      const auto id = static_cast<uint16_t>(expert);
      TANDEM_ASSIGN(const RowRange gap, first_gap(map.pieces(layer, id), shape.intermediate_size));
      if (gap.size() > 0) missing.push_back({layer, id, gap.begin, gap.end, {}});
    }
  }
  if (!missing.empty()) {
    return make_error(ErrorCode::unavailable, "expert map: no FFN rank holds " +
                                                  describe_experts(missing, shape.intermediate_size) +
                                                  "; start a rank that does");
  }
  return map;
}

std::span<const Piece> ExpertMap::pieces(uint16_t layer, uint16_t expert) const {
  const auto before = [](const Piece& piece, std::pair<uint16_t, uint16_t> key) {
    return std::pair(piece.layer, piece.expert) < key;
  };
  const auto after = [](std::pair<uint16_t, uint16_t> key, const Piece& piece) {
    return key < std::pair(piece.layer, piece.expert);
  };
  const auto key = std::pair(layer, expert);
  const auto begin = std::lower_bound(pieces_.begin(), pieces_.end(), key, before);
  const auto end = std::upper_bound(begin, pieces_.end(), key, after);
  return {begin, end};
}

std::vector<OwnerId> ExpertMap::owners() const {
  std::set<OwnerId> owners;
  for (const Piece& piece : pieces_) owners.insert(piece.owner);
  return {owners.begin(), owners.end()};
}

}  // namespace tandem
