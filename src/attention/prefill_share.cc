#include "attention/prefill_share.h"

#include <algorithm>

namespace tandem {
namespace {

// Of a measurement in a smoothed one: the last dozen count.
constexpr double kNew = 1.0 / 8;
// Looks at what has arrived cost less than a hundredth of this.
constexpr double kShortestSlice = 200e-6;
// Credit is for gaps between decode steps, not to be saved up: one that is unused is lost. A debt of an
// operation far longer than a decode step is paid back, one of a stall (a suspended process) is not.
constexpr double kMostCredit = 1, kMostDebt = 32;

void smooth(double& value, double measured) {
  value = value == 0 ? measured : value + kNew * (measured - value);
}

}  // namespace

void PrefillShare::set_load(uint32_t prefilling, uint32_t decoding) {
  prefilling_ = prefilling;
  decoding_ = decoding;
  if (!is_shared()) credit_ = 0;
}

double PrefillShare::ratio() const {
  const double even = decoding_ == 0 ? 0 : static_cast<double>(prefilling_) / decoding_;
  return std::max(even, least_ / (1 - least_));
}

double PrefillShare::slice() const {
  return std::max({credit_, decode_step_ / 8, kShortestSlice});
}

void PrefillShare::add_decode(double seconds) {
  decode_now_ += seconds;
  if (is_shared())
    credit_ = std::min(credit_ + seconds * ratio(), kMostCredit * ratio() * (decode_step_ + decode_now_));
}

void PrefillShare::end_decode_step() {
  smooth(decode_step_, decode_now_);
  decode_now_ = 0;
}

void PrefillShare::add_prefill(double seconds) {
  if (is_shared())
    credit_ = std::max(credit_ - seconds, -kMostDebt * ratio() * (decode_step_ + kShortestSlice));
}

void PrefillShare::add_prefill_step(uint32_t rows, uint32_t layers, double seconds) {
  if (rows > 0 && layers > 0) smooth(row_layer_, seconds / rows / layers);
}

uint32_t PrefillShare::chunk_rows(uint32_t most) const {
  if (!is_shared() || row_layer_ == 0 || decode_step_ == 0) return most;
  const double rows = ratio() * decode_step_ / row_layer_;
  if (rows >= most) return most;
  return std::min(most, std::max(kLeastChunkRows, static_cast<uint32_t>(rows)));
}

}  // namespace tandem
