// StepBuilder: from the parts of a plan to the batch that a lane runs. Holds the arrays that the batch points
// to; reused.
#pragma once

#include <span>
#include <vector>

#include "attention/scheduler.h"
#include "program/step.h"

namespace tandem {

class StepBuilder {
 public:
  // Room for `capacity` rows: nothing is allocated afterwards.
  explicit StepBuilder(uint32_t capacity, uint32_t num_state_groups = 1);

  // The batch is valid until the next call, as long as the sequences of the parts do not change.
  StepBatch build(std::span<const StepPart> parts, StepId step, RowClass row_class, Instant deadline);

  // Rows of a drafter: position p has the hidden row of the model's row p and the token behind it, p + 1.
  struct DraftPart {
    Sequence* sequence = nullptr;
    uint32_t begin = 0, rows = 0;   // positions
    const float* hidden = nullptr;  // of the first row; the others follow, hidden_cols apart
    bool proposes = false;          // the last row's logits are wanted
  };
  StepBatch build(std::span<const DraftPart> parts, uint32_t hidden_cols, StepId step, RowClass row_class,
                  Instant deadline);

  // By hand: rows of one state after another, then the batch of them.
  void clear();
  void add_row(const SequenceState& state, uint32_t position, int32_t token, bool wants_logits);
  // Of the row that was added last, where the program reads them.
  void add_hidden(const float* row) { hidden_.push_back(row); }
  void add_key_range(const KeyRange& range) { key_ranges_.push_back(range); }
  StepBatch batch(StepId step, RowClass row_class, Instant deadline);

 private:
  // The token of `token_position`, a draft where the sequence has no token there yet.
  void add_row_of(const Sequence& sequence, uint32_t position, uint32_t token_position, bool wants_logits);

  std::vector<int32_t> token_ids_;
  std::vector<std::vector<AttentionRow>> rows_;            // [groups][rows]
  std::vector<std::span<const AttentionRow>> group_rows_;  // of rows_
  std::vector<uint32_t> logit_rows_;
  std::vector<const float*> hidden_;
  std::vector<KeyRange> key_ranges_;
};

}  // namespace tandem
