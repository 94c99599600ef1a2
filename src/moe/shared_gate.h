// The gate of a shared expert (Qwen2-MoE): how much of the shared expert's output each row takes. Pure but
// for the outputs; the work runs on the pool. A row's bits do not depend on the rows beside it.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/activation_format.h"

namespace tandem {

// outputs[row, :] *= sigmoid(in[row] . gate) for the rows that `row_index` names; in float32.
//   gate     [hidden]
//   in       [rows, hidden]: f32 or bf16, or int8 with a scale a row
//   outputs  [rows, hidden]
void gate_rows(std::span<const float> gate, std::span<const uint32_t> row_index, const ActivationView& in,
               ThreadPool& pool, float* outputs);

}  // namespace tandem
