#include "grammar/json_integers.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tandem {
namespace {

using E = GrammarExpression;

E digit_range(char first, char last) {
  return E::range(static_cast<unsigned char>(first), static_cast<unsigned char>(last));
}
E any_digits(size_t count) {
  const auto n = static_cast<uint32_t>(count);
  return E::repeat(digit_range('0', '9'), n, n);
}

// Texts of equal length between `low` and `high`, digit for digit.
E between(std::string_view low, std::string_view high) {
  if (low.empty()) return E::sequence({});
  const auto is_all = [](std::string_view text, char digit) {
    return text.find_first_not_of(digit) == std::string_view::npos;
  };
  const std::string_view low_rest = low.substr(1), high_rest = high.substr(1);
  if (low[0] == high[0]) return E::sequence({E::literal(low.substr(0, 1)), between(low_rest, high_rest)});
  std::vector<E> options;
  char first = low[0], last = high[0];
  if (!is_all(low_rest, '0')) {
    options.push_back(
        E::sequence({E::literal(low.substr(0, 1)), between(low_rest, std::string(low_rest.size(), '9'))}));
    ++first;
  }
  if (!is_all(high_rest, '9')) {
    options.push_back(
        E::sequence({E::literal(high.substr(0, 1)), between(std::string(high_rest.size(), '0'), high_rest)}));
    --last;
  }
  if (first <= last) options.push_back(E::sequence({digit_range(first, last), any_digits(low_rest.size())}));
  return E::choice(std::move(options));
}

// 0 <= low <= high.
void add_non_negative(int64_t low, int64_t high, std::string_view sign, std::vector<E>& options) {
  const std::string top = std::to_string(high);
  while (true) {
    const std::string from = std::to_string(low);
    const bool last = from.size() == top.size();
    const std::string to = last ? top : std::string(from.size(), '9');
    options.push_back(E::sequence({E::literal(sign), between(from, to)}));
    if (last) return;
    low = std::stoll(to) + 1;
  }
}

}  // namespace

E integers_between(std::optional<int64_t> min, std::optional<int64_t> max) {
  const int64_t low = std::clamp(min.value_or(-kMostInteger), -kMostInteger, kMostInteger);
  const int64_t high = std::clamp(max.value_or(kMostInteger), -kMostInteger, kMostInteger);
  std::vector<E> options;
  if (low < 0) add_non_negative(std::max<int64_t>(1, -high), -low, "-", options);
  if (high >= 0) add_non_negative(std::max<int64_t>(0, low), high, "", options);
  return E::choice(std::move(options));
}

}  // namespace tandem
