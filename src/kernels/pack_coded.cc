#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/pack.h"
#include "kernels/packed_layout.h"

namespace tandem {
namespace {

// Scales of a row within this ratio keep the running sum, which is in units of the block's scale, inside
// float32 for any activation below 2^40.
constexpr int kMostSpread = 64;  // powers of two

uint32_t load_word(const std::byte* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// Four bits of each byte, side by side.
uint32_t low_nibbles(uint32_t word) {
  word &= 0x0f0f0f0fu;
  word = (word | word >> 4) & 0x00ff00ffu;
  return (word | word >> 8) & 0xffffu;
}

struct Fp8Source {
  using Scale = float;
  static constexpr float kOne = 1.0f;
  static constexpr CodeGeometry kGeometry = kFp8Geometry;
  // A line's bits of one row from four codes, as PackedLayout::code_shift says.
  static uint32_t line(uint32_t codes) {
    return (codes & 0xffu) << 8 | (codes & 0xff00u) << 16 | (codes >> 16 & 0xffu) | (codes >> 8 & 0xff0000u);
  }
  static uint32_t code(const std::byte* row, uint32_t col) { return static_cast<uint32_t>(row[col]); }
  static const std::byte* at(const std::byte* row, uint32_t col) { return row + col; }
  static bool any_value(uint32_t line) { return (line & 0x7f7f7f7fu) != 0; }
  static bool any_nan(uint32_t line) { return (((line & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0; }
  static bool is_bad(float scale) { return !std::isfinite(scale); }
  static bool is_zero(float scale) { return scale == 0.0f; }
  static int exponent(float scale) { return std::ilogb(scale); }
};
struct Mxfp4Source {
  using Scale = uint8_t;
  static constexpr uint8_t kOne = 127;
  static constexpr CodeGeometry kGeometry = kMxfp4Geometry;
  static uint32_t line(uint32_t codes) { return low_nibbles(codes) | low_nibbles(codes >> 4) << 16; }
  static uint32_t code(const std::byte* row, uint32_t col) {
    return static_cast<uint32_t>(row[col / 2]) >> (col % 2 * 4) & 15;
  }
  static const std::byte* at(const std::byte* row, uint32_t col) { return row + col / 2; }
  static bool any_value(uint32_t line) { return (line & 0x77777777u) != 0; }
  static bool any_nan(uint32_t) { return false; }
  static bool is_bad(uint8_t scale) { return scale == 255; }
  static bool is_zero(uint8_t) { return false; }
  static int exponent(uint8_t scale) { return scale; }
};

struct Mxfp8Source : Fp8Source {
  using Scale = uint8_t;
  static constexpr uint8_t kOne = Mxfp4Source::kOne;
  static constexpr CodeGeometry kGeometry = kMxfp8Geometry;
  static bool is_bad(uint8_t scale) { return Mxfp4Source::is_bad(scale); }
  static bool is_zero(uint8_t scale) { return Mxfp4Source::is_zero(scale); }
  static int exponent(uint8_t scale) { return Mxfp4Source::exponent(scale); }
};

template <class Source>
class RowPacker {
 public:
  using Scale = typename Source::Scale;

  RowPacker(const PackedLayout& layout, uint32_t row, const std::byte* codes, const Scale* scales,
            std::byte* destination)
      : layout_(layout),
        panel_(layout.panel_of(row)),
        lane_(layout.lane_of(row)),
        codes_(codes),
        scales_(scales),
        out_(destination) {}

  // Blocks come in order.
  PackFault pack_block(uint32_t block) {
    const Scale scale = scales_[block];
    if (Source::is_bad(scale)) return PackFault::bad_scale;
    const uint32_t phase = layout_.col_phase;
    const uint32_t begin = block * kGeometry.block_cols;
    const uint32_t end = std::min(begin + kGeometry.block_cols, phase + layout_.cols);
    const size_t stride = layout_.panels_in_group(panel_ / kGroupPanels) * kLineBytes;
    std::byte* out = out_ + layout_.code_line(panel_, block, 0) + size_t{lane_} * 4;
    uint32_t values = 0;
    for (uint32_t first = begin; first < end; first += kGeometry.line_cols, out += stride) {
      uint32_t line = 0;
      if (first >= phase && first + kGeometry.line_cols <= end) {
        line = Source::line(load_word(Source::at(codes_, first - phase)));
      } else {
        for (uint32_t col = std::max(first, phase); col < std::min(first + kGeometry.line_cols, end); ++col)
          line |= Source::code(codes_, col - phase) << layout_.code_shift(col - first);
      }
      if (Source::any_nan(line)) return PackFault::nan_code;
      if (Source::is_zero(scale)) line = 0;  // whatever the codes, the weights are zero
      values |= line;
      std::memcpy(out, &line, sizeof line);
    }
    if (!Source::any_value(values)) return PackFault::none;
    const int exponent = Source::exponent(scale);
    least_ = any_ ? std::min(least_, exponent) : exponent;
    most_ = any_ ? std::max(most_, exponent) : exponent;
    if (most_ - least_ > kMostSpread) return PackFault::spread;
    set_scales(block, any_ ? last_ : scale);
    any_ = true;
    last_ = scale;
    set_scales(block + 1, scale);
    return PackFault::none;
  }
  // Gives all blocks before `end` that have no scale yet this one.
  void set_scales(uint32_t end, Scale scale) {
    for (; scaled_ < end; ++scaled_)
      std::memcpy(out_ + layout_.scale_offset(panel_, scaled_) + lane_ * sizeof scale, &scale, sizeof scale);
  }
  Scale last() const { return last_; }

 private:
  static constexpr CodeGeometry kGeometry = Source::kGeometry;
  const PackedLayout& layout_;
  uint32_t panel_, lane_;
  const std::byte* codes_;
  const Scale* scales_;
  std::byte* out_;
  uint32_t scaled_ = 0;  // blocks before this one have their scale
  bool any_ = false;     // a block with values was seen
  int least_ = 0, most_ = 0;
  Scale last_ = Source::kOne;
};

template <class Source>
PackFault pack_rows(const PackedLayout& layout, uint32_t row_begin, uint32_t row_end, const CodedRows& source,
                    std::byte* destination) {
  const auto* scales = static_cast<const typename Source::Scale*>(source.scales);
  const uint32_t blocks =
      (layout.col_phase + layout.cols + Source::kGeometry.block_cols - 1) / Source::kGeometry.block_cols;
  // Block after block of 16 rows: a block's lines stay in the L1 cache until their rows are complete.
  for (uint32_t first = row_begin; first < row_end; first += kPanelRows) {
    std::vector<RowPacker<Source>> rows;
    rows.reserve(kPanelRows);
    for (uint32_t row = first; row < std::min(first + kPanelRows, row_end); ++row) {
      const size_t at = row - row_begin;
      rows.emplace_back(layout, row, source.codes + at * source.code_stride,
                        scales + at * source.scale_stride, destination);
    }
    for (uint32_t block = 0; block < blocks; ++block) {
      for (RowPacker<Source>& row : rows) {
        if (const PackFault fault = row.pack_block(block); fault != PackFault::none) return fault;
      }
    }
    for (RowPacker<Source>& row : rows) row.set_scales(blocks, row.last());
  }
  return PackFault::none;
}

}  // namespace

std::string_view pack_fault_text(PackFault fault) {
  switch (fault) {
    case PackFault::none:
      return "is fine";
    case PackFault::nan_code:
      return "has a value that is NaN";
    case PackFault::bad_scale:
      return "has a scale that is NaN or infinite";
    case PackFault::spread:
      return "has a row whose scales differ by more than 2^64";
  }
  return "";
}

PackFault pack_coded_weight(PackFormat format, PackArrangement arrangement, uint32_t rows, uint32_t cols,
                            uint32_t col_phase, uint32_t row_begin, uint32_t row_end, const CodedRows& source,
                            std::byte* destination) {
  if (format == PackFormat::int8)
    return pack_int8_weight(arrangement, rows, cols, row_begin, row_end, source, destination);
  const PackedLayout layout{format, arrangement, rows, cols, col_phase};
  assert(is_coded(format) && row_begin <= row_end && row_end <= rows);
  assert(col_phase % 2 == 0 && col_phase < scale_block_cols(format));
  switch (format) {
    case PackFormat::fp8_block:
      return pack_rows<Fp8Source>(layout, row_begin, row_end, source, destination);
    case PackFormat::mxfp8:
      return pack_rows<Mxfp8Source>(layout, row_begin, row_end, source, destination);
    default:
      return pack_rows<Mxfp4Source>(layout, row_begin, row_end, source, destination);
  }
}

}  // namespace tandem
