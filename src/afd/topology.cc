#include "afd/topology.h"

#include <fmt/format.h>

#include <algorithm>

#include "afd/frame.h"

namespace tandem {
namespace {

// More pieces than this is no model: 256 layers of 1,024 experts in 16 slices. Bounds what a frame can make
// us allocate.
constexpr size_t kMaxPieces = size_t{1} << 22;

}  // namespace

std::vector<Piece> held_pieces(std::span<const MoeLayerWeights* const> layers, OwnerId owner) {
  std::vector<Piece> pieces;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer] == nullptr) continue;
    const auto& experts = layers[layer]->experts;
    for (size_t expert = 0; expert < experts.size(); ++expert) {
      if (experts[expert].empty()) continue;
      pieces.push_back({static_cast<uint16_t>(layer), static_cast<uint16_t>(expert),
                        experts[expert].row_begin, experts[expert].row_end(), owner});
    }
  }
  return pieces;
}

std::vector<uint32_t> encode_pieces(std::span<const Piece> pieces) {
  std::vector<uint32_t> words;
  for (const Piece& piece : pieces) {
    const bool joins =
        !words.empty() && words[words.size() - 6] == piece.layer && words[words.size() - 4] == piece.expert &&
        words[words.size() - 3] == piece.row_begin && words[words.size() - 2] == piece.row_end &&
        words[words.size() - 1] == piece.owner.unit;
    if (joins) {
      ++words[words.size() - 4];
    } else {
      words.insert(words.end(), {piece.layer, piece.expert, piece.expert + 1u, piece.row_begin, piece.row_end,
                                 piece.owner.unit});
    }
  }
  return words;
}

Result<std::vector<Piece>> decode_pieces(std::span<const uint32_t> words, uint16_t rank,
                                         const SplitSettings& settings) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i + kPieceWords <= words.size(); i += kPieceWords) {
    const uint32_t layer = words[i], begin = words[i + 1], end = words[i + 2];
    const uint32_t row_begin = words[i + 3], row_end = words[i + 4], unit = words[i + 5];
    if (!settings.is_moe_layer(layer) || begin >= end || end > settings.num_experts || row_begin >= row_end ||
        row_end > settings.moe_intermediate_size || unit > UINT16_MAX ||
        pieces.size() + (end - begin) > kMaxPieces) {
      return make_error(
          ErrorCode::invalid_argument,
          fmt::format("FFN rank {} states layer {}, experts {}..{}, rows {}..{}, unit {}, which this model "
                      "does not have",
                      rank, layer, begin, end, row_begin, row_end, unit));
    }
    for (uint32_t expert = begin; expert < end; ++expert) {
      pieces.push_back({static_cast<uint16_t>(layer), static_cast<uint16_t>(expert), row_begin, row_end,
                        OwnerId{rank, static_cast<uint16_t>(unit)}});
    }
  }
  return pieces;
}

uint32_t map_epoch(std::span<const FfnRankFacts> ranks) {
  std::vector<const FfnRankFacts*> ordered;
  for (const FfnRankFacts& facts : ranks) ordered.push_back(&facts);
  std::ranges::sort(ordered, {}, [](const FfnRankFacts* facts) { return facts->rank; });
  uint32_t crc = 0;
  for (const FfnRankFacts* facts : ordered) {
    crc = crc32c(std::as_bytes(std::span(&facts->rank, 1)), crc);
    const std::vector<uint32_t> words = encode_pieces(facts->pieces);
    crc = crc32c(std::as_bytes(std::span(words)), crc);
  }
  return std::max(crc, 1u);
}

Result<ExpertMap> assemble_topology(const SplitSettings& settings, std::span<const FfnRankFacts> ranks,
                                    uint32_t epoch) {
  std::vector<Piece> pieces;
  for (const FfnRankFacts& facts : ranks) {
    const auto twin =
        std::ranges::find_if(ranks, [&](const FfnRankFacts& other) { return other.rank == facts.rank; });
    if (&*twin != &facts) {
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("{} and {} both say that they are FFN rank {}", twin->address,
                                    facts.address, facts.rank));
    }
    pieces.insert(pieces.end(), facts.pieces.begin(), facts.pieces.end());
  }
  return ExpertMap::assemble(settings.map_shape(), std::move(pieces), epoch);
}

}  // namespace tandem
