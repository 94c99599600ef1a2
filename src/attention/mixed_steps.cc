#include "attention/mixed_steps.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

// Of a measurement in a smoothed one: the last few count, for contexts grow and sequences come and go.
constexpr double kNew = 1.0 / 4;
// Mixed steps between two measured decode steps, which give prompts nothing: a twentieth of the time. As long
// as they take what they took, within the noise of a step, there are twice as many, and then a hundredth.
constexpr uint32_t kStepsBetweenMeasurements = 16, kMostBetweenMeasurements = 64;
constexpr double kAsBefore = 1.0 / 8;
// Steps of prompts that go apart once that was faster: what made it so (a long context) stays for a while.
constexpr uint32_t kPlansApart = 8;
// Prompts go apart where that is faster by a quarter: answers have more even gaps beside them.
constexpr double kFasterApart = 0.8;
// Mixed steps until their number of rows has settled, and what prompts gain is known.
constexpr uint32_t kSettled = 12;
// Rows of the first mixed step where nothing is known of a row: few enough to be no stall whatever they cost.
constexpr uint32_t kFirstRows = 16;
// Of what a step was too long or too short by, taken back in the next one; and most of the rows that change.
// A step's time has noise of a tenth.
constexpr double kCorrected = 1.0 / 4, kMostChange = 1.0 / 4;
// A longer step is a stall of the machine, and counts as so much.
constexpr double kStall = 1.25;
// So many mixed steps that take so much more than they should, one after the other: what a decode step takes
// has changed, and is measured before prompts pay for it.
constexpr uint32_t kTooLong = 2;
// With another share, or so many more or fewer sequences, what was found of mixed steps says nothing.
constexpr double kOtherRatio = 1.25;
// A row that seems to cost nothing is noise. Of a decode step.
constexpr double kLeastRow = 1.0 / 512;

void smooth(double& value, double measured) {
  value = value == 0 ? measured : value + kNew * (measured - value);
}

}  // namespace

// A step's reads grow with its sequences, slowly: another quarter of them is still the same step.
bool MixedSteps::is_like_measured(uint32_t sequences) const {
  const uint32_t slack = decode_sequences_ / 4;
  return decode_sequences_ > 0 && sequences + slack >= decode_sequences_ &&
         sequences <= decode_sequences_ + slack;
}

bool MixedSteps::goes_apart() {
  if (apart_ == 0) return false;
  --apart_;
  return true;
}

MixedPlan MixedSteps::plan(uint32_t sequences, double ratio, uint32_t most) {
  if (most == 0 || ratio <= 0) return {};
  if (goes_apart()) return {};
  if (!is_like_measured(sequences) || since_decode_ >= between_) return {StepMix::alone, 0};
  wanted_ = (1 + ratio) * decode_step_;
  if (ratio > kOtherRatio * ratio_ || ratio_ > kOtherRatio * ratio) rows_ = 0;
  if (rows_ == 0) {
    ratio_ = ratio;
    // As if nothing were saved: the step is not too long.
    rows_ = row_ > 0 ? ratio * decode_step_ / row_ : kFirstRows;
    num_mixed_ = 0;
    mixed_step_ = 0;
  }
  rows_ = std::clamp<double>(rows_, 1, most);
  if (row_ > 0 && num_mixed_ >= kSettled) {
    const double beside = rows_ / mixed_step_, between = ratio / (1 + ratio) / row_;
    if (beside < kFasterApart * between) {
      apart_ = kPlansApart;
      rows_ = 0;
      return {};
    }
  }
  planned_ = static_cast<uint32_t>(rows_);
  return {StepMix::mixed, planned_};
}

void MixedSteps::add_decode_step(uint32_t sequences, double seconds) {
  if (!is_like_measured(sequences)) decode_step_ = rows_ = 0;
  const bool as_before = std::abs(seconds - decode_step_) < kAsBefore * decode_step_;
  between_ = as_before ? std::min(2 * between_, kMostBetweenMeasurements) : kStepsBetweenMeasurements;
  smooth(decode_step_, decode_step_ == 0 ? seconds : std::min(seconds, kStall * decode_step_));
  decode_sequences_ = sequences;
  since_decode_ = 0;
}

void MixedSteps::add_prefill_step(uint32_t rows, double seconds) {
  if (rows > 0) smooth(row_, seconds / rows);
}

void MixedSteps::add_mixed_step(uint32_t prompt_rows, double seconds) {
  ++since_decode_;
  // The end of a prompt says little of a step that is full.
  if (prompt_rows == 0 || 2 * prompt_rows < planned_) return;
  const double row =
      row_ > 0 ? row_ : std::max(kLeastRow * decode_step_, (seconds - decode_step_) / prompt_rows);
  seconds += (planned_ - std::min(planned_, prompt_rows)) * row;
  smooth(mixed_step_, num_mixed_ == 0 ? seconds : std::min(seconds, kStall * mixed_step_));
  ++num_mixed_;
  too_long_ = seconds > kStall * wanted_ ? too_long_ + 1 : 0;
  if (too_long_ == kTooLong) {
    too_long_ = 0;
    since_decode_ = between_;
  }
  const double most = std::max(1.0, kMostChange * rows_);
  rows_ += std::clamp(kCorrected * (wanted_ - seconds) / row, -most, most);
}

}  // namespace tandem
