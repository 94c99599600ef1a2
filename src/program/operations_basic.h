// Operations that every decoder needs: embedding, norms, projections, rounding, residual additions and the
// head. Each function makes one operation; weights outlive the program. Names are for traces. "Compute dtype"
// is the dtype of activations that enter a product (bf16 or f32); the residual stream and what leaves a
// product are float32.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/packed_weight.h"
#include "program/operation.h"
#include "program/step.h"

namespace tandem {

struct EmbeddingSpec {
  DType dtype = DType::bf16;    // of the table: bf16 or f32
  const void* table = nullptr;  // [vocab, hidden]
  float multiplier = 1.0f;
  uint32_t copies = 1;  // of the row, side by side: the streams of a residual
  Tensor out;           // float32 [rows, copies * hidden]
};
// out[r] = table[token_ids[r]] * multiplier.
OperationPtr embedding(std::string name, const EmbeddingSpec& spec);

struct RmsNormSpec {
  Tensor in;  // float32
  uint32_t in_column = 0;
  uint32_t heads = 1;  // norms a row: head h covers columns [in_column + h * cols, ...)
  uint32_t cols = 0;
  std::span<const float> weight;  // [cols]; empty: 1
  float epsilon = 1e-6f;
  Tensor out;  // any dtype: rounded once; heads `cols` apart. May be `in`
  uint32_t out_column = 0;
};
OperationPtr rms_norm(std::string name, const RmsNormSpec& spec);

struct MatmulSpec {
  std::span<const PackedWeight> weights;  // one, or one a head
  Tensor in;                              // compute dtype; int8 with `in_scales`
  Tensor in_scales = {};                  // float32 [rows, 1]; int8 weights (see append_matmul)
  uint32_t in_column = 0;
  uint32_t in_batch_stride = 0;  // elements between the inputs of two heads
  Tensor out;                    // float32 or bf16
  uint32_t out_batch_stride = 0;
};
OperationPtr matmul(std::string name, const MatmulSpec& spec);

// out = in rounded to out.dtype; equal columns.
OperationPtr convert(std::string name, const Tensor& in, const Tensor& out);

struct ResidualAddSpec {
  Tensor residual;  // float32 [rows, hidden]
  Tensor first;     // [rows, hidden] of any one dtype
  Tensor second;    // of the same dtype, or empty
  float multiplier = 1.0f;
};
// residual += multiplier * (first + second).
OperationPtr residual_add(std::string name, const ResidualAddSpec& spec);

// out[i] = in[logit_rows[i]]: from all rows of the step to those whose logits are wanted. float32.
OperationPtr gather_logit_rows(std::string name, const Tensor& in, const Tensor& out);

// out[r] = StepBatch::hidden[r], float32: what a drafter reads of the model's rows. Before any operation that
// writes what the pointers may lead to.
OperationPtr load_hidden(std::string name, const Tensor& out);

// streams[r, s * cols + c] += row[r, c] for each stream s; float32. row: [rows, cols].
OperationPtr add_to_streams(std::string name, const Tensor& streams, const Tensor& row);

// out[r, 0] = in[r] . weights, added up in float64: a head of one value a row. float32.
OperationPtr row_dot(std::string name, const Tensor& in, std::span<const float> weights, const Tensor& out);

// x[r, :] += parts one behind the other, from the first column on; float32 in place. The parts outlive the
// program and cover at most a row.
OperationPtr add_bias(std::string name, const Tensor& x, std::vector<std::span<const float>> parts);

// x[r, column .. column + cols) brought to [-bound, bound]; float32 in place.
OperationPtr clamp(std::string name, const Tensor& x, uint32_t column, uint32_t cols, float bound);

// x /= divisor, float32 in place.
OperationPtr divide(std::string name, const Tensor& x, float divisor);

}  // namespace tandem
