#include "attention/speculation.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr double kMinGain = 0.05;    // draft_choice
constexpr double kFade = 1.0 / 256;  // a change of what is written is followed within some hundred drafts

}  // namespace

void AcceptanceMeter::add(uint32_t proposed, uint32_t accepted) {
  // A draft behind a wrong one was never tried: it says nothing about its position.
  const uint32_t tried = std::min({proposed, accepted + 1, kMaxDraftTokens});
  for (uint32_t position = 0; position < tried; ++position) {
    proposed_[position] += 1 - kFade * proposed_[position];
    accepted_[position] += (position < accepted ? 1 : 0) - kFade * accepted_[position];
  }
}

double AcceptanceMeter::rate(uint32_t position) const {
  for (uint32_t at = std::min(position, kMaxDraftTokens - 1) + 1; at > 0; --at) {
    if (proposed_[at - 1] > 0) return accepted_[at - 1] / proposed_[at - 1];
  }
  return 0;
}

double expected_tokens(const AcceptanceMeter& acceptance, uint32_t drafts) {
  double tokens = 1, all_right = 1;
  for (uint32_t position = 0; position < drafts; ++position) {
    all_right *= acceptance.rate(position);
    tokens += all_right;
  }
  return tokens;
}

double drafted_step_seconds(const DraftCosts& costs, uint32_t drafts) {
  const double sequences = costs.sequences;
  double seconds = costs.step.at(sequences * (1 + drafts));
  if (drafts > 0 && costs.catches_up) {
    seconds += costs.draft.at(sequences * expected_tokens(costs.acceptance, drafts));
    seconds += (drafts - 1) * costs.draft.at(sequences);
  }
  return seconds;
}

uint32_t draft_choice(const DraftCosts& costs, uint32_t most, uint32_t current) {
  const auto seconds_per_token = [&](uint32_t drafts) {
    return drafted_step_seconds(costs, drafts) / expected_tokens(costs.acceptance, drafts);
  };
  uint32_t best = std::min(current, most);
  double least = seconds_per_token(best) * (1 - kMinGain);
  for (uint32_t drafts = 0; drafts <= most; ++drafts) {
    const double seconds = seconds_per_token(drafts);
    if (seconds >= least) continue;
    best = drafts;
    least = seconds;
  }
  return best;
}

}  // namespace tandem
