// The inner product for int8 weights: rows of int8 activations times one group of panels, with the register
// tiles of product.h.
//
// Numerics. A product of codes is summed in int32, exactly, over the columns of the row that share an
// activation scale. Weights lie as w + 128, so the sum starts from -128 times the sum of the activations.
// Then in float32, each step rounded by itself: the sum, times the activation scale; the blocks of columns
// added in order; at the end, times the weight row's scale. So every instruction set gives the same bits,
// whatever rows are computed together. |sum| stays below 2^31 for up to kInt8MostCols columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/product.h"
#include "kernels/packed_layout.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

inline constexpr uint32_t kInt8StepCols = 4;
// Blocks of one stretch at most: their starts for all rows of a task take 12 KiB.
inline constexpr uint32_t kInt8StretchBlocks = 16;

struct Int8Scratch {
  int32_t starts[kTaskRows * kInt8StretchBlocks];
};

struct Int8Args {
  const std::byte* line = nullptr;  // first panel of the tile at the first step
  size_t line_stride = 0;           // bytes between steps
  // Blocks of columns that share an activation scale; all but the last have `block_steps` steps.
  uint32_t blocks = 1, block_steps = 0;
  uint32_t last_steps = 0;          // whole steps of the last block
  uint32_t tail = 0;                // columns of one more step of it, 0..3
  const int32_t* starts = nullptr;  // [rows][starts_stride]: where a block's sum starts
  size_t starts_stride = 0;
  const float* const* scales = nullptr;  // [rows][blocks]
  bool open = false;                     // `sums` holds the int32 sums of the first block so far
  bool closes = true;                    // the last block ends here; else its int32 sums are left
  bool resume = false;                   // `sums` holds the float32 sums of the blocks before
  const float* row_scales = nullptr;     // [panel][16], at the end of all blocks; else null
  float* sums = nullptr;                 // [rows][sums_stride]
  size_t sums_stride = 0;                // floats
  Ahead ahead;
  TANDEM_INLINE void skip_panels(uint32_t count) {
    line += count * kLineBytes;
    ahead.at += count * ahead.gap;
    sums += count * kPanelRows;
    if (row_scales != nullptr) row_scales += count * kPanelRows;
  }
};

TANDEM_INLINE uint32_t quad_at(const int8_t* p, uint32_t columns) {
  uint32_t four = 0;
  std::memcpy(&four, p, columns);
  return four;
}

struct Int8Tile {
  using Activation = int8_t;
  using Args = Int8Args;
  static constexpr int kAccumulators = kInt8Accumulators;

  template <int Rows, int Panels>
  static void run(const Args& args, const int8_t* const* rows, size_t column) {
    const int8_t* x[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) x[r] = rows[r] + column;
    const std::byte* line = args.line;
    const size_t stride = args.line_stride;
    Ahead ahead = args.ahead;
    for (uint32_t block = 0;; ++block) {
      const bool last = block + 1 == args.blocks;
      IntVec sums[Rows][Panels];
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const IntVec start = set1_int(args.starts[r * args.starts_stride + block]);
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) {
          sums[r][p] = start;
          if (args.open && block == 0)
            sums[r][p] = add_int(start, load_int(args.sums + r * args.sums_stride + p * kPanelRows));
        }
      }
      const uint32_t steps = last ? args.last_steps : args.block_steps;
      for (uint32_t step = 0; step < steps; ++step, line += stride, ahead.at += ahead.step) {
        ByteLine w[Panels];
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) {
          w[p] = load_bytes(line + p * kLineBytes);
          ahead.request(p);
        }
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const ByteQuad a = broadcast_quad(quad_at(x[r] + size_t{step} * kInt8StepCols, kInt8StepCols));
#pragma GCC unroll 4
          for (int p = 0; p < Panels; ++p) sums[r][p] = dot_bytes(sums[r][p], w[p], a);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) x[r] += size_t{steps} * kInt8StepCols;
      if (last && args.tail != 0) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const ByteQuad a = broadcast_quad(quad_at(x[r], args.tail));
#pragma GCC unroll 4
          for (int p = 0; p < Panels; ++p)
            sums[r][p] = dot_bytes(sums[r][p], load_bytes(line + p * kLineBytes), a);
        }
      }
      const bool resume = args.resume || block != 0;
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        float* out = args.sums + r * args.sums_stride;
        if (last && !args.closes) {
#pragma GCC unroll 4
          for (int p = 0; p < Panels; ++p) store_int(out + p * kPanelRows, sums[r][p]);
          continue;
        }
        const Vec scale = set1(args.scales[r][block]);
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) {
          Vec sum = mul(int_to_float(sums[r][p]), scale);
          if (resume) sum = add(load(out + p * kPanelRows), sum);
          if (last && args.row_scales != nullptr) sum = mul(sum, load(args.row_scales + p * kPanelRows));
          store(out + p * kPanelRows, sum);
        }
      }
      if (last) return;
    }
  }
};

