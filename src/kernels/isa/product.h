// The inner product: rows of activations times one group of panels. All matrix kernels stand on it.
//
// Every output has one accumulator that runs over the steps in order, whatever tile it is computed in, and
// that goes through memory between blocks of steps without a change. So its bits depend on the weight and its
// row alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/isa/isa_namespace.h"
#include "kernels/packed_layout.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// Rows of one task at most: their accumulators (64 columns) take 48 KiB of scratch, and the group of panels,
// which comes from memory once a task, is used often enough to cost nothing.
inline constexpr uint32_t kTaskRows = 192;
// Steps of one block when there is more than one tile of rows: four panels take 128 KiB, which stays in L2
// with those of the next block, fetched while the tiles of this one run. (Measured, 64 rows, Zen 4: 93 % of
// the dot peak; with half as many, and so twice as many turns of the sums through memory, 90 %.) Nobody
// fetched the first block, so it is short, and a block is no more than four times the one before, or its
// tiles could not fetch so much.
inline constexpr uint32_t kBlockSteps = 512;
inline constexpr uint32_t kFirstBlockSteps = 64;
// A few tiles take about as long as their weights from memory. During the last block of a task nothing is
// fetched, so that it should be short: 8 rows run at 187 GFLOP/s a thread with blocks of 128 steps and at 167
// with 192, 16 rows at 208 with 256 and at 203 with 128, 20 rows at 211 with 512 and at 201 with 128.
TANDEM_INLINE uint32_t most_steps_of(uint32_t tiles) {
  return tiles < 4 ? 32u << tiles : kBlockSteps;
}
static_assert(32u << 4 == kBlockSteps);

struct Bf16Product {
  using Activation = uint16_t;
  static constexpr uint32_t kColumns = 2;
  static constexpr int kAccumulators = kBf16Accumulators;
  using Weights = Pairs;
  TANDEM_INLINE static Weights weights(const std::byte* line) { return load_pairs(line); }
  TANDEM_INLINE static auto activation(const uint16_t* p) {
    uint32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return broadcast_pair(pair);
  }
  TANDEM_INLINE static auto last_activation(const uint16_t* p) { return broadcast_pair(*p); }
  template <class A>
  TANDEM_INLINE static Vec dot(Vec sum, const Weights& w, const A& x) {
    return dot_pairs(sum, w, x);
  }
};

struct F32Product {
  using Activation = float;
  static constexpr uint32_t kColumns = 1;
  static constexpr int kAccumulators = kF32Accumulators;
  using Weights = Vec;
  TANDEM_INLINE static Weights weights(const std::byte* line) {
    return load(reinterpret_cast<const float*>(line));
  }
  TANDEM_INLINE static Vec activation(const float* p) { return set1(*p); }
  TANDEM_INLINE static Vec last_activation(const float* p) { return set1(*p); }
  TANDEM_INLINE static Vec dot(Vec sum, Vec w, Vec x) { return fma(w, x, sum); }
};

// How far ahead of its use a line is asked for when weights stream from memory. Measured on Zen 4, one
// thread, into L2: one row reads at 97 to 100 % of the plain read rate with 1 KiB, at 98 % with 512 bytes;
// the slower lines are used, the shorter it should be, or the CPU's own prefetchers lose track: three rows
// read 28 GB/s with 512 bytes and 25 with 1 KiB, six 27 and 25 (and 15 with 2 KiB). Into L1 is slower: its
// miss buffers are few.
TANDEM_INLINE size_t prefetch_bytes(uint32_t rows) {
  return rows <= 2 ? 1024 : 512;
}

// What a tile asks memory for while it multiplies: the lines that it needs soon, or its share of what the
// next tiles need. At each step, for panel p, the line at `at + p * gap`; then `at` moves on by `step`.
struct Ahead {
  const std::byte* at = nullptr;
  size_t step = 0, gap = 0;  // bytes

