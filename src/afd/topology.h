// Topology: which FFN ranks there are and what they hold. Ranks state their pieces in the handshake;
// attention assembles the map from the statements, and a piece that nobody holds stops the start. Pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "afd/split_settings.h"
#include "moe/expert_map.h"
#include "moe/moe_weights.h"

namespace tandem {

// What an attention rank knows of one FFN rank after the handshake.
struct FfnRankFacts {
  uint32_t rank = 0;
  std::string address;
  std::string name;  // "host:pid"
  uint64_t session = 0;
  uint32_t incarnation = 0;
  std::vector<Piece> pieces;
};

// The experts, or slices of them, that a rank has weights for. `layers`: as for MoeBlock::create, null for
// dense layers.
std::vector<Piece> held_pieces(std::span<const MoeLayerWeights* const> layers, OwnerId owner);

// Words of a row of pieces: layer, expert begin, expert end, row begin, row end, unit.
inline constexpr size_t kPieceWords = 6;
// Pieces as the wire carries them: u32 [count, 6], neighbouring experts with equal slices in one row.
std::vector<uint32_t> encode_pieces(std::span<const Piece> pieces);
// Refused: a range that the model does not have.
Result<std::vector<Piece>> decode_pieces(std::span<const uint32_t> words, uint16_t rank,
                                         const SplitSettings& settings);

// Number of the map that these ranks make: follows from their pieces alone, so that every process that asks
// the same ranks has the same number, and another share of the experts has another one. Never 0.
uint32_t map_epoch(std::span<const FfnRankFacts> ranks);

// unavailable: pieces are missing, named by layer and expert; invalid_argument: two ranks with one number, or
// pieces that contradict each other.
Result<ExpertMap> assemble_topology(const SplitSettings& settings, std::span<const FfnRankFacts> ranks,
                                    uint32_t epoch);

}  // namespace tandem
