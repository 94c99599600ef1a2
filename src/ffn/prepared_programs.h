// PreparedPrograms: what an FFN rank keeps for graph mode: for each capture size that the handshake agreed
// on, the buffers in which a group of that many rows is gathered and answered. Made at start, so that a
// replay allocates and sizes nothing. A group replays on attention's word alone: every tile of it names a
// prepared program, those that came from other FFN ranks too. What a home rank prepares beside this is in
// home_groups.h. The compute thread's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ffn/tile_batch.h"

namespace tandem {

struct PreparedProgram {
  uint32_t size = 0;  // rows
  TileBatch batch;
};

class PreparedPrograms {
 public:
  // `exchange`: as TileBatch::create.
  static Result<PreparedPrograms> create(const SplitSettings& settings, ExchangeLinks* exchange = nullptr);

  // What runs a group of `rows` rows whose tiles name `words`. replay: the smallest program that holds the
  // rows, whatever smaller or larger one a tile names, because tiles of several clients share a group. miss:
  // attention asked for a replay, and no program holds the rows or the word is of none. eager: it did not
  // ask.
  enum class Verdict : uint8_t { eager, replay, miss };
  struct Choice {
    Verdict verdict = Verdict::eager;
    PreparedProgram* program = nullptr;  // of replay
  };
  Choice choose(std::span<const uint32_t> words, uint32_t rows);

 private:
  std::vector<PreparedProgram> programs_;  // ascending
};

}  // namespace tandem
