#include "tokenizer/codepoint_set.h"

#include <algorithm>

#include "tokenizer/unicode_table.h"

namespace tandem {
namespace {

constexpr std::string_view kCategoryNames[kCategoryCount] = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn",
};

}  // namespace

void CodepointSet::add(char32_t first, char32_t last) {
  if (!ranges_.empty() && ranges_.back().last + 1 == first) {
    ranges_.back().last = last;
    return;
  }
  ranges_.push_back({first, last});
  normalize();
}

void CodepointSet::add(const CodepointSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalize();
}

void CodepointSet::add_category(Category category) {
  for (size_t i = 0; i < kCategoryRunCount; ++i) {
    if ((kCategoryRuns[i] & 31) != static_cast<uint32_t>(category)) continue;
    const char32_t last = i + 1 < kCategoryRunCount ? (kCategoryRuns[i + 1] >> 5) - 1 : kMaxCodepoint;
    ranges_.push_back({kCategoryRuns[i] >> 5, last});
  }
  normalize();
}

void CodepointSet::add_white_space() {
  for (char32_t c = 0; c <= 0x3000; ++c) {
    if (is_white_space(c)) ranges_.push_back({c, c});
  }
  normalize();
}

bool CodepointSet::add_property(std::string_view name) {
  if (name == "Han") {
    for (size_t i = 0; i + 1 < kHanRangeValues; i += 2) ranges_.push_back({kHanRanges[i], kHanRanges[i + 1]});
    normalize();
    return true;
  }
  bool known = false;
  for (int i = 0; i < kCategoryCount; ++i) {
    if (name == kCategoryNames[i] || (name.size() == 1 && name[0] == kCategoryNames[i][0])) {
      add_category(static_cast<Category>(i));
      known = true;
    }
  }
  return known;
}

void CodepointSet::negate() {
  std::vector<Range> out;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodepoint) out.push_back({next, kMaxCodepoint});
  ranges_ = std::move(out);
}

void CodepointSet::intersect(const CodepointSet& other) {
  CodepointSet without = other;
  without.negate();
  negate();
  add(without);
  negate();
}

void CodepointSet::fold_ascii_case() {
  CodepointSet folded = *this;
  for (const Range& range : ranges_) {
    for (char32_t c = range.first; c <= std::min<char32_t>(range.last, 0x7F); ++c) {
      const char32_t lower = c | 0x20;
      if (lower < 'a' || lower > 'z') continue;
      folded.add(lower);
      folded.add(lower - 0x20);
      if (lower == 's') folded.add(0x17F);
      if (lower == 'k') folded.add(0x212A);
    }
  }
  *this = std::move(folded);
}

bool CodepointSet::only_ascii() const {
  return ranges_.empty() || ranges_.back().last < 0x80;
}

void CodepointSet::normalize() {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  std::vector<Range> out;
  for (const Range& range : ranges_) {
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  ranges_ = std::move(out);
}

void CodepointSet::seal() {
  plane0_.assign(1024, 0);
  for (const Range& range : ranges_) {
    for (char32_t c = range.first; c <= std::min<char32_t>(range.last, 0xFFFF); ++c) {
      plane0_[c >> 6] |= uint64_t{1} << (c & 63);
    }
  }
}

bool CodepointSet::contains_above(char32_t codepoint) const {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), codepoint,
                                [](char32_t c, const Range& range) { return c < range.first; });
  return after != ranges_.begin() && codepoint <= (after - 1)->last;
}

}  // namespace tandem
