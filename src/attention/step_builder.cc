#include "attention/step_builder.h"

namespace tandem {

StepBuilder::StepBuilder(uint32_t capacity) {
  token_ids_.reserve(capacity);
  rows_.reserve(capacity);
  logit_rows_.reserve(capacity);
  hidden_.reserve(capacity);
}

void StepBuilder::clear() {
  token_ids_.clear();
  rows_.clear();
  logit_rows_.clear();
  hidden_.clear();
}

void StepBuilder::add_row(const Sequence& sequence, uint32_t position, uint32_t token_position) {
  const size_t known = sequence.tokens.size();
  token_ids_.push_back(token_position < known ? sequence.tokens[token_position]
                                              : sequence.drafts[token_position - known]);
  rows_.push_back({sequence.state.block_table().data(), position});
}

StepBatch StepBuilder::batch(StepId step, RowClass row_class, Instant deadline) const {
  StepBatch batch;
  batch.step = step;
  batch.row_class = row_class;
  batch.token_ids = token_ids_;
  batch.rows = rows_;
  batch.logit_rows = logit_rows_;
  batch.hidden = hidden_;
  batch.deadline = deadline;
  return batch;
}

StepBatch StepBuilder::build(std::span<const StepPart> parts, StepId step, RowClass row_class,
                             Instant deadline) {
  clear();
  for (const StepPart& part : parts) {
    for (uint32_t i = 0; i < part.rows; ++i) {
      const uint32_t position = part.sequence->state.length() + part.offset + i;
      add_row(*part.sequence, position, position);
    }
    const auto end = static_cast<uint32_t>(rows_.size());
    for (uint32_t row = end - part.logit_rows(); row < end; ++row) logit_rows_.push_back(row);
  }
  return batch(step, row_class, deadline);
}

StepBatch StepBuilder::build(std::span<const DraftPart> parts, uint32_t hidden_cols, StepId step,
                             RowClass row_class, Instant deadline) {
  clear();
  for (const DraftPart& part : parts) {
    for (uint32_t i = 0; i < part.rows; ++i) {
      add_row(*part.sequence, part.begin + i, part.begin + i + 1);
      hidden_.push_back(part.hidden + size_t{i} * hidden_cols);
    }
    if (part.proposes) logit_rows_.push_back(static_cast<uint32_t>(rows_.size() - 1));
  }
  return batch(step, row_class, deadline);
}

}  // namespace tandem
