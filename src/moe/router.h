// Router: from router logits to the final routing of each row: which experts, with which weights
// (renormalised and scaled, once, here). Pure functions; used by whichever side holds the gate.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "moe/router_config.h"

namespace tandem {

// Scores experts and selects the best `top_k`, best first; equal scores go to the lower id.
//   logits  [rows, num_experts] float32
//   bias    [num_experts] or empty: added for the selection only
//   ids     [rows, top_k] out
//   weights [rows, top_k] out, finite
// Formulas: DeepSeek-V3 (sigmoid, bias, group score = sum of the two best, dropped groups never selected),
// DeepSeek-V2 (softmax, group score = best), Qwen3-MoE (softmax, renormalised), Mixtral (softmax over the
// selected logits), DeepSeek-V4 (square root of softplus, bias, renormalised).
void route(const RouterConfig& config, std::span<const float> logits, std::span<const float> bias,
           uint32_t rows, std::span<int32_t> ids, std::span<float> weights);

// The same where the experts follow from the token: row r takes `table[tokens[r], :]`, with the weights that
// its scores give to those. An expert that a row of the table names twice is taken twice, with its weight
// each time. The bias has no part in it.
//   tokens  [rows], in [0, table rows)
//   table   [vocab, top_k], in [0, num_experts)
void route_by_token(const RouterConfig& config, std::span<const float> logits,
                    std::span<const int32_t> tokens, std::span<const int32_t> table, uint32_t rows,
                    std::span<int32_t> ids, std::span<float> weights);

// For benchmarks only: a routing that ignores the scores. Rows take experts in turn, `top_k` each, from
// `first` on and around, with equal weights that sum to the scaling factor: every expert gets the same share
// of any run of rows. Returns the `first` of the rows that follow. ids and weights as for `route`.
uint32_t route_balanced(const RouterConfig& config, uint32_t first, uint32_t rows, std::span<int32_t> ids,
                        std::span<float> weights);

// Refuses a configuration that `route` could not run, naming the key and the value.
Status validate_router_config(const RouterConfig& config);

// Rows whose weights are all 0: nobody's work, unless the routing is one rank's part of it.
enum class EmptyRows : uint8_t { refused, allowed };

// Checks a routing that came from elsewhere: ids in [0, num_experts), weights finite, rows not empty.
Status validate_routing(uint32_t num_experts, uint32_t top_k, std::span<const int32_t> ids,
                        std::span<const float> weights, EmptyRows empty_rows = EmptyRows::refused);

}  // namespace tandem
