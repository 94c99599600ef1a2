// The inner product for weights in codes (fp8_block, mxfp4, mxfp8): rows of bf16 activations times one group
// of panels, with the same register tiles as product.h.
//
// Numerics. Codes are exact in bfloat16 and are multiplied without their scale; the running sum is kept in
// units of the scale of the block that it is in. From one block to the next it is multiplied by the ratio of
// their scales, at the end by the last scale. With power-of-two scales (every mxfp4, fp8 with e8m0 scales)
// each such multiplication is exact, so the result has the bits of the bf16 kernel on the dequantised weight,
// as long as no intermediate sum leaves the normal numbers of float32. With other scales each block adds two
// roundings: |error| <= (cols + 3 * blocks + 2) * 2^-24 * sum |w x| against the exact product with the exact
// scales, where a bf16 copy would round every weight.
//
// Few rows decode in registers as the line streams by. So do many, each tile again, where the pipes that
// decode are others than those that multiply; elsewhere (kDecodeOnce) a stretch of the group is decoded once
// into scratch, as lines of bf16, and every tile reads those. Both ways do the same operations in the same
// order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa/coded_formats.h"
#include "kernels/isa/decoded_tile.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/product.h"
#include "kernels/packed_layout.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

template <class Code>
struct CodedArgs {
  CodedGroup<Code> group;
  uint32_t panel = 0;       // first panel of the tile
  uint32_t step_begin = 0;  // of the group
  uint32_t steps = 0;       // whole steps
  bool odd_step = false;    // one more step with a single column
  bool resume = false;      // accumulators start from `sums`, in units of the block before, else from zero
  bool last = true;         // multiplies the sums with the last scale; else the steps are whole blocks
  float* sums = nullptr;    // [rows][sums_stride]
  size_t sums_stride = 0;   // floats
  Ahead ahead;              // for each line rather than each step
  size_t ahead_block = 0;   // bytes that it skips at the end of a block
  TANDEM_INLINE void skip_panels(uint32_t count) {
    panel += count;
    ahead.at += count * ahead.gap;
    sums += count * kPanelRows;
  }
};

// Rows x Panels accumulators; every line is decoded here.
template <class Code>
struct CodedTile {
  using Activation = uint16_t;
  using Args = CodedArgs<Code>;
  static constexpr int kAccumulators = kCodedAccumulators<Code::kFormat>, kRows = kCodedRows<Code::kFormat>;

  template <int Rows, int Panels>
  TANDEM_INLINE static void run(const Args& args, const uint16_t* const* rows, size_t column) {
    constexpr uint32_t kBlock = CodeSteps<Code>::kBlock;
    Args rest = args;
    if (args.step_begin % kBlock == 0 && args.steps >= kBlock) {
      const uint32_t blocks = args.steps / kBlock;
      const bool all = args.steps % kBlock == 0 && !args.odd_step;
      whole_blocks<Rows, Panels>(args, blocks, all && args.last, rows, column);
      if (all) return;
      rest.step_begin += blocks * kBlock;
      rest.steps -= blocks * kBlock;
      rest.resume = true;
      column += size_t{2} * blocks * kBlock;
    }
    part_blocks<Rows, Panels>(rest, rows, column);
  }

