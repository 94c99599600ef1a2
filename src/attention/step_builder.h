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
  explicit StepBuilder(uint32_t capacity);

  // The batch is valid until the next call, as long as the sequences of the parts do not change.
  StepBatch build(std::span<const StepPart> parts, StepId step, RowClass row_class, Instant deadline);

 private:
  std::vector<int32_t> token_ids_;
  std::vector<AttentionRow> rows_;
  std::vector<uint32_t> logit_rows_;
};

}  // namespace tandem
