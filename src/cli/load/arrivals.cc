#include "cli/load/arrivals.h"

#include <charconv>
#include <cmath>

namespace tandem {

ArrivalSchedule::ArrivalSchedule(const ArrivalOptions& options)
    : options_(options), random_(options.seed), gamma_(options.burstiness, 1) {
  if (std::isinf(options_.rate) || options_.is_constant || options_.count < 2 || options_.seconds > 0) return;
  ArrivalSchedule rehearsal = *this;
  double sum = 0;
  for (uint64_t i = 1; i < options_.count; ++i) sum += rehearsal.gap();
  if (sum > 0) stretch_ = static_cast<double>(options_.count - 1) / (options_.rate * sum);
}

double ArrivalSchedule::gap() {
  if (std::isinf(options_.rate)) return 0;
  if (options_.is_constant) return 1 / options_.rate;
  return gamma_(random_) / (options_.burstiness * options_.rate);
}

std::optional<double> ArrivalSchedule::next() {
  if (options_.count > 0 && given_ == options_.count) return std::nullopt;
  if (given_++ > 0) at_ += stretch_ * gap();
  if (options_.seconds > 0 && at_ > options_.seconds) return std::nullopt;
  return at_;
}

Result<double> parse_request_rate(const std::string& text) {
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error == std::errc() && end == text.data() + text.size() && rate > 0 && !std::isnan(rate)) return rate;
  return make_error(
      ErrorCode::invalid_argument,
      "load.request_rate: '" + text + "' is not a number above 0; use inf to send without a rate");
}

}  // namespace tandem
