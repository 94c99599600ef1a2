// The buffers that every layer's blocks share within one step. A block reads `normed` and leaves its result
// in `branch`; the decoder adds that to the residual stream.
#pragma once

#include "program/step.h"

namespace tandem {

struct StepTensors {
  DType compute_dtype = DType::bf16;
  bool rounds_as_trained = false;  // ModelOptions::qat_simulation
  bool sees_key_ranges = false;    // rows of a draft block: StepBatch::key_ranges, not the window before them
  Tensor residual;                 // float32 [rows, hidden]; with hyper-connections [rows, streams * hidden]
  Tensor normed;  // compute dtype [rows, hidden]: the normed row, rounded once; attention, router, shared
                  // experts and the wire all start from it
  Tensor rope;    // float32 [rows, rope_dim]: cosines and sines of the rows' positions
  Tensor branch;  // float32 [rows, hidden]
};

}  // namespace tandem
