// The register tiles of gqa.h: scores of queries against the panels of a tile of keys, and sums of its
// values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_shape.h"
#include "kernels/isa/attention_tile.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/product.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// Panels of one tile. A block is smaller than what the processor's prefetchers need to get going, so while
// the keys are used the values are asked for, and while those are used the keys of the next tile.
struct PanelList {
  uint32_t count = 0;
  const std::byte* keys[kTilePanels];
  const std::byte* values[kTilePanels];
  const std::byte* scales[kTilePanels];  // of codes
  uint8_t lanes[kTilePanels];            // tokens that a panel may have
};

// A panel of codes as one of bf16. Of keys a line of codes becomes two columns of pairs of dimensions that
// follow each other, of values a pair of tokens and the next one.
inline void decode_keys(const std::byte* codes, uint32_t columns, std::byte* to) {
  for (uint32_t c = 0; c < columns; ++c)
    decode_line(codes + size_t{c} * kLineBytes, to + size_t{c} * 2 * kLineBytes, kLineBytes);
}
inline void decode_values(const std::byte* codes, uint32_t padded_dim, std::byte* to) {
  const size_t stride = size_t{padded_dim} * 4;  // of a pair of tokens in bf16, of four in codes
  for (uint32_t t = 0; t < kPanelTokens / 4; ++t, codes += stride, to += 2 * stride) {
    for (size_t at = 0; at < stride; at += kLineBytes) decode_line(codes + at, to + at, stride);
  }
}

// Bytes between what is asked for ahead beside a line and beside the next: of codes they are half of it. A
// constant of the tile, so that codes have tiles of their own: as a member it took a register and an add a
// line, and decode over a bf16 cache 3 % from L3.
template <class Keys>
inline constexpr size_t kAheadGap = Keys::kCoded ? kLineBytes / 2 : kLineBytes;

// scores[r, 16 * panel + lane] = query r . key.
struct ScoreArgs {
  const std::byte* const* panels = nullptr;
  const std::byte* const* ahead = nullptr;  // [ahead_count]: other panels, to be asked for meanwhile
  uint32_t ahead_count = 0;
  uint32_t columns = 0;
  float* scores = nullptr;  // [rows, kScoreStride]
  TANDEM_INLINE void skip_panels(uint32_t count) {
    panels += count;
    ahead_count = 0;
    scores += count * kPanelTokens;
  }
};
template <class Keys>
struct ScoreTile {
  using Product = typename Keys::Product;
  using Activation = typename Keys::Element;
  using Args = ScoreArgs;
  static constexpr int kAccumulators = Product::kAccumulators;

  template <int Rows, int Panels>
  static void run(const ScoreArgs& args, const Activation* const* rows, size_t) {
    Vec sums[Rows][Panels];
    const Activation* x[Rows];
    const std::byte* line[Panels];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      x[r] = rows[r];
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) sums[r][p] = zero();
    }
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) line[p] = args.panels[p];
    for (uint32_t column = 0; column < args.columns; ++column) {
      for (uint32_t i = 0; i < args.ahead_count; ++i) prefetch(args.ahead[i] + column * kAheadGap<Keys>);
      typename Product::Weights w[Panels];
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) w[p] = Product::weights(line[p] + size_t{column} * kLineBytes);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const auto a = Product::activation(x[r] + size_t{column} * Keys::kPair);
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) sums[r][p] = Product::dot(sums[r][p], w[p], a);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) store(args.scores + r * kScoreStride + p * 16, sums[r][p]);
    }
  }
};

// sums[r, d] (+)= weights[r, k] * values[k, d] for the places [begin, end) of the tile's panels, from
// dimension 16 * `vector` on.
struct ValueArgs {
  const std::byte* const* panels = nullptr;
  const std::byte* const* ahead = nullptr;    // panels of which the same places are asked for meanwhile:
  uint32_t ahead_first = 0, ahead_count = 0;  // these lines of four,
  uint32_t ahead_panel = 0;                   // from this panel on
  const uint8_t* lanes = nullptr;
  uint32_t begin = 0, end = 0;  // begin: of a panel
  size_t line_stride = 0;       // bytes between pairs of tokens
  size_t offset = 0;            // bytes
  bool resume = false;
  float* sums = nullptr;
  size_t sums_stride = 0;
  TANDEM_INLINE void skip_panels(uint32_t count) {
    offset += count * kLineBytes;
    sums += count * 16;
  }
};
template <class Keys>
struct ValueTile {
  using Product = typename Keys::Product;
  using Activation = typename Keys::Element;
  using Args = ValueArgs;
  static constexpr int kAccumulators = Product::kAccumulators;

  template <int Rows, int Panels>
  static void run(const ValueArgs& args, const Activation* const* rows, size_t) {
    Vec sums[Rows][Panels];
    const Activation* x[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      x[r] = rows[r] + args.begin;
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p)
        sums[r][p] = args.resume ? load(args.sums + r * args.sums_stride + p * 16) : zero();
    }
    const auto step = [&](const std::byte* line, uint32_t place, auto load_line) TANDEM_LAMBDA_INLINE {
      typename Product::Weights w[Panels];
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) w[p] = load_line(line + p * kLineBytes);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const auto a = Product::activation(x[r] + place);
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) sums[r][p] = Product::dot(sums[r][p], w[p], a);
      }
    };
    const auto both = [](const std::byte* p) TANDEM_LAMBDA_INLINE { return Product::weights(p); };
    const auto first = [](const std::byte* p) TANDEM_LAMBDA_INLINE { return Keys::first_of_pairs(p); };
    for (uint32_t place = args.begin; place < args.end; place += kPanelTokens) {
      const uint32_t panel = place / kPanelTokens;
      const uint32_t left = args.end - place;
      const uint32_t tokens = left < args.lanes[panel] ? left : args.lanes[panel];
      const std::byte* line = args.panels[panel] + args.offset;
      if (tokens == kPanelTokens) [[likely]] {
        const uint32_t ahead = panel < args.ahead_panel ? 0 : args.ahead_count;
        const std::byte* next =
            ahead == 0 ? line
                       : args.ahead[panel] + (args.offset / kLineBytes + args.ahead_first) * kAheadGap<Keys>;
        for (uint32_t t = 0; t < kPanelTokens; t += Keys::kPair, line += args.line_stride) {
          for (uint32_t i = 0; i < ahead; ++i) prefetch(next + i * kAheadGap<Keys>);
          next += args.line_stride * kAheadGap<Keys> / kLineBytes;
          step(line, t, both);
        }
      } else {
        uint32_t t = 0;
        for (; t + Keys::kPair <= tokens; t += Keys::kPair, line += args.line_stride) step(line, t, both);
        // The second of the last pair was never written, or is a later row's.
        if (t < tokens) step(line, t, first);
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) x[r] += kPanelTokens;
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) store(args.sums + r * args.sums_stride + p * 16, sums[r][p]);
    }
  }
};

}  // namespace tandem::TANDEM_ISA_NAMESPACE