  // The dots of a line of each panel.
  template <int Rows, int Panels>
  TANDEM_INLINE static void line_dots(Vec (&sums)[Rows][Panels], const std::byte* line, const Ahead& ahead,
                                      const uint16_t* const (&x)[Rows]) {
    Codes codes[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      codes[p] = load_codes(line + p * kLineBytes);
      ahead.request(p);
    }
    const auto dots = [&]<int K>() __attribute__((always_inline)) {
      if constexpr (K < static_cast<int>(CodeSteps<Code>::kLine)) {
        Pairs w[Panels];
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) w[p] = pairs_of(Code::template bits<K>(codes[p]));
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const auto a = Bf16Product::activation(x[r] + 2 * K);
#pragma GCC unroll 4
          for (int p = 0; p < Panels; ++p) sums[r][p] = dot_pairs(sums[r][p], w[p], a);
        }
      }
    };
    dots.template operator()<0>();
    dots.template operator()<1>();
    dots.template operator()<2>();
    dots.template operator()<3>();
  }

  // From the first step, the first of a block, `blocks` blocks: what nearly every weight consists of. `last`:
  // nothing follows, and the sums are multiplied with the last scale.
  template <int Rows, int Panels>
  static void whole_blocks(const Args& args, uint32_t blocks, bool last, const uint16_t* const* rows,
                           size_t column) {
    constexpr uint32_t kLines = CodeSteps<Code>::kBlock / CodeSteps<Code>::kLine;
    constexpr size_t kScaleBytes = Code::kGeometry.scale_bytes;
    Vec sums[Rows][Panels];
    const uint16_t* x[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      x[r] = rows[r] + column;
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p)
        sums[r][p] = args.resume ? load(args.sums + r * args.sums_stride + p * kPanelRows) : zero();
    }
    const size_t stride = args.group.panels * kLineBytes;
    const size_t block_bytes = args.group.panels * kScaleBytes + kLines * stride;
    const std::byte* scales = args.group.scales(args.step_begin / CodeSteps<Code>::kBlock, args.panel);
    const std::byte* line =
        args.group.lines(args.step_begin / CodeSteps<Code>::kBlock, 0) + args.panel * kLineBytes;
    Ahead ahead = args.ahead;
    bool rescale = args.resume;
    for (uint32_t block = 0; block < blocks; ++block) {
      if (rescale) {
        // The unit of the sums becomes this block's scale.
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) {
          const std::byte* to = scales + p * kScaleBytes;
          const Vec ratio = Code::ratio(to - block_bytes, to);
#pragma GCC unroll 16
          for (int r = 0; r < Rows; ++r) sums[r][p] = mul(sums[r][p], ratio);
        }
      }
      rescale = true;
      const std::byte* l = line;
      for (const std::byte* end = line + kLines * stride; l != end; l += stride) {
        line_dots<Rows, Panels>(sums, l, ahead, x);
        ahead.at += ahead.step;
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) x[r] += 2 * CodeSteps<Code>::kLine;
      }
      ahead.at += args.ahead_block;
      scales += block_bytes;
      line += block_bytes;
    }
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const std::byte* scale = scales - block_bytes + p * kScaleBytes;
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        store(args.sums + r * args.sums_stride + p * kPanelRows,
              last ? mul(sums[r][p], Code::scale(scale)) : sums[r][p]);
      }
    }
  }

  // What begins or ends inside a block.
  template <int Rows, int Panels>
  static void part_blocks(const Args& args, const uint16_t* const* rows, size_t column) {
    constexpr uint32_t kLine = CodeSteps<Code>::kLine, kBlock = CodeSteps<Code>::kBlock;
    Vec sums[Rows][Panels];
    const uint16_t* x[Rows];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      Vec ratio = zero();
      if (args.resume) {
        const uint32_t block = args.step_begin / kBlock, panel = args.panel + static_cast<uint32_t>(p);
        ratio = Code::ratio(args.group.scales(block - 1, panel), args.group.scales(block, panel));
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        sums[r][p] =
            args.resume ? mul(load(args.sums + r * args.sums_stride + p * kPanelRows), ratio) : zero();
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) x[r] = rows[r] + column;
    // One step, or the single column of a last one, from a line of codes.
    const auto single = [&](const std::byte* line, uint32_t k, bool whole) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        const Pairs w = pairs_of(bits_at<Code>(load_codes(line + p * kLineBytes), k));
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const auto a = whole ? Bf16Product::activation(x[r]) : Bf16Product::last_activation(x[r]);
          sums[r][p] = dot_pairs(sums[r][p], w, a);
        }
      }
      if (whole) {
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) x[r] += 2;
      }
    };

    const uint32_t end = args.step_begin + args.steps;
    uint32_t step = args.step_begin;
    uint32_t block = step / kBlock;
    const size_t stride = args.group.panels * kLineBytes;
    for (;; ++block) {
      const std::byte* line = args.group.lines(block, step % kBlock / kLine) + args.panel * kLineBytes;
      const uint32_t stop = end < (block + 1) * kBlock ? end : (block + 1) * kBlock;
      for (; step < stop && step % kLine != 0; ++step) {
        single(line, step % kLine, true);
        if ((step + 1) % kLine == 0) line += stride;
      }
      const uint32_t whole_lines = step < stop ? (stop - step) / kLine : 0;
      for (uint32_t l = 0; l < whole_lines; ++l, line += stride) {
        line_dots<Rows, Panels>(sums, line, Ahead::streaming(line, 0, Code::kPrefetchBytes), x);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) x[r] += 2 * kLine;
      }
      step += whole_lines * kLine;
      for (; step < stop; ++step) single(line, step % kLine, true);
      const bool odd = args.odd_step && step == end && step < (block + 1) * kBlock;
      if (odd) single(line, step % kLine, false);
      if (step == end && (odd || !args.odd_step)) break;
        // The unit of the sums becomes the next block's scale.
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        const uint32_t panel = args.panel + static_cast<uint32_t>(p);
        const Vec ratio = Code::ratio(args.group.scales(block, panel), args.group.scales(block + 1, panel));
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) sums[r][p] = mul(sums[r][p], ratio);
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const Vec scale = Code::scale(args.group.scales(block, args.panel + static_cast<uint32_t>(p)));
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r)
        store(args.sums + r * args.sums_stride + p * kPanelRows,
              args.last ? mul(sums[r][p], scale) : sums[r][p]);
    }
  }
};

