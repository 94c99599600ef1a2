#include "attention/step_builder.h"

namespace tandem {

StepBuilder::StepBuilder(uint32_t capacity, uint32_t num_state_groups)
    : rows_(num_state_groups), group_rows_(num_state_groups) {
  token_ids_.reserve(capacity);
  for (std::vector<AttentionRow>& rows : rows_) rows.reserve(capacity);
  logit_rows_.reserve(capacity);
  hidden_.reserve(capacity);
  key_ranges_.reserve(capacity);
}

void StepBuilder::clear() {
  token_ids_.clear();
  for (std::vector<AttentionRow>& rows : rows_) rows.clear();
  logit_rows_.clear();
  hidden_.clear();
  key_ranges_.clear();
}

void StepBuilder::add_row(const SequenceState& state, uint32_t position, int32_t token, bool wants_logits) {
  if (wants_logits) logit_rows_.push_back(static_cast<uint32_t>(token_ids_.size()));
  token_ids_.push_back(token);
  for (uint32_t group = 0; group < rows_.size(); ++group)
    rows_[group].push_back({state.block_table(group).data(), position});
}

void StepBuilder::add_row_of(const Sequence& sequence, uint32_t position, uint32_t token_position,
                             bool wants_logits) {
  const size_t known = sequence.tokens.size();
  const int32_t token =
      token_position < known ? sequence.tokens[token_position] : sequence.drafts[token_position - known];
  add_row(sequence.state, position, token, wants_logits);
}

StepBatch StepBuilder::batch(StepId step, RowClass row_class, Instant deadline) {
  for (size_t group = 0; group < rows_.size(); ++group) group_rows_[group] = rows_[group];
  StepBatch batch;
  batch.step = step;
  batch.row_class = row_class;
  batch.token_ids = token_ids_;
  batch.rows = group_rows_[0];
  batch.group_rows = group_rows_;
  batch.logit_rows = logit_rows_;
  batch.hidden = hidden_;
  batch.key_ranges = key_ranges_;
  batch.deadline = deadline;
  return batch;
}

StepBatch StepBuilder::build(std::span<const StepPart> parts, StepId step, RowClass row_class,
                             Instant deadline) {
  clear();
  for (const StepPart& part : parts) {
    for (uint32_t i = 0; i < part.rows; ++i) {
      const uint32_t position = part.sequence->state.length() + part.offset + i;
      add_row_of(*part.sequence, position, position, i + part.logit_rows() >= part.rows);
    }
  }
  return batch(step, row_class, deadline);
}

StepBatch StepBuilder::build(std::span<const DraftPart> parts, uint32_t hidden_cols, StepId step,
                             RowClass row_class, Instant deadline) {
  clear();
  for (const DraftPart& part : parts) {
    for (uint32_t i = 0; i < part.rows; ++i) {
      add_row_of(*part.sequence, part.begin + i, part.begin + i + 1, part.proposes && i + 1 == part.rows);
      hidden_.push_back(part.hidden + size_t{i} * hidden_cols);
    }
  }
  return batch(step, row_class, deadline);
}

}  // namespace tandem