  // A tile that reads lines from memory itself.
  TANDEM_INLINE static Ahead streaming(const std::byte* line, size_t line_stride, size_t distance) {
    return {line + distance, line_stride, kLineBytes};
  }
  // `bytes` from `at` spread over `steps` steps of `panels` panels each, as far as they reach.
  TANDEM_INLINE static Ahead spread(const std::byte* at, size_t bytes, size_t steps, uint32_t panels) {
    if (steps == 0) return {at, 0, 0};
    size_t gap = (bytes + steps * panels - 1) / (steps * panels);
    if (gap > kLineBytes) gap = kLineBytes;
    return {at, gap * panels, gap};
  }
  TANDEM_INLINE void request(int panel) const { prefetch(at + static_cast<size_t>(panel) * gap); }
};

struct TileArgs {
  const std::byte* line = nullptr;  // first panel of the tile at the first step
  size_t line_stride = 0;           // bytes between steps
  uint32_t steps = 0;               // whole steps
  bool odd_step = false;            // one more step with a single column
  bool resume = false;              // accumulators start from `sums`, else from zero
  float* sums = nullptr;            // [rows][sums_stride]
  size_t sums_stride = 0;           // floats
  Ahead ahead;
  TANDEM_INLINE void skip_panels(uint32_t count) {
    line += count * kLineBytes;
    ahead.at += count * ahead.gap;
    sums += count * kPanelRows;
  }
};

// Rows x Panels accumulators in registers.
template <class Product, int Rows, int Panels>
void tile(const TileArgs& args, const typename Product::Activation* const* rows, size_t column) {
  Vec sums[Rows][Panels];
  const typename Product::Activation* x[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    x[r] = rows[r] + column;
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      sums[r][p] = args.resume ? load(args.sums + r * args.sums_stride + p * kPanelRows) : zero();
    }
  }
  const std::byte* line = args.line;
  const size_t stride = args.line_stride;
  const uint32_t steps = args.steps;
  Ahead ahead = args.ahead;
  for (uint32_t step = 0; step < steps; ++step, line += stride, ahead.at += ahead.step) {
    typename Product::Weights w[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      w[p] = Product::weights(line + p * kLineBytes);
      ahead.request(p);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const auto a = Product::activation(x[r] + size_t{step} * Product::kColumns);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sums[r][p] = Product::dot(sums[r][p], w[p], a);
    }
  }
  if (args.odd_step) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const auto a = Product::last_activation(x[r] + size_t{steps} * Product::kColumns);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        sums[r][p] = Product::dot(sums[r][p], Product::weights(line + p * kLineBytes), a);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) store(args.sums + r * args.sums_stride + p * kPanelRows, sums[r][p]);
  }
}

template <class Product>
struct PackedTile {
  using Activation = typename Product::Activation;
  using Args = TileArgs;
  static constexpr int kAccumulators = Product::kAccumulators;
  template <int Rows, int Panels>
  TANDEM_INLINE static void run(const TileArgs& args, const Activation* const* rows, size_t column) {
    tile<Product, Rows, Panels>(args, rows, column);
  }
};

// Panels that go with `rows` rows: as many as the accumulators allow.
constexpr int tile_panels(int accumulators, int rows) {
  const int panels = accumulators / rows;
  return panels >= 4 ? 4 : panels >= 2 ? 2 : 1;
}

// All panels of a group for Rows rows.
template <class Tile, int Rows>
void tile_row(typename Tile::Args args, uint32_t panels, const typename Tile::Activation* const* rows,
              size_t column) {
  constexpr int kMost = tile_panels(Tile::kAccumulators, Rows);
  for (uint32_t p = 0; p < panels;) {
    const uint32_t left = panels - p;
    uint32_t done = 1;
    if (kMost >= 4 && left >= 4) {
      Tile::template run<Rows, kMost >= 4 ? 4 : 1>(args, rows, column);
      done = 4;
    } else if (kMost >= 4 && left == 3) {
      Tile::template run<Rows, kMost >= 4 ? 3 : 1>(args, rows, column);
      done = 3;
    } else if (kMost >= 2 && left >= 2) {
      Tile::template run<Rows, kMost >= 2 ? 2 : 1>(args, rows, column);
      done = 2;
    } else {
      Tile::template run<Rows, 1>(args, rows, column);
    }
    p += done;
    args.skip_panels(done);
  }
}