// Steps [begin, end) of a group as lines of bf16 pairs, [step][panel].
template <class Code>
void decode_steps(const CodedGroup<Code>& group, uint32_t begin, uint32_t end, std::byte* out) {
  constexpr uint32_t kLine = CodeSteps<Code>::kLine, kBlock = CodeSteps<Code>::kBlock;
  const size_t stride = group.panels * kLineBytes;
  for (uint32_t step = begin; step < end;) {
    const std::byte* line = group.lines(step / kBlock, step % kBlock / kLine);
    if (step % kLine != 0 || step + kLine > end) {
      for (uint32_t p = 0; p < group.panels; ++p)
        store_bits(out + p * kLineBytes, bits_at<Code>(load_codes(line + p * kLineBytes), step % kLine));
      out += stride;
      ++step;
      continue;
    }
    for (uint32_t p = 0; p < group.panels; ++p) {
      const Codes codes = load_codes(line + p * kLineBytes);
      std::byte* to = out + p * kLineBytes;
      store_bits(to, Code::template bits<0>(codes));
      store_bits(to + stride, Code::template bits<1>(codes));
      if constexpr (kLine == 4) {
        store_bits(to + 2 * stride, Code::template bits<2>(codes));
        store_bits(to + 3 * stride, Code::template bits<3>(codes));
      }
    }
    out += kLine * stride;
    step += kLine;
  }
}

// Steps of a stretch: whole blocks of either format. Four panels take 64 KiB, which stay in L2 beside the
// activations of the task. (Stretches that fit L1 are slower: 86 % of the dot peak at 64 steps, where 256
// reach 93 %, because the sums go through memory four times as often.)
inline constexpr uint32_t kStretchSteps = 256;

struct StretchScratch {
  alignas(64) std::byte lines[(kStretchSteps + 1) * kGroupPanels * kLineBytes];
  float ratios[kStretchSteps / (kMxfp4Geometry.block_cols / 2) + 1][kGroupPanels][kPanelRows];
  float scales[kGroupPanels][kPanelRows];
};

