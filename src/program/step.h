// A step: the rows that one lane computes at once, and what an operation sees while it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/dtype.h"
#include "kernels/kernel_args.h"
#include "kernels/kernel_table.h"
#include "moe/ffn_port.h"

namespace tandem {

// The rows of one step. Everything it points to belongs to the caller and stays unchanged until the step has
// ended. Rows of one sequence stand next to each other, in order of position; the cache blocks that their
// tables name exist.
struct StepBatch {
  StepId step = 0;
  RowClass row_class = RowClass::decode;
  std::span<const int32_t> token_ids;  // [rows]
  std::span<const AttentionRow> rows;  // [rows]: with the tables of state group 0
  // [groups][rows]: the same positions with the tables of each state group, `rows` among them. May be empty
  // where the model has one group.
  std::span<const std::span<const AttentionRow>> group_rows;
  std::span<const uint32_t> logit_rows;  // rows whose logits are wanted, in the order of the result
  // Of programs that read hidden rows (Program::reads_hidden): where each row's lies, float32, e.g. in the
  // lane that computed it. Read once, at the beginning of the step.
  std::span<const float* const> hidden;  // [rows]
  // Of programs that read them (Program::reads_key_ranges): the positions of the window that each row sees.
  std::span<const KeyRange> key_ranges;  // [rows]
  Instant deadline = Instant::max();     // of each exchange with the experts
  uint32_t program = 0;                  // FfnRequest::program of every exchange

  std::span<const AttentionRow> rows_of(uint32_t group) const {
    return group == 0 ? rows : group_rows[group];
  }
};

// What the rows of a draft block of `rows` rows see behind `length` computed tokens: `window` tokens before
// the block, and all of it.
inline KeyRange block_range(uint32_t length, uint32_t rows, uint32_t window) {
  return {length < window ? 0 : length - window, length + rows};
}

// Which number of rows a tensor has in a step.
enum class TensorRows : uint8_t { step, logits };

// A place in a lane's buffers, planned when the program was built: [rows, cols], contiguous.
struct Tensor {
  size_t offset = 0;  // bytes
  uint32_t cols = 0;
  DType dtype = DType::none;
  TensorRows rows = TensorRows::step;

  size_t row_bytes() const { return dtype_bytes(dtype, cols); }
  bool empty() const { return dtype == DType::none; }
};

// The request that a lane has with the experts. At most one: a layer needs its reply before the next layer
// starts.
struct FfnExchange {
  enum class State : uint8_t { idle, submitted, completed };
  State state = State::idle;
  Ticket ticket = 0;
  Status status;  // of the completed request
  Instant submitted;
};

// Sums over a step, for metrics. `waited`: this lane could not go on; another lane may have run meanwhile.
struct StepStats {
  Duration elapsed{};  // from start to the last operation
  Duration waited{};
  Duration busy{};        // inside Executor::advance
  Duration host{};        // of busy, what was not computing (base/region_time.h)
  uint64_t reply_ns = 0;  // of the port's I/O thread, for the replies
  uint32_t submits = 0;
  uint32_t blocked_submits = 0;  // submits that found no credit and were tried again
  // As measured here from submit to completion, and what the far side said of it. Microseconds.
  uint64_t round_trip_us = 0, queue_us = 0, compute_us = 0, exchange_us = 0, residence_us = 0;
};

struct StepContext {
  KernelRunner& kernels;
  FfnPort& port;
  const StepBatch& batch;
  std::byte* buffers;  // the lane's
  LaneId lane;
  uint32_t capacity;
  FfnExchange& exchange;
  StepStats& stats;

  uint32_t rows(TensorRows which = TensorRows::step) const {
    return static_cast<uint32_t>(which == TensorRows::step ? batch.rows.size() : batch.logit_rows.size());
  }
  uint32_t rows(const Tensor& tensor) const { return rows(tensor.rows); }

  template <class T>
  T* data(const Tensor& tensor, uint32_t column = 0) const {
    return reinterpret_cast<T*>(buffers + tensor.offset) + column;
  }
  ActivationView view(const Tensor& tensor, uint32_t column = 0) const {
    return {tensor.dtype, buffers + tensor.offset + dtype_bytes(tensor.dtype, column), tensor.cols};
  }
  // The same of int8 rows with their scales; plain rows when `scales` is empty.
  ActivationView view(const Tensor& tensor, uint32_t column, const Tensor& scales) const {
    ActivationView rows = view(tensor, column);
    if (scales.empty()) return rows;
    rows.format = ActivationFormat::int8;
    rows.scales = buffers + scales.offset;
    rows.scale_stride = scales.cols;
    return rows;
  }
  ActivationOut out(const Tensor& tensor, uint32_t column = 0) const {
    return {tensor.dtype, buffers + tensor.offset + dtype_bytes(tensor.dtype, column), tensor.cols};
  }
  // The rows of this step as bytes.
  Buffer bytes(const Tensor& tensor) const {
    return {buffers + tensor.offset, tensor.row_bytes() * rows(tensor), MemorySpace::host};
  }
};

}  // namespace tandem
