#include "attention/speculation.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr double kMinGain = 0.05;    // draft_choice
constexpr double kFade = 1.0 / 256;  // a change of what is written is followed within some hundred drafts

constexpr uint32_t kStepsBetweenChoices = 64;  // enough drafts to tell half from none
constexpr uint32_t kPlainStepEvery = 16;       // costs a sixteenth of what drafts gain
constexpr uint32_t kLongestWait = 16384;  // a probe costs some per cent of 64 steps: then it hardly shows
// A probe waits for a sequence that begins while it lasts.
constexpr uint32_t kLongestProbe = 512;

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
  if (drafts == 0 || costs.rows == DraftRows::none) return seconds;
  if (costs.rows == DraftRows::block) {
    seconds += costs.draft.at(sequences);
  } else {
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

uint32_t DraftPolicy::plan() {
  return options_.automatic && ++planned_ % kPlainStepEvery == 0 ? 0 : tokens_;
}

void DraftPolicy::add_step(uint32_t sequences, uint32_t rows, double seconds) {
  step_.add(rows, seconds);
  sequences_ += (sequences - sequences_) / (steps_ == 0 ? 1 : 16);
  ++steps_;
  // Of blocks none may be proposed: there a round counts.
  if (draft_rows_ != DraftRows::block) drafted_steps_ += rows > sequences ? 1 : 0;
}

void DraftPolicy::add_round(uint32_t rows, double seconds) {
  draft_.add(rows, seconds);
  if (draft_rows_ == DraftRows::block) ++drafted_steps_;
}

bool DraftPolicy::turn(uint32_t tokens) {
  steps_ = drafted_steps_ = 0;
  const bool changed = tokens != tokens_;
  tokens_ = tokens;
  return changed;
}

bool DraftPolicy::choose() {
  if (!options_.automatic) return false;
  if (tokens_ == 0) {
    if (steps_ < wait_) return false;
    wait_ = std::min(2 * wait_, kLongestWait);
    is_probing_ = true;
    return turn(options_.num_tokens);
  }
  if (drafted_steps_ < kStepsBetweenChoices) {
    if (!is_probing_ || steps_ < kLongestProbe) return false;
    is_probing_ = false;
    return turn(0);
  }
  const DraftCosts costs{step_.line(), draft_.line(), draft_rows_, sequences_, acceptance_};
  const uint32_t chosen = draft_choice(costs, options_.num_tokens, is_probing_ ? 0 : tokens_);
  is_probing_ = false;
  if (chosen != 0) wait_ = kFirstWait;
  return turn(chosen);
}

}  // namespace tandem