// Steps between two turns of the sums through memory when tiles decode lines that were fetched before: 16 or
// 32 KiB of codes. A single tile asks for as many lines as it reads, so its blocks are of one length: no more
// than a task can lose at its first one, which nobody fetched.
inline constexpr uint32_t kCodedBlockSteps = 256, kSingleTileSteps = 128;

// Columns [begin, end) of a group times the rows of several tiles, each of which decodes.
template <class Code>
void multiply_decoding(const CodedGroup<Code>& coded, uint32_t begin, ColumnRange columns,
                       const uint16_t* const* rows, uint32_t count, float* sums, WeightStream& stream) {
  constexpr uint32_t kLine = CodeSteps<Code>::kLine, kBlock = CodeSteps<Code>::kBlock;
  const uint32_t width = columns.end - columns.begin, end = begin + width / 2;
  const bool odd = width % 2 != 0;
  const std::byte* group_end = coded.block((end + (odd ? 1 : 0) + kBlock - 1) / kBlock);
  constexpr uint32_t kRows = CodedTile<Code>::kRows;
  const uint32_t tiles = (count + kRows - 1) / kRows;
  CodedArgs<Code> args;
  args.group = coded;
  args.sums_stride = size_t{coded.panels} * kPanelRows;
  const uint32_t most_steps = tiles == 1 ? kSingleTileSteps : kCodedBlockSteps;
  uint32_t block = stream.fetched != 0 || tiles == 1 ? most_steps : kFirstBlockSteps;
  for (uint32_t step = begin;;) {
    const uint32_t stop = step / kBlock * kBlock + block;
    args.last = stop >= end + (odd ? 1 : 0);
    if (!args.last && stop > end) args.last = true;
    args.step_begin = step;
    args.steps = (args.last ? end : stop) - step;
    args.odd_step = args.last && odd;
    args.resume = step != begin;
    const uint32_t next_block = (step + args.steps + kBlock - 1) / kBlock;
    const std::byte* next = coded.block(next_block);
    const size_t rest = static_cast<size_t>(group_end - next), left = rest + stream.following;
    block = block * 4 < most_steps ? block * 4 : most_steps;
    const size_t most = static_cast<size_t>(coded.block(block / kBlock) - coded.block(0));
    const size_t asked = left < most ? left : most;
    const size_t lines = (args.steps + kLine - 1) / kLine;
    args.ahead = Ahead::spread(next, asked, lines * tiles, coded.panels);
    stream.fetched = asked > rest ? asked - rest : 0;
    uint32_t row = 0;
    for (uint32_t t = 0; t < tiles; ++t) {
      const uint32_t height = (count - row + (tiles - t) - 1) / (tiles - t);
      args.sums = sums + row * args.sums_stride;
      run_tile_row<CodedTile<Code>, CodedTile<Code>::kRows>(args, coded.panels, rows + row, height,
                                                            columns.begin + size_t{step - begin} * 2);
      args.ahead.at += lines * args.ahead.step;
      row += height;
    }
    if (args.last) return;
    step = stop;
  }
}

// Rows whose tile takes all panels of a group at once, so that it reads one stream. Two panels at a time skip
// half of the lines, and the CPU's own prefetchers fetch nothing: eight rows of fp8 run at 157 GFLOP/s a
// thread that way, from lines fetched before at 178.
template <class Code>
inline constexpr uint32_t kStreamedRows =
    kDecodeOnce ? kCodedRows<Code::kFormat> : kCodedAccumulators<Code::kFormat> / kGroupPanels;