// The same for `count` rows, 1 to kMost.
template <class Tile, int kMost = kTileRows>
TANDEM_INLINE void run_tile_row(const typename Tile::Args& args, uint32_t panels,
                                const typename Tile::Activation* const* rows, uint32_t count, size_t column) {
  static_assert(kMost <= 8);
  using Fn = void (*)(typename Tile::Args, uint32_t, const typename Tile::Activation* const*, size_t);
  static constexpr Fn kTileRow[8] = {
      tile_row<Tile, 1>,
      tile_row<Tile, 2>,
      tile_row<Tile, (kMost >= 3 ? 3 : 1)>,
      tile_row<Tile, (kMost >= 4 ? 4 : 1)>,
      tile_row<Tile, (kMost >= 5 ? 5 : 1)>,
      tile_row<Tile, (kMost >= 6 ? 6 : 1)>,
      tile_row<Tile, (kMost >= 7 ? 7 : 1)>,
      tile_row<Tile, (kMost >= 8 ? 8 : 1)>,
  };
  kTileRow[count - 1](args, panels, rows, column);
}

// Columns [begin, end) of a weight; `begin` is the first of a step.
struct ColumnRange {
  uint32_t begin, end;
};

// The weights of a task, one group after another.
struct WeightStream {
  size_t fetched = 0;    // bytes of the group at hand that were asked for while the one before was multiplied
  size_t following = 0;  // bytes after the group that the task reads next
};

// sums[r, 16 * panel + lane] = columns of the weights of group `group` times those of rows[r], for r < count
// <= kTaskRows. sums: [count, 16 * panels in the group]. `stream.fetched` becomes that of the next group.
template <class Product>
void multiply_group(const PackedLayout& layout, const std::byte* weight, uint32_t group, ColumnRange columns,
                    const typename Product::Activation* const* rows, uint32_t count, float* sums,
                    WeightStream& stream) {
  const uint32_t panels = layout.panels_in_group(group);
  const uint32_t first_step = columns.begin / Product::kColumns;
  const uint32_t whole_steps = (columns.end - columns.begin) / Product::kColumns;
  const bool odd = (columns.end - columns.begin) % Product::kColumns != 0;
  const uint32_t tiles = (count + kTileRows - 1) / kTileRows;

  TileArgs args;
  args.line_stride = panels * kLineBytes;
  args.sums_stride = size_t{panels} * kPanelRows;
  const uint32_t most_steps = most_steps_of(tiles);
  uint32_t block = whole_steps;
  if (tiles != 1) {
    // What was fetched with the group before may be one long block: eight rows of 1024 columns then reach 186
    // GFLOP/s a thread instead of 171.
    const size_t steps = stream.fetched / args.line_stride;
    block = steps <= kFirstBlockSteps ? kFirstBlockSteps
            : steps < most_steps      ? static_cast<uint32_t>(steps)
                                      : most_steps;
  }
  uint32_t step = 0;
  do {
    args.line = weight + layout.group_offset(group) + size_t{first_step + step} * args.line_stride;
    args.steps = whole_steps - step < block ? whole_steps - step : block;
    args.odd_step = odd && step + args.steps == whole_steps;
    args.resume = step != 0;
    if (tiles == 1) {
      args.ahead = Ahead::streaming(args.line, args.line_stride, prefetch_bytes(count));
    } else {
      block = block * 4 < most_steps ? block * 4 : most_steps;
      const size_t rest = (whole_steps - step - args.steps) * args.line_stride;
      const size_t left = rest + stream.following;
      const size_t asked = left < block * args.line_stride ? left : block * args.line_stride;
      args.ahead =
          Ahead::spread(args.line + args.steps * args.line_stride, asked, size_t{args.steps} * tiles, panels);
      stream.fetched = asked > rest ? asked - rest : 0;
    }
    uint32_t row = 0;
    for (uint32_t t = 0; t < tiles; ++t) {
      // Tiles of nearly equal height: a tile of one row would run at a fraction of the speed.
      const uint32_t height = (count - row + (tiles - t) - 1) / (tiles - t);
      args.sums = sums + row * args.sums_stride;
      run_tile_row<PackedTile<Product>>(args, panels, rows + row, height,
                                        columns.begin + size_t{step} * Product::kColumns);
      if (tiles != 1) args.ahead.at += args.steps * args.ahead.step;
      row += height;
    }
    step += args.steps;
  } while (step < whole_steps);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
