// Parity: a model folder against the reference outputs that lie beside it (tests/fixtures/README.md describes
// them): logits of prefills, the router's choices in each MoE layer, greedy continuations. `tandem eval
// parity DIR` prints it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/kernel_table.h"
#include "model/model.h"
#include "moe/ffn_port.h"

namespace tandem {

struct ParityOptions {
  DType compute_dtype = DType::f32;  // f32 to be held against the bound; bf16 to see what rounding costs
  SumMode sum_mode = SumMode::plain;
  bool shared_on_attention = false;
  ModelOptions model;  // qat_simulation: of a reference that rounds too
  ActivationFormat activation_format = ActivationFormat::plain;  // of a reference that rounds too
  uint32_t rows_per_step = 16;  // prompts are computed in chunks of so many tokens
  // Largest |difference| of a logit that passes. In float32 two right engines differ in the order of sums
  // alone.
  double max_logit_difference = 1e-3;
  // A router whose choice hangs on less than rounding may choose otherwise; false when the compute dtype is
  // bf16.
  bool require_equal_routing = true;

  // Whether few bits are rounded to (qat_simulation, a quantised activation_format). A value between two
  // codes may fall to either side by the last bit of a sum; it is a step away then, and what later roundings
  // make of that knows no bound. So half of the prompts must be within the bound, and tell that the rounding
  // is the reference's: with another all are far off.
  bool rounds_to_codes() const {
    return model.qat_simulation || activation_format != ActivationFormat::plain;
  }
};

struct ParityLayer {
  uint32_t layer = 0;
  uint64_t rows = 0, differing_rows = 0;  // rows whose set of experts differs
  double max_weight_difference = 0;       // over rows with equal experts
};

struct ParityPrompt {
  uint32_t length = 0;
  double prefill_difference = 0;  // max |difference| of a logit, all positions
  // The same over the rows before the first whose experts differ in any layer: what rounding alone costs.
  uint32_t same_routing_rows = 0;
  double same_routing_difference = 0;
  double greedy_difference = 0;  // the same over the continuation, which is fed the reference's tokens
  uint32_t greedy_steps = 0;
  uint32_t equal_tokens = 0;
  // Steps where the reference's best token leads by more than twice the bound, so that it must be ours too;
  // of those, how many were not.
  uint32_t decided_steps = 0, wrong_tokens = 0;
};

struct ParityReport {
  std::string folder, model_type, kernel_table;
  ParityOptions options;
  std::vector<ParityPrompt> prompts;
  std::vector<ParityLayer> layers;

  double max_logit_difference() const;
  double max_same_routing_difference() const;
  uint64_t differing_router_rows() const;
  uint32_t wrong_tokens() const;
  uint32_t prompts_within_bound() const;
  double equal_token_share() const;  // of all greedy steps
  bool passed() const;

  std::string text() const;  // lines for a person
  std::string json() const;  // one object
};

// Runs the fixture in `folder`. Errors are of the folder: not a model, not a fixture (names the tensor that
// is absent or of another shape); a difference is no error but a report that has not passed.
Result<ParityReport> run_parity(const std::string& folder, const ParityOptions& options,
                                KernelRunner& kernels);

}  // namespace tandem
