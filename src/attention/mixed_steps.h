// MixedSteps: how many rows of prompts a decode step takes along. Values and pure rules; time is what the
// caller says that steps took. One thread.
//
// A decode step of a few sequences is bound by reading the weights; rows of a prompt that come along in the
// same step read them once more for nobody. So prompts get on faster beside answers than between their steps
// (prefill_share.h), as long as a row that comes along costs less than one of a prompt's own step. Their
// number is steered so that a step takes what the share of prompts allows, as a multiple of what a decode
// step takes without them, which is measured anew now and then, less often while it stays as it was.
#pragma once

#include <cstdint>

namespace tandem {

// What the next steps are.
enum class StepMix : uint8_t {
  apart,  // decode steps and prompts' own steps take turns
  alone,  // one decode step and nothing beside it: it is measured
  mixed,
};

struct MixedPlan {
  StepMix mix = StepMix::apart;
  uint32_t prompt_rows = 0;  // of mixed: at most
};

class MixedSteps {
 public:
  // For the next step of `sequences` that decode, beside which prompts wait. `ratio`: seconds of prompts for
  // each second of decode steps (PrefillShare::ratio). `most`: rows of prompts that a step has room for.
  MixedPlan plan(uint32_t sequences, double ratio, uint32_t most);
  // Whether prompts may begin a step of their own while a decode step is in work: only where they go apart.
  // Each yes is one of the plans for which they do.
  bool goes_apart();

  // Steps that have ended: of decode rows alone, of prompts alone, of both.
  void add_decode_step(uint32_t sequences, double seconds);
  void add_prefill_step(uint32_t rows, double seconds);
  void add_mixed_step(uint32_t prompt_rows, double seconds);

 private:
  bool is_like_measured(uint32_t sequences) const;

  double decode_step_ = 0;         // seconds of a decode step, smoothed
  uint32_t decode_sequences_ = 0;  // that it had; 0: not measured
  uint32_t since_decode_ = 0;      // mixed steps since
  uint32_t between_ = 0;           // so many at most
  double row_ = 0;                 // seconds of a row in prompts' own steps, smoothed; 0: not measured
  double ratio_ = 0;               // that steps are mixed for
  double rows_ = 0;                // that come along; 0: steps have just begun to be mixed
  double mixed_step_ = 0;          // seconds of a mixed step, smoothed
  uint32_t num_mixed_ = 0;         // mixed steps that it was measured in
  double wanted_ = 0;              // seconds of the last mixed step that was planned
  uint32_t planned_ = 0;           // its rows
  uint32_t too_long_ = 0;          // mixed steps, one after the other
  uint32_t apart_ = 0;             // plans for which prompts go apart yet
};

}  // namespace tandem
