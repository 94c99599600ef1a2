#include "attention/step_builder.h"

namespace tandem {

StepBuilder::StepBuilder(uint32_t capacity) {
  token_ids_.reserve(capacity);
  rows_.reserve(capacity);
  logit_rows_.reserve(capacity);
}

StepBatch StepBuilder::build(std::span<const StepPart> parts, StepId step, RowClass row_class,
                             Instant deadline) {
  token_ids_.clear();
  rows_.clear();
  logit_rows_.clear();
  for (const StepPart& part : parts) {
    const Sequence& sequence = *part.sequence;
    for (uint32_t i = 0; i < part.rows; ++i) {
      const uint32_t position = sequence.state.length() + part.offset + i;
      token_ids_.push_back(sequence.tokens[position]);
      rows_.push_back({sequence.state.block_table().data(), position});
    }
    if (part.samples) logit_rows_.push_back(static_cast<uint32_t>(rows_.size() - 1));
  }
  StepBatch batch;
  batch.step = step;
  batch.row_class = row_class;
  batch.token_ids = token_ids_;
  batch.rows = rows_;
  batch.logit_rows = logit_rows_;
  batch.deadline = deadline;
  return batch;
}

}  // namespace tandem
