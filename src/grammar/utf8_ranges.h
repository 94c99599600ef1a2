// Ranges of code points as ranges of UTF-8 bytes. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

namespace tandem {

// Texts of `count` bytes whose byte i is in [first[i], last[i]].
struct Utf8Range {
  uint32_t count = 0;
  std::array<uint8_t, 4> first{}, last{};
};

// Calls `visit` with byte ranges that together are exactly the UTF-8 of the code points first..last.
// Surrogates (U+D800..DFFF) have no UTF-8 and are left out.
void visit_utf8_ranges(char32_t first, char32_t last, const std::function<void(const Utf8Range&)>& visit);

}  // namespace tandem
