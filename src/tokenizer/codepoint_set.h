// A set of code points for a pattern's character class. Built from ranges while a pattern is read, then
// sealed; `contains` on a sealed set is one bit test for the first plane and a binary search above it. Const
// use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/unicode.h"

namespace tandem {

class CodepointSet {
 public:
  struct Range {
    char32_t first, last;  // inclusive
  };

  void add(char32_t first, char32_t last);
  void add(char32_t codepoint) { add(codepoint, codepoint); }
  void add(const CodepointSet& other);
  void add_category(Category category);
  void add_white_space();
  // A property as written in \p{...}: a category ("Lu"), a group of them ("L"), or "Han". False when unknown.
  bool add_property(std::string_view name);

  void negate();
  void intersect(const CodepointSet& other);
  // Adds what an ASCII letter in the set matches without regard to case: the other case, and U+017F for s,
  // U+212A for k.
  void fold_ascii_case();

  bool empty() const { return ranges_.empty(); }
  bool only_ascii() const;
  std::span<const Range> ranges() const { return ranges_; }  // sorted, disjoint, not adjacent
  void seal();

  bool contains(char32_t codepoint) const {
    if (codepoint < 0x10000) return (plane0_[codepoint >> 6] >> (codepoint & 63) & 1) != 0;
    return contains_above(codepoint);
  }

 private:
  void normalize();  // sorted, disjoint, not adjacent
  bool contains_above(char32_t codepoint) const;

  std::vector<Range> ranges_;
  std::vector<uint64_t> plane0_;  // [1024] once sealed
};

}  // namespace tandem
