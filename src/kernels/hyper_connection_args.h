// Arguments of the kernels of hyper-connections: a token's residual is n streams; before a block they are
// summed into one row, and afterwards the block's result is spread over them while they are mixed with each
// other. The coefficients depend on the streams themselves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_args.h"

namespace tandem {

inline constexpr uint32_t kMostStreams = 8;

// out[r, o] = (weights[o] . streams[r]) * rsqrt(mean(streams[r]^2) + epsilon): the streams of a row as one
// vector, RMS-normed without a weight.
struct ConnectionMixArgs {
  const float* streams = nullptr;  // [rows, cols], cols = streams * hidden
  const float* weights = nullptr;  // [outs, cols]
  float* out = nullptr;            // [rows, outs]
  uint32_t rows = 0, cols = 0, outs = 0;
  float epsilon = 1e-6f;
};

// x[r] = sum_i pre_i * stream_i, and what spreads the block's result afterwards, from a row of mixes m:
//   pre_i  = sigmoid(m_i * scale[0] + base_i) + epsilon
//   post_j = 2 * sigmoid(m_(n+j) * scale[1] + base_(n+j))
//   C      = softmax over j of m_(2n+i*n+j) * scale[2] + base_(2n+i*n+j), plus epsilon; its columns and then
//            (iterations - 1) times its rows and its columns are divided by their sums plus epsilon
// Without `connection` (the head) there is pre alone.
struct ConnectionCollapseArgs {
  const float* streams = nullptr;                  // [rows, n, hidden]
  const float* mixes = nullptr;                    // [rows, n * (2 + n)]; of the head: [rows, n]
  const float* base = nullptr;                     // the same columns
  const float* scale = nullptr;                    // [3]; of the head: [1]
  float* x = nullptr;                              // [rows, hidden]
  float* connection = nullptr;                     // [rows, n + n * n]: post, then C row by row
  uint32_t rows = 0, hidden = 0, num_streams = 0;  // num_streams <= kMostStreams
  uint32_t iterations = 0;
  float epsilon = 0.0f;
  bool round_to_bf16 = false;  // x, where the compute dtype is bf16
};

// stream_j = post_j * y + sum_i C[i, j] * stream_i, in place. y = first (+ second), as in ResidualAddArgs.
struct ConnectionExpandArgs {
  float* streams = nullptr;           // [rows, n, hidden]
  const float* connection = nullptr;  // [rows, n + n * n]
  DType dtype = DType::f32;           // of first and second: bf16, f32 or f64
  const void* first = nullptr;        // [rows, hidden]
  const void* second = nullptr;       // [rows, hidden] or null
  uint32_t rows = 0, hidden = 0, num_streams = 0;
  bool round_to_bf16 = false;  // the streams, where the compute dtype is bf16
};

}  // namespace tandem
