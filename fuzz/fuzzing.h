// What the fuzz targets share: a property that does not hold ends the process, so that libFuzzer keeps the
// input.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace tandem::fuzz {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

inline std::string file_text(const char* path_in_source) {
  std::ifstream file(std::string(TANDEM_SOURCE_DIR "/") + path_in_source);
  std::stringstream text;
  text << file.rdbuf();
  require(!text.str().empty(), path_in_source);
  return text.str();
}

// What stands before and behind the first NUL; all of it and nothing where there is none.
inline std::pair<std::string_view, std::string_view> halves(std::string_view input) {
  const size_t at = input.find('\0');
  if (at == input.npos) return {input, {}};
  return {input.substr(0, at), input.substr(at + 1)};
}

// Strictly: no surrogates, nothing overlong, nothing beyond U+10FFFF.
inline bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
    const unsigned char first = byte(i);
    const size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (length > 1 && (first < 0xc2 || first > 0xf4)) return false;
    if (i + length > text.size()) return false;
    uint32_t point = length == 1 ? first : first & (0xffu >> (length + 1));
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
      point = point << 6 | (byte(i + k) & 0x3fu);
    }
    const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < least[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
    i += length;
  }
  return true;
}

}  // namespace tandem::fuzz
