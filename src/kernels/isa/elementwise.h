// Norm, rope, combination of contributions, residual, conversion. One task is a row or a piece of one; every
// value depends on its row alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/output.h"
#include "kernels/kernel_args.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// Elements of one task: about a microsecond of work, and a multiple of 16 so that vectors do not depend on
// the cut.
inline constexpr uint32_t kTaskElements = 16384;

TANDEM_INLINE uint32_t rows_per_task(uint32_t cols) {
  return cols >= kTaskElements ? 1 : kTaskElements / (cols == 0 ? 1 : cols);
}
TANDEM_INLINE size_t row_tasks(size_t rows, uint32_t cols) {
  const uint32_t per_task = rows_per_task(cols);
  return (rows + per_task - 1) / per_task;
}

// Calls body(row) for the rows of one task.
template <class Body>
TANDEM_INLINE void for_task_rows(size_t rows, uint32_t cols, size_t task, const Body& body) {
  const size_t per_task = rows_per_task(cols);
  const size_t begin = task * per_task;
  const size_t end = begin + per_task < rows ? begin + per_task : rows;
  for (size_t row = begin; row < end; ++row) body(row);
}

inline size_t rms_norm_tasks(const RmsNormArgs& args) {
  return row_tasks(size_t{args.outer} * args.inner, args.cols);
}

inline void rms_norm_run(const RmsNormArgs& args, size_t task, std::byte*) {
  for_task_rows(size_t{args.outer} * args.inner, args.cols, task, [&](size_t row) {
    const size_t outer = row / args.inner, inner = row % args.inner;
    const float* in = args.in + outer * args.in_outer_stride + inner * args.in_inner_stride;
    const size_t out = outer * args.out.row_stride + inner * args.out_inner_stride;
    const uint32_t cols = args.cols;
    Vec sums[4] = {zero(), zero(), zero(), zero()};
    uint32_t i = 0;
    for (; i + 64 <= cols; i += 64) {
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const Vec x = load(in + i + c * 16);
        sums[c] = fma(x, x, sums[c]);
      }
    }
    for (; i < cols; i += 16) {
      const Vec x = load_lanes(in + i, lanes_at(i, cols));
      sums[0] = fma(x, x, sums[0]);
    }
    const float mean =
        reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3]))) / static_cast<float>(cols);
    const Vec factor = set1(1.0f / __builtin_sqrtf(mean + args.epsilon));
    for (i = 0; i < cols; i += 16) {
      const uint32_t lanes = lanes_at(i, cols);
      Vec x = mul(load_lanes(in + i, lanes), factor);
      if (args.weight != nullptr) x = mul(x, load_lanes(args.weight + i, lanes));
      write_lanes(args.out.dtype, args.out.data, out + i, x, lanes);
    }
  });
}

inline size_t rope_tasks(const RopeArgs& args) {
  return row_tasks(args.rows, args.heads * args.rope_dim);
}

inline void rope_run(const RopeArgs& args, size_t task, std::byte*) {
  const uint32_t half = args.rope_dim / 2;
  for_task_rows(args.rows, args.heads * args.rope_dim, task, [&](size_t row) {
    const float* cosine = args.cos_sin + row * args.rope_dim;
    const float* sine = cosine + half;
    for (uint32_t head = 0; head < args.heads; ++head) {
      float* x = args.x + row * args.row_stride + head * args.head_stride;
      if (args.layout == RopeLayout::half_split) {
        for (uint32_t i = 0; i < half; i += 16) {
          const uint32_t lanes = lanes_at(i, half);
          const Vec a = load_lanes(x + i, lanes), b = load_lanes(x + half + i, lanes);
          const Vec c = load_lanes(cosine + i, lanes), along = load_lanes(sine + i, lanes);
          const Vec s = args.inverse ? sub(zero(), along) : along;
          write_lanes(DType::f32, x, i, sub(mul(a, c), mul(b, s)), lanes);
          write_lanes(DType::f32, x, half + i, add(mul(b, c), mul(a, s)), lanes);
        }
      } else {
        for (uint32_t i = 0; i < half; ++i) {
          const float a = x[2 * i], b = x[2 * i + 1], s = args.inverse ? -sine[i] : sine[i];
          x[2 * i] = a * cosine[i] - b * s;
          x[2 * i + 1] = b * cosine[i] + a * s;
        }
      }
    }
  });
}

TANDEM_INLINE void convert_row(const float* in, DType dtype, void* out, size_t offset, uint32_t cols) {
  for (uint32_t i = 0; i < cols; i += 16) {
    const uint32_t lanes = lanes_at(i, cols);
    write_lanes(dtype, out, offset + i, load_lanes(in + i, lanes), lanes);
  }
}

inline size_t convert_tasks(const ConvertArgs& args) {
  return row_tasks(args.rows, args.cols);
}

inline void convert_run(const ConvertArgs& args, size_t task, std::byte*) {
  for_task_rows(args.rows, args.cols, task, [&](size_t row) {
    convert_row(args.in + row * args.in_stride, args.out.dtype, args.out.data, row * args.out.row_stride,
                args.cols);
  });
}

TANDEM_INLINE float widen_bf16(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

// Two bf16 parts of one reply: their sum is rounded to bf16, as combine rounds it where it has both.
TANDEM_INLINE void residual_add_bf16_pair(const ResidualAddArgs& args, float* x, size_t offset) {
  const uint16_t* first = static_cast<const uint16_t*>(args.first) + offset;
  const uint16_t* second = static_cast<const uint16_t*>(args.second) + offset;
  for (uint32_t i = 0; i < args.cols; i += 16) {
    const uint32_t lanes = lanes_at(i, args.cols);
    const Vec sum = add(load_bf16_partial(first + i, lanes), load_bf16_partial(second + i, lanes));
    const Vec scaled = mul(set1(args.multiplier), rounded_to_bf16(sum));
    write_lanes(DType::f32, x, i, add(load_lanes(x + i, lanes), scaled), lanes);
  }
}

inline size_t residual_add_tasks(const ResidualAddArgs& args) {
  return row_tasks(args.rows, args.cols);
}

inline void residual_add_run(const ResidualAddArgs& args, size_t task, std::byte*) {
  for_task_rows(args.rows, args.cols, task, [&](size_t row) {
    const size_t offset = row * args.cols;
    float* x = args.x + offset;
    const auto add_row = [&]<class T, class Widen>(const T* first, const T* second, const Widen& widen) {
      if (second == nullptr) {
        for (uint32_t i = 0; i < args.cols; ++i) {
          x[i] += args.multiplier * static_cast<float>(widen(first[offset + i]));
        }
      } else {
        for (uint32_t i = 0; i < args.cols; ++i) {
          const double sum =
              static_cast<double>(widen(first[offset + i])) + static_cast<double>(widen(second[offset + i]));
          x[i] += args.multiplier * static_cast<float>(sum);
        }
      }
    };
    switch (args.dtype) {
      case DType::f64:
        add_row(static_cast<const double*>(args.first), static_cast<const double*>(args.second),
                [](double value) { return value; });
        break;
      case DType::f32:
        add_row(static_cast<const float*>(args.first), static_cast<const float*>(args.second),
                [](float value) { return value; });
        break;
      default:
        if (args.second != nullptr) {
          residual_add_bf16_pair(args, x, offset);
          break;
        }
        add_row(static_cast<const uint16_t*>(args.first), static_cast<const uint16_t*>(nullptr),
                [](uint16_t bits) { return widen_bf16(bits); });
        break;
    }
  });
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
