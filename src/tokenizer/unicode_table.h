// The generated tables behind unicode.cc (tools/make_unicode_table.py writes unicode_table.cc).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

extern const uint32_t kCategoryRuns[];  // first code point << 5 | category, ascending, the first at 0
extern const size_t kCategoryRunCount;
extern const uint32_t kHanRanges[];  // first, last, first, last, ...
extern const size_t kHanRangeValues;

}  // namespace tandem
