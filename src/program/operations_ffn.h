// Operations of a layer's second half: the dense MLP, and for MoE layers what attention does around the
// exchange with the experts. Between `submit` and `collect` stand the operations that overlap the exchange.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moe/ffn_port.h"
#include "moe/moe_block.h"
#include "moe/moe_weights.h"
#include "program/operation.h"
#include "program/step.h"

namespace tandem {

struct DenseMlpSpec {
  const MlpWeights* weights = nullptr;
  std::shared_ptr<const std::vector<uint32_t>> identity_rows;  // ProgramBuilder::identity_rows
  Tensor in;                                                   // compute dtype [rows, hidden]
  Tensor intermediate;                                         // compute dtype [rows, intermediate]
  Tensor out;                                                  // float32 [rows, hidden]
  // int8 weights: `in`, and `intermediate` as `dense_down` reads it, are int8 with these (append_dense_mlp).
  Tensor in_scales = {};            // float32 [rows, 1]
  Tensor intermediate_scales = {};  // float32 [rows, blocks of scale_block_cols]
  uint32_t scale_block_cols = 0;
};
// intermediate = silu(gate in) * up in; out = down intermediate: the grouped expert product with one group of
// all rows.
OperationPtr dense_gate_up(std::string name, const DenseMlpSpec& spec);
OperationPtr dense_down(std::string name, const DenseMlpSpec& spec);

// The gate on attention; it is given the rows' token ids. ids: int32 [rows, top_k]; weights: float32 [rows,
// top_k]. `block` outlives the program.
OperationPtr route(std::string name, MoeBlock& block, LayerIndex layer, const Tensor& in, const Tensor& ids,
                   const Tensor& weights);

// The shared experts on attention. out: the reply dtype [rows, hidden].
OperationPtr shared_experts(std::string name, MoeBlock& block, LayerIndex layer, const Tensor& in,
                            const Tensor& out);

// Columns [in_column, in_column + cols of `values`) of rows, rounded once: as they will travel, or as int8
// weights take them. scales: [rows, scale_cols], or with block_cols [rows, blocks].
struct QuantizeSpec {
  ActivationFormat format = ActivationFormat::plain;
  Tensor in;  // compute dtype
  uint32_t in_column = 0;
  Tensor values, scales;
  uint32_t block_cols = 0;  // QuantizeArgs::block_cols
};
OperationPtr quantize(std::string name, const QuantizeSpec& spec);

struct SubmitSpec {
  LayerIndex layer = 0;
  Tensor in;  // [rows, hidden] of the activation dtype
  ActivationFormat format = ActivationFormat::plain;
  Tensor scales = {};            // of `quantize`; empty when the format is plain
  Tensor ids, weights;           // of `route`; empty when the gate is behind the port
  bool sends_token_ids = false;  // beside the activation; never together with a routing
  Tensor out;                    // [rows, hidden] of the reply dtype
};
OperationPtr submit(std::string name, const SubmitSpec& spec);

// Waits for the reply of the request in work.
OperationPtr collect(std::string name);

}  // namespace tandem
