// FfnPort: the one boundary between attention and the experts. The lane executor of the attention role calls
// it; every layer meets the experts through it and does not know what stands behind: LocalFfn (same process)
// or RemoteFfn (a connector). One thread calls. No call blocks, and none allocates once warmed up.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/result.h"
#include "kernels/kernel_args.h"

namespace tandem {

class TraceRing;

using LayerIndex = uint16_t;
using LaneId = uint16_t;
using StepId = uint32_t;
using Ticket = uint64_t;

// decode before draft before prefill; profile rows are timed and never change a sequence.
enum class RowClass : uint8_t { decode, draft, prefill, profile };

struct NoRouting {};
struct TokenIds {
  std::span<const int32_t> ids;  // [rows]
};
// Final routing: renormalised and scaled. What FFN consumes when attention routes.
struct RoutingView {
  std::span<const int32_t> ids;    // [rows, top_k]
  std::span<const float> weights;  // [rows, top_k]
  uint32_t top_k = 0;
};
using RoutingRef = std::variant<NoRouting, TokenIds, RoutingView>;

// What both sides of the boundary agree on for the whole run.
struct FfnTraits {
  bool routes = true;               // the gate is behind the port; otherwise requests carry a RoutingView
  bool runs_shared_experts = true;  // the shared experts are behind the port
  bool wants_token_ids = false;     // requests carry TokenIds (rows' token ids travel beside the activation)
  DType activation_dtype = DType::bf16;  // of the values of FfnRequest::in
  // Of FfnRequest::in: plain rows are bf16 or f32. Quantised ones carry their scales; never with `routes`:
  // the gate must see the rows before they are rounded.
  ActivationFormat activation_format = ActivationFormat::plain;
  DType reply_dtype = DType::bf16;  // of FfnRequest::out: bf16, f32, or f64 (deterministic sums)
  SumMode sum_mode = SumMode::plain;
};

struct FfnRequest {
  LayerIndex layer = 0;
  LaneId lane = 0;
  StepId step = 0;
  RowClass row_class = RowClass::decode;
  uint32_t rows = 0,
           capacity = 0;  // rows <= capacity; only `rows` are computed or sent. rows == 0 completes at once
  ActivationView in;      // [rows, hidden]; stays valid until completion
  RoutingRef routing;
  Buffer out;  // [rows, hidden] of reply_dtype, contiguous; the caller's, written until completion
  Event ready;
  Instant deadline = Instant::max();
  // Graph mode: the capture size whose program FFN is to replay; 0: eager.
  uint32_t program = 0;
};

// Durations of one request as the far side saw them. Zero where there is no far side.
struct FfnTimes {
  uint32_t queue_us = 0, compute_us = 0, exchange_us = 0, residence_us = 0;
  // Not of the far side: what this side's I/O thread spent on the replies, in nanoseconds.
  uint64_t reply_ns = 0;
};

// The answer that a request waited for last, of one rank: its times belong together, while FfnTimes of a
// completion are the largest of each kind.
struct LastAnswer {
  uint16_t rank = 0;  // FFN rank
  Instant arrived{};  // here, by this process's clock; unset: when it was polled
  FfnTimes times;
};

struct Completion {
  Ticket ticket = 0;
  Status status;
  FfnTimes times;
  LastAnswer last = {};
};

class FfnPort {
 public:
  virtual ~FfnPort() = default;
  virtual const FfnTraits& traits() const = 0;
  // would_block when out of credits: poll, then try again.
  [[nodiscard]] virtual Result<Ticket> submit(const FfnRequest& request) = 0;
  // Finished requests, in any order; each ticket once. Returns how many were written.
  virtual size_t poll(std::span<Completion> out) = 0;
  // After it returns nobody writes the request's `out`, and no completion for the ticket appears.
  virtual void cancel(Ticket ticket) = 0;
  // A descriptor that becomes readable when `poll` may have something; -1 when completions are always there
  // already.
  virtual int wait_fd() const = 0;
  // For ports that ask several ranks: they record each rank's answer. Before the first submit; the ring
  // outlives the port.
  virtual void trace_to(TraceRing* /*ring*/) {}
  // Why requests cannot be served now, naming the peer; a value when they can.
  virtual Status health() const = 0;
};

}  // namespace tandem
