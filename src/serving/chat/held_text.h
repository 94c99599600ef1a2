// What a parser of growing text must hold back. Pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace tandem {

// Blanks in front of a marker, or behind one, are no part of the content. Models write one or two; a run
// beyond this is somebody's text, and is not held back for longer.
inline constexpr size_t kMaxHeldBlanks = 8;
inline constexpr std::string_view kBlanks = " \t\r\n";

// Length of the longest suffix of `text` that is a proper prefix of `marker`.
inline size_t marker_suffix(std::string_view text, std::string_view marker) {
  for (size_t length = std::min(text.size(), marker.size() - 1); length > 0; --length) {
    if (text.ends_with(marker.substr(0, length))) return length;
  }
  return 0;
}

// `end` less the blanks before it, at most kMaxHeldBlanks.
inline size_t before_blanks(std::string_view text, size_t end, std::string_view blanks = kBlanks) {
  const size_t least = end - std::min(end, kMaxHeldBlanks);
  while (end > least && blanks.find(text[end - 1]) != std::string_view::npos) --end;
  return end;
}

inline bool is_blank(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

}  // namespace tandem
