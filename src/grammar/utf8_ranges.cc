#include "grammar/utf8_ranges.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace tandem {
namespace {

// The last code point of each length in UTF-8.
constexpr char32_t kLastOfLength[] = {0x7F, 0x7FF, 0xFFFF, kMaxCodepoint};
constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

uint32_t encode(char32_t c, std::array<uint8_t, 4>& out) {
  if (c <= 0x7F) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  const uint32_t count = c <= 0x7FF ? 2 : c <= 0xFFFF ? 3 : 4;
  constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (uint32_t i = count - 1; i > 0; --i, c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  out[0] = static_cast<uint8_t>(kLead[count] | c);
  return count;
}

// A range within one length is a product of byte ranges when all bytes behind the first that differs run over
// all continuations; so it is cut at multiples of 64, 64 x 64 and so on until it is.
void split(char32_t first, char32_t last, const std::function<void(const Utf8Range&)>& visit) {
  for (uint32_t bits = 6; bits <= 18 && last > 0x7F; bits += 6) {
    const char32_t mask = (char32_t{1} << bits) - 1;
    if ((first & ~mask) == (last & ~mask)) break;
    if ((first & mask) != 0) {
      split(first, first | mask, visit);
      split((first | mask) + 1, last, visit);
      return;
    }
    if ((last & mask) != mask) {
      split(first, (last & ~mask) - 1, visit);
      split(last & ~mask, last, visit);
      return;
    }
  }
  Utf8Range range;
  range.count = encode(first, range.first);
  encode(last, range.last);
  visit(range);
}

void split_by_length(char32_t first, char32_t last, const std::function<void(const Utf8Range&)>& visit) {
  for (const char32_t end : kLastOfLength) {
    if (first > last) return;
    if (first > end) continue;
    split(first, std::min(last, end), visit);
    first = end + 1;
  }
}

}  // namespace

void visit_utf8_ranges(char32_t first, char32_t last, const std::function<void(const Utf8Range&)>& visit) {
  if (first < kFirstSurrogate) split_by_length(first, std::min<char32_t>(last, kFirstSurrogate - 1), visit);
  if (last > kLastSurrogate) split_by_length(std::max<char32_t>(first, kLastSurrogate + 1), last, visit);
}

}  // namespace tandem
