#include "cli/load/lengths.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace tandem {
namespace {

template <class Number>
bool parse_all(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<LengthDistribution> LengthDistribution::parse(const std::string& key, const std::string& text,
                                                     double range_ratio) {
  const auto refuse = [&](const std::string& why) {
    return make_error(
        ErrorCode::invalid_argument,
        key + ": '" + text + "' " + why + "; use 128, 64:256 or lognormal:MEDIAN:SIGMA (tokens)");
  };
  LengthDistribution lengths;
  std::vector<std::string_view> parts;
  for (std::string_view rest = text;;) {
    const size_t colon = rest.find(':');
    parts.push_back(rest.substr(0, colon));
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  const auto in_range = [](double value) { return value >= 1 && value <= kMost; };
  if (parts.size() == 3 && parts[0] == "lognormal") {
    lengths.is_lognormal_ = true;
    if (!parse_all(parts[1], lengths.median_) || !in_range(lengths.median_))
      return refuse("has no median from 1 on");
    if (!parse_all(parts[2], lengths.sigma_) || !(lengths.sigma_ >= 0 && lengths.sigma_ <= 10))
      return refuse("has no sigma in 0..10");
    return lengths;
  }
  if (parts.size() > 2) return refuse("is no length");
  if (!parse_all(parts[0], lengths.low_) || !parse_all(parts.back(), lengths.high_))
    return refuse("is no length");
  if (!in_range(lengths.low_) || !in_range(lengths.high_) || lengths.low_ > lengths.high_)
    return refuse("is not within 1.." + std::to_string(kMost) + ", ascending");
  if (range_ratio > 0) {
    if (parts.size() == 2) return refuse("is a range already, and load.random_range_ratio is given");
    const double length = lengths.low_;
    lengths.low_ = static_cast<uint32_t>(std::max(1.0, std::round(length * (1 - range_ratio))));
    lengths.high_ = static_cast<uint32_t>(std::min<double>(kMost, std::round(length * (1 + range_ratio))));
  }
  return lengths;
}

uint32_t LengthDistribution::sample(std::mt19937_64& random) const {
  if (!is_lognormal_) return std::uniform_int_distribution<uint32_t>(low_, high_)(random);
  const double length = std::lognormal_distribution<double>(std::log(median_), sigma_)(random);
  return static_cast<uint32_t>(std::lround(std::clamp<double>(length, 1, kMost)));
}

}  // namespace tandem
