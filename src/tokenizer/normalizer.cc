#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/unicode.h"

namespace tandem {
namespace {

// Characters that have a combining class or take part in a composition, and that the reference's tables
// (Unicode 9) do not know: first, last. Found by comparing utf8proc 2.8 with `tokenizers` 0.23 for every
// character; those from Unicode 16, which later versions of utf8proc know, are added from the standard.
constexpr char32_t kUnknownToReference[][2] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ADD},   {0x1AE0, 0x1AEB},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C9, 0x105C9}, {0x105D2, 0x105D2}, {0x105DA, 0x105DA},
    {0x105E4, 0x105E4}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFA, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11380, 0x113E2},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x16100, 0x16139}, {0x16D63, 0x16D6A}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
};

bool unknown_to_reference(char32_t c) {
  const auto* after = std::upper_bound(std::begin(kUnknownToReference), std::end(kUnknownToReference), c,
                                       [](char32_t value, const auto& range) { return value < range[0]; });
  return after != std::begin(kUnknownToReference) && c <= (*(after - 1))[1];
}

// Below U+0300 every character is its own NFC and composes with nothing before it. UTF-8 from there on begins
// with 0xCC.
constexpr char32_t kFirstUnstable = 0x300;
constexpr uint8_t kFirstUnstableByte = 0xCC;

void compose(std::vector<utf8proc_int32_t>& sequence, std::string& out) {
  if (sequence.empty()) return;
  // utf8proc orders marks by exchanging neighbours, which is quadratic; ordered already, it has nothing to
  // exchange.
  for (size_t begin = 0; begin < sequence.size();) {
    const auto combining = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
    if (combining(sequence[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < sequence.size() && combining(sequence[end]) != 0) ++end;
    std::stable_sort(sequence.begin() + begin, sequence.begin() + end,
                     [&](utf8proc_int32_t a, utf8proc_int32_t b) { return combining(a) < combining(b); });
    begin = end;
  }
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(sequence.data(), static_cast<utf8proc_ssize_t>(sequence.size()), options);
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(out, static_cast<char32_t>(sequence[i]));
  sequence.clear();
}

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  size_t offset = 0;
  while (true) {
    const size_t hit = text.find(pattern, offset);
    if (hit == std::string_view::npos) break;
    out.append(text.substr(offset, hit - offset)).append(content);
    offset = hit + pattern.size();
  }
  return out.append(text.substr(offset));
}

}  // namespace

std::string normalize_nfc(std::string_view text) {
  const bool stable = std::all_of(text.begin(), text.end(),
                                  [](char byte) { return static_cast<uint8_t>(byte) < kFirstUnstableByte; });
  if (stable) return std::string(text);
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> sequence;  // decomposed characters that may still combine
  for (size_t offset = 0; offset < text.size();) {
    const char32_t c = next_codepoint(text, offset);
    if (unknown_to_reference(c)) {
      compose(sequence, out);
      append_utf8(out, c);
      continue;
    }
    if (c < kFirstUnstable) compose(sequence, out);  // a starter that nothing before it composes with
    if (c < 0x80) {
      // ASCII may be the base of marks that follow, so it opens a sequence of its own.
      sequence.push_back(static_cast<utf8proc_int32_t>(c));
      continue;
    }
    utf8proc_int32_t parts[8];  // the longest canonical decomposition has 4 characters
    int boundary_class = 0;
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 8, options, &boundary_class);
    if (count < 0 || count > 8) {
      sequence.push_back(static_cast<utf8proc_int32_t>(c));
    } else {
      sequence.insert(sequence.end(), parts, parts + count);
    }
  }
  compose(sequence, out);
  return out;
}

std::string Normalizer::prefix() const {
  // Later steps see the prefix of earlier ones.
  std::string result;
  for (const NormalizerStep& step : steps_) {
    if (step.kind == NormalizerStep::Kind::prepend) result = step.content + result;
    if (step.kind == NormalizerStep::Kind::replace) result = replace_all(result, step.pattern, step.content);
    if (step.kind == NormalizerStep::Kind::nfc) result = normalize_nfc(result);
  }
  return result;
}

std::string Normalizer::apply_body(std::string_view text) const {
  std::string result(text);
  for (const NormalizerStep& step : steps_) {
    if (step.kind == NormalizerStep::Kind::replace) result = replace_all(result, step.pattern, step.content);
    if (step.kind == NormalizerStep::Kind::nfc) result = normalize_nfc(result);
  }
  return result;
}

std::string Normalizer::apply(std::string_view text) const {
  if (text.empty()) return {};
  return prefix() + apply_body(text);
}

bool Normalizer::can_shrink() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
    return step.kind == NormalizerStep::Kind::nfc ||
           (step.kind == NormalizerStep::Kind::replace && step.content.size() < step.pattern.size());
  });
}

}  // namespace tandem
