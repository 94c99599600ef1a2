// MoeBlock: the experts' half of a layer on one rank: route (where the gate is here), run the routed experts
// that the rank holds, run the shared expert (where it is here), and sum. LocalFfn and the FFN worker run
// this same class, so that split and colocated cannot drift apart.
//
// One thread calls. Work runs on the KernelRunner's pool; every row has the same bits whatever rows it is
// computed with. Nothing is allocated in `run`: buffers are sized at creation, larger batches are processed
// in pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/buffer.h"
#include "base/clock.h"
#include "kernels/kernel_table.h"
#include "moe/ffn_port.h"
#include "moe/moe_weights.h"
#include "moe/router_config.h"

namespace tandem {

struct MoeShape {
  uint32_t hidden_size = 0;
  uint32_t moe_intermediate_size = 0;
  uint32_t shared_intermediate_size = 0;  // 0: the model has no shared expert
  RouterConfig router;
  float swiglu_limit = 0.0f;     // bound on the factors of every expert's SwiGLU, shared ones too; 0: none
  uint32_t num_hash_layers = 0;  // layers below this take their experts by token id (hash_experts)
  uint32_t vocab_size = 0;       // with hash layers
  bool gates_shared_expert = false;  // layers have a shared_gate
  float swiglu_alpha = 0.0f;     // above 0: gate * sigmoid(alpha * gate) * (up + 1), with a swiglu_limit
  // Whether a layer's gate looks the experts up by token id.
  bool is_hashed(LayerIndex layer) const { return layer < num_hash_layers; }
};

struct MoeBlockOptions {
  bool routes = true;  // requests carry NoRouting or TokenIds; otherwise RoutingView
  bool runs_shared_experts = true;
  bool balanced_routing = false;  // benchmarks only: where the gate is here, what it says is not followed
  SumMode sum_mode = SumMode::plain;
  DType compute_dtype = DType::bf16;  // bf16 or f32
  // Of the rows that `run` takes. Quantised ones were rounded before they came, once. int8 weights take int8
  // rows as they are; other weights take bf16 or f32, so that rows are brought to the compute dtype as they
  // are loaded. They are never rounded to eight bits again: int8 weights do not go with fp8 or mxfp8 rows.
  // Not with `routes`: the router must see the rows before they are rounded.
  ActivationFormat activation_format = ActivationFormat::plain;
  DType reply_dtype = DType::bf16;  // f64 when deterministic
  // Buffers: a larger batch is processed a part of its rows at a time.
  size_t scratch_bytes = size_t{128} << 20;
  // What one piece of a request with `between` takes, as measured so far: what a decode group waits for.
  Duration piece_limit = std::chrono::milliseconds(1);
};

struct MoeRequest {
  LayerIndex layer = 0;
  uint32_t rows = 0;
  ActivationView in;  // [rows, hidden] in the activation format
  RoutingRef routing;
  Buffer out;  // [rows, hidden] of the reply dtype, contiguous
  // A part of what rows need: the routing came along wherever the gate is, slots of other ranks weigh 0, and
  // a row may have no slot here at all.
  bool partial = false;
  // [rows], of a part: 1 where this rank adds the row's shared experts; empty: nowhere. Ignored where this
  // block runs none.
  std::span<const uint8_t> shared_rows = {};
  // Called between pieces of the routed experts' work: some experts, or some rows of one, in a time near
  // piece_limit. Bits do not depend on it. It must not call this block. Null: all at once.
  const std::function<void()>* between = nullptr;
};

struct MoeStats {
  uint64_t calls = 0, rows = 0, expert_rows = 0, experts_read = 0;
  uint64_t bytes_read = 0;  // weights of routed and shared experts that were streamed
};

// How often this rank routed, and how long that took: two readings of the clock a call.
struct RouterTimes {
  uint64_t calls = 0, nanoseconds = 0;
};

class MoeBlock {
 public:
  // `layers` [num_layers]: index = layer of the model; entries of dense layers are never asked for. Both
  // `layers` and `runner` outlive the block. Refused when a weight that the options need is not there, or a
  // table of expert ids does not fit the model.
  static Result<std::unique_ptr<MoeBlock>> create(const MoeShape& shape,
                                                  std::span<const MoeLayerWeights* const> layers,
                                                  const MoeBlockOptions& options, KernelRunner& runner);
  ~MoeBlock();

  const MoeShape& shape() const;
  const MoeBlockOptions& options() const;
  const MoeStats& stats() const;
  RouterTimes router_times() const;  // any thread

  // invalid_argument: a routing of the wrong kind, an id out of range, weights that are not finite or (but in
  // a part) all zero; token ids that are missing in a hash layer. out_of_range: a token id outside the
  // vocabulary.
  Status run(const MoeRequest& request);

  // The two parts that attention runs itself when they are placed there. Same code as inside `run`. `in`:
  // plain rows of the compute dtype. `tokens` [rows]: the rows' token ids; other layers than hash layers do
  // without. Errors as of `run`.
  Status route_rows(LayerIndex layer, uint32_t rows, ActivationView in, std::span<int32_t> ids,
                    std::span<float> weights, std::span<const int32_t> tokens = {});
  // out [rows, hidden] of the reply dtype.
  Status run_shared(LayerIndex layer, uint32_t rows, ActivationView in, Buffer out);

 private:
  struct Impl;
  explicit MoeBlock(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
