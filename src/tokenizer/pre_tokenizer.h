// Cuts normalised text into the pieces that BPE merges inside of. Immutable; const use from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/regex.h"

namespace tandem {

// What becomes of a match: its own piece, dropped, joined to the piece before or behind, joined with adjacent
// matches.
enum class SplitBehavior : uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct PreTokenizerStep {
  enum class Kind : uint8_t { split, prefix_space, metaspace };
  enum class Prepend : uint8_t { always, first, never };
  Kind kind = Kind::split;
  Regex regex;  // split; metaspace with `cut`
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
  std::string replacement;  // metaspace: stands for a space
  Prepend prepend = Prepend::always;
  bool cut = false;  // metaspace: a piece begins at every replacement
};

class PreTokenizer {
 public:
  // Text and the end of each piece in it. The text may differ from the input by spaces that a step put in.
  struct Pieces {
    std::string text;
    std::vector<size_t>
        ends;  // ascending byte offsets; pieces are never empty; `removed` bytes are not in `text`
  };

  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  // `at_start`: the text begins where the user's text begins. Error: `resource_exhausted` from the pattern's
  // step limit.
  Result<Pieces> split(std::string_view text, bool at_start) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace tandem
