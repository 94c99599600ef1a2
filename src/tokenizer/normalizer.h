// What happens to text before it is split: NFC, a prefix, replacements. Immutable; const use from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

struct NormalizerStep {
  enum class Kind : uint8_t { nfc, prepend, replace };
  Kind kind;
  std::string pattern;  // replace: what is looked for, not empty
  std::string content;  // prepend, replace: what is put there
};

// NFC as the reference computes it: with the tables of Unicode 9. Characters that got a combining class or a
// composition later stay as they are and end a sequence. Linear in the text, whatever the marks in it. `text`
// is well-formed UTF-8.
std::string normalize_nfc(std::string_view text);

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  bool identity() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;

  // The same in two halves, for text that is normalised chunk by chunk: `apply(a + b)` is `prefix() +
  // apply_body(a) + apply_body(b)` when `a + b` is not empty and `b` begins with a character that nothing
  // before it combines with.
  std::string prefix() const;
  std::string apply_body(std::string_view text) const;
  bool can_shrink() const;  // the result may have fewer bytes than the text

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace tandem
