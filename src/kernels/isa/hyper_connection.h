// Kernels of hyper-connections. Every value depends on its row alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/hyper_connection_args.h"
#include "kernels/isa/elementwise.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/output.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// Rows and outputs of one task of connection_mix: the weights (float32, 1.5 MiB at hidden 4096) are read once
// for four rows, and a single row still makes six tasks of 24 outputs.
inline constexpr uint32_t kMixRows = 4, kMixOuts = 4;

// A sum's order is the same for every Rows and Outs.
template <int Rows, int Outs>
TANDEM_INLINE void mix_tile(const ConnectionMixArgs& args, size_t row, uint32_t out) {
  const float* streams = args.streams + row * args.cols;
  const float* weights = args.weights + size_t{out} * args.cols;
  Vec sums[Rows][Outs], squares[Rows];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    squares[r] = zero();
#pragma GCC unroll 4
    for (int o = 0; o < Outs; ++o) sums[r][o] = zero();
  }
  for (uint32_t i = 0; i < args.cols; i += 16) {
    const uint32_t lanes = lanes_at(i, args.cols);
    Vec w[Outs];
#pragma GCC unroll 4
    for (int o = 0; o < Outs; ++o) w[o] = load_lanes(weights + size_t(o) * args.cols + i, lanes);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Vec x = load_lanes(streams + size_t(r) * args.cols + i, lanes);
      squares[r] = fma(x, x, squares[r]);
#pragma GCC unroll 4
      for (int o = 0; o < Outs; ++o) sums[r][o] = fma(w[o], x, sums[r][o]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    const float mean = reduce_add(squares[r]) / static_cast<float>(args.cols);
    const float factor = 1.0f / __builtin_sqrtf(mean + args.epsilon);
#pragma GCC unroll 4
    for (int o = 0; o < Outs; ++o) {
      args.out[(row + size_t(r)) * args.outs + out + uint32_t(o)] = reduce_add(sums[r][o]) * factor;
    }
  }
}

template <int Rows>
TANDEM_INLINE void mix_outs(const ConnectionMixArgs& args, size_t row, uint32_t out) {
  const uint32_t end = out + kMixOuts < args.outs ? out + kMixOuts : args.outs;
  if (end - out == kMixOuts) {
    mix_tile<Rows, kMixOuts>(args, row, out);
  } else {
    for (; out < end; ++out) mix_tile<Rows, 1>(args, row, out);
  }
}

inline size_t connection_mix_tasks(const ConnectionMixArgs& args) {
  return ((args.rows + kMixRows - 1) / kMixRows) * size_t{(args.outs + kMixOuts - 1) / kMixOuts};
}

inline void connection_mix_run(const ConnectionMixArgs& args, size_t task, std::byte*) {
  const size_t out_tasks = (args.outs + kMixOuts - 1) / kMixOuts;
  const size_t row = task / out_tasks * kMixRows;
  const uint32_t out = static_cast<uint32_t>(task % out_tasks) * kMixOuts;
  if (row + kMixRows <= args.rows) return mix_outs<kMixRows>(args, row, out);
  for (size_t r = row; r < args.rows; ++r) mix_outs<1>(args, r, out);
}

// e^x of n values in place; the list is padded to whole vectors.
TANDEM_INLINE void exp_in_place(float* values, uint32_t n) {
  for (uint32_t i = 0; i < n; i += 16) store(values + i, exp(load(values + i)));
}

// n values become sigmoid(values * scale + base).
TANDEM_INLINE void sigmoid_of(const float* mixes, const float* base, float scale, uint32_t n, float* out) {
  for (uint32_t i = 0; i < 16; ++i) out[i] = 0.0f;
  for (uint32_t i = 0; i < n; ++i) out[i] = -(mixes[i] * scale + base[i]);
  exp_in_place(out, n);
  for (uint32_t i = 0; i < n; ++i) out[i] = 1.0f / (1.0f + out[i]);
}

// The mixing matrix c [n, n], in the caller's padded list.
TANDEM_INLINE void sinkhorn(const ConnectionCollapseArgs& args, const float* mixes, const float* base,
                            float* c) {
  const uint32_t n = args.num_streams;
  const float epsilon = args.epsilon;
  for (uint32_t i = 0; i < n; ++i) {
    float most = -__builtin_inff();
    for (uint32_t j = 0; j < n; ++j) {
      const float value = mixes[i * n + j] * args.scale[2] + base[i * n + j];
      c[i * n + j] = value;
      most = value > most ? value : most;
    }
    for (uint32_t j = 0; j < n; ++j) c[i * n + j] -= most;
  }
  for (uint32_t i = n * n; i < kMostStreams * kMostStreams; ++i) c[i] = 0.0f;
  exp_in_place(c, n * n);
  const auto divide_rows = [&](float add_below, float add_after) {
    for (uint32_t i = 0; i < n; ++i) {
      float sum = 0.0f;
      for (uint32_t j = 0; j < n; ++j) sum += c[i * n + j];
      for (uint32_t j = 0; j < n; ++j) c[i * n + j] = c[i * n + j] / (sum + add_below) + add_after;
    }
  };
  const auto divide_columns = [&] {
    for (uint32_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (uint32_t i = 0; i < n; ++i) sum += c[i * n + j];
      for (uint32_t i = 0; i < n; ++i) c[i * n + j] /= sum + epsilon;
    }
  };
  divide_rows(0.0f, epsilon);
  divide_columns();
  for (uint32_t iteration = 1; iteration < args.iterations; ++iteration) {
    divide_rows(epsilon, 0.0f);
    divide_columns();
  }
}