// Where the sum of `count` products starts: see above.
TANDEM_INLINE int32_t int8_start(const int8_t* x, uint32_t count) {
  return -128 * (shifted_sum(x, count) - 128 * static_cast<int32_t>(count));
}

// The rows of a task as int8 products take them.
struct Int8Rows {
  const int8_t* values[kTaskRows];
  const float* scales[kTaskRows];
  // Columns that share a scale, counted from the first column of the weight, a multiple of 4; 0: all.
  uint32_t block_cols = 0;
};

// Columns [begin, end) of group `group` times rows: as multiply_group of product.h. `begin` is the first of a
// block.
inline void multiply_int8_group(const PackedLayout& layout, const std::byte* weight, uint32_t group,
                                ColumnRange columns, const Int8Rows& rows, uint32_t count, float* sums,
                                WeightStream& stream, Int8Scratch& scratch) {
  const uint32_t panels = layout.panels_in_group(group);
  const uint32_t width = columns.end - columns.begin;
  const uint32_t block_cols = rows.block_cols == 0 || rows.block_cols > width ? width : rows.block_cols;
  const bool one_block = block_cols == width;
  const uint32_t tiles = (count + kTileRows - 1) / kTileRows;
  const size_t stride = panels * kLineBytes;
  // A stretch is what the tiles run over one after another: part of one block, or whole ones. Steps of the
  // next one, of the lengths of product.h.
  const uint32_t most_steps = most_steps_of(tiles);
  uint32_t stretch = (width + kInt8StepCols - 1) / kInt8StepCols;
  if (tiles != 1) {
    const size_t fetched = stream.fetched / stride;
    stretch = fetched <= kFirstBlockSteps ? kFirstBlockSteps
              : fetched < most_steps      ? static_cast<uint32_t>(fetched)
                                          : most_steps;
  }
  const auto columns_of = [&](uint32_t steps) {
    if (one_block) return steps * kInt8StepCols;
    const uint32_t blocks = steps * kInt8StepCols / block_cols;
    return block_cols * (blocks < 1 ? 1 : blocks > kInt8StretchBlocks ? kInt8StretchBlocks : blocks);
  };

  Int8Args args;
  args.line_stride = stride;
  args.sums_stride = size_t{panels} * kPanelRows;
  args.starts_stride = kInt8StretchBlocks;
  args.block_steps = block_cols / kInt8StepCols;
  const float* scales[kTaskRows];
  const std::byte* lines = weight + layout.lines_offset(group);
  for (uint32_t begin = columns.begin, end; begin < columns.end; begin = end) {
    const uint32_t wanted = columns_of(stretch);
    end = columns.end - begin < wanted ? columns.end : begin + wanted;
    const bool last = end == columns.end;
    args.line = lines + size_t{begin / kInt8StepCols} * stride;
    args.blocks = one_block ? 1 : (end - begin + block_cols - 1) / block_cols;
    const uint32_t last_begin = one_block ? begin : begin + (args.blocks - 1) * block_cols;
    args.last_steps = (end - last_begin) / kInt8StepCols;
    args.tail = (end - last_begin) % kInt8StepCols;
    args.open = one_block && begin != columns.begin;
    args.closes = !one_block || last;
    args.resume = !one_block && begin != columns.begin;
    args.row_scales = last ? reinterpret_cast<const float*>(weight + layout.group_offset(group)) : nullptr;
    const size_t steps = (end - begin) / kInt8StepCols;
    if (tiles == 1) {
      args.ahead = Ahead::streaming(args.line, stride, prefetch_bytes(count));
    } else {
      stretch = stretch * 4 < most_steps ? stretch * 4 : most_steps;
      const size_t rest = (columns.end - end) / kInt8StepCols * stride;
      const size_t left = rest + stream.following;
      const size_t next = columns_of(stretch) / kInt8StepCols * stride;
      const size_t asked = left < next ? left : next;
      args.ahead = Ahead::spread(lines + size_t{end / kInt8StepCols} * stride, asked, steps * tiles, panels);
      stream.fetched = asked > rest ? asked - rest : 0;
    }
    const uint32_t first_block =
        rows.block_cols == 0 ? 0 : (one_block ? columns.begin : begin) / rows.block_cols;
    for (uint32_t r = 0; r < count; ++r) {
      scales[r] = rows.scales[r] + first_block;
      for (uint32_t b = 0; b < args.blocks; ++b) {
        const uint32_t from = begin + b * block_cols;
        const uint32_t to = b + 1 == args.blocks ? end : from + block_cols;
        scratch.starts[r * kInt8StretchBlocks + b] = int8_start(rows.values[r] + from, to - from);
      }
    }
    uint32_t row = 0;
    for (uint32_t t = 0; t < tiles; ++t) {
      const uint32_t height = (count - row + (tiles - t) - 1) / (tiles - t);
      args.sums = sums + row * args.sums_stride;
      args.starts = scratch.starts + row * kInt8StretchBlocks;
      args.scales = scales + row;
      run_tile_row<Int8Tile>(args, panels, rows.values + row, height, begin);
      if (tiles != 1) args.ahead.at += steps * args.ahead.step;
      row += height;
    }
  }
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
