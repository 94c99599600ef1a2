// Speculation: tokens that a cheap drafter proposes, verified by the model in one step of 1 + k rows. Values
// and pure rules; one thread.
//
// Verification is exact. Row i of the step has the logits of the token behind draft i - 1, and they are right
// as long as the drafts before it are what was sampled. So each row is sampled as without drafts, with its
// own random number, and the first token that is not the draft ends the step: the drafts behind it saw a text
// that never was. Answers are token for token those without drafts, greedy and sampled, whatever the drafter
// says.
//
// As rejection sampling: draft and target are drawn with the same random numbers from q and p (sampler.h), a
// draft is accepted when both draws agree, and otherwise the target's draw is the sample of the residual
// distribution. P(accept and x) = 1 / sum_j max(p_j / p_x, q_j / q_x); summed over x at least
// (1 - d) / (1 + d), with d the total variation between p and q. The usual rule, min(1, p / q) with a
// residual of max(0, p - q), accepts 1 - d, a little more, but what it answers to a seed depends on the
// drafter and on when drafting was on. Here a seed gives one answer.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/lane_choice.h"

namespace tandem {

// More than any drafter is worth: the chance that all of them are right falls with each.
inline constexpr uint32_t kMaxDraftTokens = 8;

// Rows of a block that a drafter computes at once. They take blocks of the pools ahead of their sequence, and
// pools hold no more than this beyond what a sequence has (kRollbackSlack).
inline constexpr uint32_t kMaxDraftBlock = 16;

// A block ends before the draft at which the chance that all of it is accepted falls below this, as the
// drafter's confidence head says. A row to verify has experts of its own: of DeepSeek-V4-Flash's they are a
// third of the bytes that a token alone reads (3.2 of 10 GB), less where rows share some. A draft that is
// right less often costs more than it gains. Rows of large batches cost less; there only drafts that are
// seldom right are lost.
inline constexpr double kLeastDraftConfidence = 0.2;

// Of a drafter that drafts a block of rows at once (DSpark). size 0: it does not.
struct DraftBlock {
  uint32_t size = 0;    // rows: the token said last, and noise behind it
  uint32_t window = 0;  // tokens before the block that its rows see
  int32_t noise_token_id = 0;
};

struct SpeculationOptions {
  uint32_t num_tokens = 0;  // most drafts of a sequence in one step; 0: none
  bool automatic = false;   // as many as draft_choice says, 0 included, instead of always num_tokens
  DraftBlock block = {};
};

// Proposes tokens out of what has been said, computing no rows: what can stand in place of draft programs.
// Worker thread.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Appends at most `most` tokens that may follow `tokens`.
  virtual void propose(std::span<const int32_t> tokens, uint32_t most, std::vector<int32_t>& drafts) = 0;
};

// Samples the rows of a verified step in order, until one differs from its draft or ends the sequence.
// `next(row)` samples row 0, 1, ... and delivers the token; below 0: the sequence has ended. Returns how many
// drafts were accepted, which is how many rows behind the first one are of the text.
template <class Next>
uint32_t verify_drafts(std::span<const int32_t> drafts, Next next) {
  for (uint32_t row = 0;; ++row) {
    const int32_t token = next(row);
    if (token < 0 || row >= drafts.size() || token != drafts[row]) return row;
  }
}

// How often drafts were right, by position; older steps count less.
class AcceptanceMeter {
 public:
  // Of `proposed` drafts of one sequence the first `accepted` were right.
  void add(uint32_t proposed, uint32_t accepted);
  // That draft `position` (from 0) is right when those before it are: never measured, the rate of the one
  // before; of position 0, 0.
  double rate(uint32_t position) const;
  // Drafts at position 0, faded.
  double weight() const { return proposed_[0]; }

 private:
  std::array<double, kMaxDraftTokens> proposed_{}, accepted_{};
};

// What a drafter computes for a sequence behind a step.
enum class DraftRows : uint8_t {
  none,
  kept,   // all kept rows first, then one row for each draft but one
  block,  // one block, however many drafts are kept of it
};

// What decides whether drafts pay.
struct DraftCosts {
  CostLine step;   // seconds of a decode step by its rows
  CostLine draft;  // seconds of one round of drafting by its rows; of a block: of all drafting by sequences
  DraftRows rows = DraftRows::kept;
  double sequences = 0;  // that decode in one step
  AcceptanceMeter acceptance;
};

// Tokens that a sequence gains in a step with `drafts` drafts, and the predicted seconds of such a step with
// its drafting.
double expected_tokens(const AcceptanceMeter& acceptance, uint32_t drafts);
double drafted_step_seconds(const DraftCosts& costs, uint32_t drafts);

// How many tokens to draft, 0 to `most`: where a token costs least. `current`, unless another number is
// predicted to be better by a twentieth: changing back and forth gains nothing.
uint32_t draft_choice(const DraftCosts& costs, uint32_t most, uint32_t current);

// How many drafts the next steps have. With SpeculationOptions::automatic it measures: begins with all, looks
// at costs and acceptance every 64 drafted steps, and takes one step in sixteen without drafts, so that their
// price shows. Once drafts do not pay it tries again after 1024 steps, then after twice as many.
class DraftPolicy {
 public:
  DraftPolicy(const SpeculationOptions& options, DraftRows draft_rows)
      : options_(options), draft_rows_(draft_rows), tokens_(options.num_tokens) {}

  // Most drafts of a sequence; 0: nothing is drafted for, and sequences that begin now never will be.
  uint32_t tokens() const { return tokens_; }
  // Most drafts that the decode step planned now verifies.
  uint32_t plan();

  // A decode step, a round of drafting behind one (with DraftRows::block `rows` are sequences), and what
  // became of a sequence's drafts. A draft that was not worth proposing counts as a wrong one.
  void add_step(uint32_t sequences, uint32_t rows, double seconds);
  void add_round(uint32_t rows, double seconds);
  void add_verified(uint32_t proposed, uint32_t accepted) { acceptance_.add(proposed, accepted); }
  // After a decode step. True: tokens() has changed.
  bool choose();

 private:
  bool turn(uint32_t tokens);

  SpeculationOptions options_;
  DraftRows draft_rows_;
  uint32_t tokens_;
  bool is_probing_ = false;  // on again, to see whether it pays now
  uint32_t planned_ = 0, steps_ = 0, drafted_steps_ = 0;
  uint32_t wait_ = kFirstWait;  // steps without drafts before the next probe
  double sequences_ = 0;
  CostMeter step_{kMinSpread}, draft_;
  AcceptanceMeter acceptance_;

  static constexpr uint32_t kFirstWait = 1024;
  // Of one step in sixteen with half the rows, less than lane_choice takes for a slope.
  static constexpr double kMinSpread = 0.01;
};

}  // namespace tandem