inline size_t connection_collapse_tasks(const ConnectionCollapseArgs& args) {
  return row_tasks(args.rows, args.hidden * args.num_streams);
}

inline void connection_collapse_run(const ConnectionCollapseArgs& args, size_t task, std::byte*) {
  const uint32_t n = args.num_streams, hidden = args.hidden;
  for_task_rows(args.rows, hidden * n, task, [&](size_t row) {
    const float* mixes = args.mixes + row * (args.connection == nullptr ? n : n * (2 + n));
    alignas(64) float pre[16];
    sigmoid_of(mixes, args.base, args.scale[0], n, pre);
    for (uint32_t i = 0; i < n; ++i) pre[i] += args.epsilon;
    if (args.connection != nullptr) {
      float* connection = args.connection + row * (n + n * n);
      alignas(64) float post[16];
      alignas(64) float c[kMostStreams * kMostStreams];
      sigmoid_of(mixes + n, args.base + n, args.scale[1], n, post);
      sinkhorn(args, mixes + 2 * n, args.base + 2 * n, c);
      for (uint32_t j = 0; j < n; ++j) connection[j] = 2.0f * post[j];
      for (uint32_t i = 0; i < n * n; ++i) connection[n + i] = c[i];
    }
    const float* streams = args.streams + row * n * hidden;
    float* x = args.x + row * hidden;
    for (uint32_t d = 0; d < hidden; d += 16) {
      const uint32_t lanes = lanes_at(d, hidden);
      Vec sum = zero();
      for (uint32_t i = 0; i < n; ++i) {
        sum = fma(set1(pre[i]), load_lanes(streams + size_t{i} * hidden + d, lanes), sum);
      }
      write_lanes(DType::f32, x, d, args.round_to_bf16 ? rounded_to_bf16(sum) : sum, lanes);
    }
  });
}

inline size_t connection_expand_tasks(const ConnectionExpandArgs& args) {
  return row_tasks(args.rows, args.hidden * args.num_streams);
}

// 16 values of the block's result. Two parts are added as residual_add does it.
TANDEM_INLINE Vec block_result(const ConnectionExpandArgs& args, size_t offset, uint32_t lanes) {
  if (args.dtype == DType::f64) {
    const double* first = static_cast<const double*>(args.first) + offset;
    alignas(64) float values[16] = {};
    for (uint32_t i = 0; i < lanes; ++i) {
      const double sum =
          args.second == nullptr ? first[i] : first[i] + static_cast<const double*>(args.second)[offset + i];
      values[i] = static_cast<float>(sum);
    }
    return load(values);
  }
  if (args.dtype == DType::f32) {
    const Vec first = load_lanes(static_cast<const float*>(args.first) + offset, lanes);
    if (args.second == nullptr) return first;
    return add(first, load_lanes(static_cast<const float*>(args.second) + offset, lanes));
  }
  const Vec first = load_bf16_partial(static_cast<const uint16_t*>(args.first) + offset, lanes);
  if (args.second == nullptr) return first;
  return rounded_to_bf16(
      add(first, load_bf16_partial(static_cast<const uint16_t*>(args.second) + offset, lanes)));
}

inline void connection_expand_run(const ConnectionExpandArgs& args, size_t task, std::byte*) {
  const uint32_t n = args.num_streams, hidden = args.hidden;
  for_task_rows(args.rows, hidden * n, task, [&](size_t row) {
    const float* post = args.connection + row * (n + n * n);
    const float* c = post + n;
    float* streams = args.streams + row * n * hidden;
    for (uint32_t d = 0; d < hidden; d += 16) {
      const uint32_t lanes = lanes_at(d, hidden);
      const Vec y = block_result(args, row * hidden + d, lanes);
      Vec old[kMostStreams];
      for (uint32_t i = 0; i < n; ++i) old[i] = load_lanes(streams + size_t{i} * hidden + d, lanes);
      for (uint32_t j = 0; j < n; ++j) {
        Vec sum = mul(set1(post[j]), y);
        for (uint32_t i = 0; i < n; ++i) sum = fma(set1(c[i * n + j]), old[i], sum);
        write_lanes(DType::f32, streams, size_t{j} * hidden + d,
                    args.round_to_bf16 ? rounded_to_bf16(sum) : sum, lanes);
      }
    }
  });
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
