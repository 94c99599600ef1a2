// ExpertRunner: rows and their final routing -> one float32 row for each (row, slot), through the grouped
// kernels; also plain MLPs (shared experts, dense layers), which are one group of all rows. The only code
// that runs an MLP. One thread. Buffers are sized at creation for `max_rows`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/clock.h"
#include "kernels/kernel_table.h"
#include "moe/ffn_port.h"
#include "moe/moe_weights.h"

namespace tandem {

// Rows of one expert that are never cut into two pieces: reading the weights costs more than so many rows.
inline constexpr uint32_t kPieceRows = 64;

class ExpertRunner {
 public:
  struct Sizes {
    uint32_t hidden_size = 0;
    uint32_t intermediate_size = 0;  // the widest MLP that it will run
    uint32_t num_experts = 0;
    uint32_t top_k = 0;  // 0: plain MLPs only
    uint32_t max_rows = 0;
    DType compute_dtype = DType::bf16;
    // Intermediate rows of one contribution of deterministic sums (slice_granule); 0: plain outputs.
    uint32_t contribution_rows = 0;
    Duration piece_limit = std::chrono::milliseconds(1);  // of run_routed with `between`
    float swiglu_limit = 0.0f;                            // above 0: of clamped_swiglu, for every MLP
    float swiglu_alpha = 0.0f;                            // above 0: of scaled_swiglu
    // Of int8 weights, the intermediate columns that share an activation scale: what a slice is a multiple
    // of, so that it has the scales of the whole. 0: no MLP has int8 weights.
    uint32_t int8_block_cols = 0;
  };
  static Result<ExpertRunner> create(const Sizes& sizes, KernelRunner& runner);

  // slot_outputs()[row * top_k + k, :] = expert ids[row, k] applied to row; with contributions
  // exact_slot_outputs(), weighted and on the grid (GroupedDownArgs). Slots of experts that are not in
  // `experts` and slots of weight 0 keep what they held and cost nothing. rows <= max_rows.
  struct Ran {
    uint32_t experts = 0;  // whose weights were streamed
    uint32_t slots = 0;    // that were computed
    uint64_t bytes = 0;    // of those weights
  };
  // `in`: rows of the compute dtype; where the weights are int8 also int8 rows, which are taken as they are.
  // Others are quantised here, each once, and so is each intermediate row. `between` is called between pieces
  // of about piece_limit, as measured on earlier pieces; at least one group of at most kPieceRows rows is a
  // piece. It must not use this runner.
  Ran run_routed(std::span<const MlpWeights> experts, uint32_t rows, ActivationView in,
                 const RoutingView& routing, const std::function<void()>* between = nullptr);
  // mlp_outputs()[row, :] = mlp applied to row, for rows 0 .. rows - 1, or for the rows that `row_index`
  // names. `gate` [hidden] or empty: times sigmoid(row . gate).
  void run_mlp(const MlpWeights& mlp, uint32_t rows, ActivationView in, std::span<const float> gate = {});
  void run_mlp(const MlpWeights& mlp, std::span<const uint32_t> row_index, ActivationView in,
               std::span<const float> gate = {});

  // [max_rows * top_k, hidden]; one of the two, the other is null.
  const float* slot_outputs() const { return exact() ? nullptr : slot_outputs_.as<float>(); }
  const double* exact_slot_outputs() const { return exact() ? slot_outputs_.as<double>() : nullptr; }
  const float* mlp_outputs() const { return mlp_outputs_.as<float>(); }  // [max_rows, hidden]

  // Bytes that one row of `max_rows` costs.
  static size_t bytes_per_row(const Sizes& sizes);

 private:
  bool int8() const { return sizes_.int8_block_cols != 0; }
  // Rows 0 .. rows - 1, or those that `row_index` names, as the weights take them.
  ActivationView quantized_input(const PackedWeight& weight, uint32_t rows, const uint32_t* row_index,
                                 ActivationView in);
  ActivationView quantized_intermediate(std::span<const ExpertGroup> groups, uint32_t intermediate_size);
  void run_in_pieces(uint32_t intermediate_size, ActivationView in, GroupedDownArgs down,
                     const std::function<void()>& between);
  bool exact() const { return sizes_.contribution_rows != 0; }
  // `down`: where the outputs go.
  void run_groups(std::span<const ExpertGroup> groups, uint32_t intermediate_size, ActivationView in,
                  GroupedDownArgs down);

  Sizes sizes_;
  KernelRunner* runner_ = nullptr;
  OwnedBuffer intermediate_;  // [max_rows * max(top_k, 1), intermediate]
  OwnedBuffer slot_outputs_;  // float32, or float64 with contributions
  // int8 weights: values [max_rows, hidden] and scales [max_rows] of the input, values [slots, intermediate]
  // and scales [slots, blocks] of the intermediate rows.
  OwnedBuffer int8_input_, int8_input_scales_, int8_intermediate_, int8_intermediate_scales_;
  OwnedBuffer mlp_outputs_;
  std::vector<uint32_t> counts_, offsets_;        // [num_experts (+ 1)]
  std::vector<uint32_t> row_index_, slot_index_;  // [max_rows * top_k], grouped by expert
  std::vector<uint32_t> identity_;                // [max_rows]: 0, 1, 2, ...
  std::vector<ExpertGroup> groups_;
  double seconds_per_work_ = 0;  // of pieces so far; 0: none was measured yet
};

}  // namespace tandem
