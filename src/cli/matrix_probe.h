// MatrixProbe: what every cell of the matrix must answer: prompts, and the colocated run's tokens and logits.
// One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/batch_generation.h"
#include "cli/matrix_report.h"

namespace tandem {

class MatrixProbe {
 public:
  // Makes the prompts (token ids from a fixed seed; questions of heldout.jsonl too, where the folder has them
  // and a tokenizer) and runs them colocated with `settings`, batched and one by one. An error: that run
  // failed, or its two halves differ, so that there is nothing to compare with.
  static Result<MatrixProbe> create(const Settings& settings);

  // Starts the deployment, runs the prompts both ways, compares, ends it.
  CellResult run(const Settings& settings) const;

  size_t num_prompts() const { return requests_.size(); }
  // Over all prompts' hashes, in order.
  std::string logits_hash() const;

 private:
  std::vector<GenerationRequest> requests_;
  std::vector<BatchAnswer> expected_;
};

// The first prompt whose answer is another one, and the first position where that shows: empty when all are
// equal. Positions are told by token and by the chosen token's log probability.
std::string first_difference(std::span<const BatchAnswer> expected, std::span<const BatchAnswer> got);

}  // namespace tandem