// Columns [begin, end) of group `group` times rows: as multiply_group of product.h, `scratch` to decode into.
template <class Code>
void multiply_coded_group(const PackedLayout& layout, const std::byte* weight, uint32_t group,
                          ColumnRange columns, const uint16_t* const* rows, uint32_t count, float* sums,
                          WeightStream& stream, StretchScratch& scratch) {
  constexpr uint32_t kBlock = CodeSteps<Code>::kBlock;
  const uint32_t panels = layout.panels_in_group(group);
  const CodedGroup<Code> coded{weight + layout.group_offset(group), panels};
  const uint32_t width = columns.end - columns.begin;
  const uint32_t begin = (layout.col_phase + columns.begin) / 2, end = begin + width / 2;
  const bool odd = width % 2 != 0;
  const size_t sums_stride = size_t{panels} * kPanelRows;
  if (count <= kStreamedRows<Code>) {
    CodedArgs<Code> args{coded, 0, begin, width / 2, odd, false, true, sums, sums_stride, {}, 0};
    args.ahead = Ahead::streaming(coded.lines(begin / kBlock, 0), panels * kLineBytes, Code::kPrefetchBytes);
    args.ahead_block = panels * Code::kGeometry.scale_bytes;
    run_tile_row<CodedTile<Code>, CodedTile<Code>::kRows>(args, panels, rows, count, columns.begin);
    return;
  }
  if constexpr (!kDecodeOnce) {
    multiply_decoding<Code>(coded, begin, columns, rows, count, sums, stream);
    return;
  }
  const uint32_t tiles = (count + kTileRows - 1) / kTileRows;
  const std::byte* group_end = coded.block((end + (odd ? 1 : 0) + kBlock - 1) / kBlock);
  for (uint32_t step = begin;;) {
    // To the end of a block, so that only the first stretch may begin inside one.
    uint32_t stop = step / kBlock * kBlock + kStretchSteps;
    const bool last = stop >= end + (odd ? 1 : 0);
    if (last || stop > end) stop = end;
    const uint32_t decoded = stop + (last && odd ? 1 : 0);
    decode_steps(coded, step, decoded, scratch.lines);
    const uint32_t first_block = step / kBlock;
    uint32_t last_block = first_block;
    for (uint32_t b = first_block; b * kBlock < decoded; last_block = b++) {
      for (uint32_t p = 0; p < panels; ++p) {
        const bool opens = b * kBlock <= begin;  // nothing was summed before
        store(scratch.ratios[b - first_block][p],
              opens ? set1(1.0f) : Code::ratio(coded.scales(b - 1, p), coded.scales(b, p)));
      }
    }
    DecodedArgs args;
    args.line = scratch.lines;
    args.line_stride = panels * kLineBytes;
    args.steps = stop - step;
    args.first_run = kBlock - step % kBlock;
    args.run = kBlock;
    args.odd_step = last && odd;
    args.ratios = scratch.ratios[0][0];
    args.ratio_stride = kGroupPanels * kPanelRows;
    args.resume = step != begin;
    args.sums_stride = sums_stride;
    if (last) {
      for (uint32_t p = 0; p < panels; ++p)
        store(scratch.scales[p], Code::scale(coded.scales(last_block, p)));
      args.scales = scratch.scales[0];
    }
    // While the tiles run, the codes of the next stretch are fetched: all of its blocks, with their scales.
    const std::byte* next = coded.block((decoded + kBlock - 1) / kBlock);
    const size_t left = static_cast<size_t>(group_end - next) + stream.following;
    const size_t most = static_cast<size_t>(coded.block(kStretchSteps / kBlock) - coded.block(0));
    args.ahead = Ahead::spread(next, left < most ? left : most, size_t{args.steps} * tiles, panels);
    uint32_t row = 0;
    for (uint32_t t = 0; t < tiles; ++t) {
      const uint32_t height = (count - row + (tiles - t) - 1) / (tiles - t);
      args.sums = sums + row * sums_stride;
      run_tile_row<DecodedTile>(args, panels, rows + row, height, columns.begin + size_t{step - begin} * 2);
      args.ahead.at += args.steps * args.ahead.step;
      row += height;
    }
    if (last) return;
    step = stop;
  }
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
