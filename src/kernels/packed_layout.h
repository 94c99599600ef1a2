// PackedLayout: where an element lies inside a packed weight. The only place with such arithmetic.
//
// Rows (out features) form panels of 16; a panel's columns form steps: one column in f32, a pair of columns
// in bf16. A line is one step of one panel: 64 bytes, one vector register. Four panels form a group whose
// lines alternate, so that a group is one sequential stream with four independent accumulators:
//   [group][step][panel in group][16 rows][1 or 2 columns]
// The last group holds what is left (1..4 panels). gate_up: panel 2j is gate panel j, panel 2j + 1 is up
// panel j. Rows and columns that do not exist are zero.
//
// Coded formats: a line is 64 bytes of one panel too, 4 bytes a row: 4 columns of fp8_block, 8 of mxfp4. The
// pairs of a line's columns lie so that one shift moves pair k of all rows into place: even columns in the
// low half of a row's 32 bits, odd ones in the high half (see code_shift). A group is cut into scale blocks,
// and each block opens with its scales:
//   [group][scale block]{ [panel in group][16 scales]  [line][panel in group][16 rows][4 or 8 columns] }
// so that scales arrive with the same stream. The last block may be shorter, its last line is padded. mxfp8
// has the lines of fp8_block and the scales of mxfp4.
//
// int8: a line has four columns of each row, side by side, as weight + 128 (1 to 255: int8 products take one
// unsigned factor); a group opens with its scales, one float32 a row:
//   [group]{ [panel in group][16 scales]  [step][panel in group][16 rows][4 columns] }
// Columns and rows that do not exist are zero bytes, which are never multiplied with anything but zeros.
//
// Everything here is always inlined: it is compiled under several instruction sets, and a shared out-of-line
// copy could contain instructions that this CPU lacks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/packed_weight.h"

namespace tandem {

inline constexpr uint32_t kPanelRows = 16;   // float32 lanes of a 512-bit register
inline constexpr uint32_t kGroupPanels = 4;  // with 6 activation rows: 24 accumulators of 32 registers
inline constexpr size_t kLineBytes = 64;

// How a coded format lies in its lines.
struct CodeGeometry {
  uint32_t block_cols;   // that share a scale
  uint32_t line_cols;    // of one line
  uint32_t scale_bytes;  // of one panel in one block: 16 float32 or 16 e8m0
};
inline constexpr CodeGeometry kFp8Geometry = {scale_block_cols(PackFormat::fp8_block), 4, 64};
inline constexpr CodeGeometry kMxfp4Geometry = {scale_block_cols(PackFormat::mxfp4), 8, 16};
inline constexpr CodeGeometry kMxfp8Geometry = {scale_block_cols(PackFormat::mxfp8), 4, 16};
inline constexpr size_t kInt8ScaleBytes = kPanelRows * sizeof(float);  // of one panel

struct PackedLayout {
  PackFormat format;
  PackArrangement arrangement;
  uint32_t rows;  // of the weight, both halves for gate_up
  uint32_t cols;
  uint32_t col_phase = 0;  // coded: see PackedWeight

  [[gnu::always_inline]] uint32_t half_rows() const { return rows / 2; }
  [[gnu::always_inline]] uint32_t panels() const {
    return arrangement == PackArrangement::plain ? (rows + kPanelRows - 1) / kPanelRows
                                                 : 2 * ((half_rows() + kPanelRows - 1) / kPanelRows);
  }
  [[gnu::always_inline]] uint32_t steps() const {
    return format == PackFormat::f32 ? cols : format == PackFormat::int8 ? (cols + 3) / 4 : (cols + 1) / 2;
  }
  [[gnu::always_inline]] uint32_t groups() const { return (panels() + kGroupPanels - 1) / kGroupPanels; }
  [[gnu::always_inline]] uint32_t panels_in_group(uint32_t group) const {
    const uint32_t left = panels() - group * kGroupPanels;
    return left < kGroupPanels ? left : kGroupPanels;
  }
  [[gnu::always_inline]] size_t panel_bytes() const {
    if (!is_coded(format)) {
      return size_t{steps()} * kLineBytes + (format == PackFormat::int8 ? kInt8ScaleBytes : 0);
    }
    const CodeGeometry code = geometry();
    const uint32_t stored = col_phase + cols;
    return size_t{(stored + code.block_cols - 1) / code.block_cols} * code.scale_bytes +
           size_t{(stored + code.line_cols - 1) / code.line_cols} * kLineBytes;
  }
  [[gnu::always_inline]] size_t group_offset(uint32_t group) const {
    return size_t{group} * kGroupPanels * panel_bytes();
  }
  // Byte offset of a line; not coded.
  [[gnu::always_inline]] size_t line(uint32_t panel, uint32_t step) const {
    const uint32_t group = panel / kGroupPanels;
    return lines_offset(group) + (size_t{step} * panels_in_group(group) + panel % kGroupPanels) * kLineBytes;
  }
  // Of a group's first line; not coded.
  [[gnu::always_inline]] size_t lines_offset(uint32_t group) const {
    return group_offset(group) + (format == PackFormat::int8 ? panels_in_group(group) * kInt8ScaleBytes : 0);
  }
  // int8: where a panel's scales lie.
  [[gnu::always_inline]] size_t row_scales(uint32_t panel) const {
    return group_offset(panel / kGroupPanels) + panel % kGroupPanels * kInt8ScaleBytes;
  }
  [[gnu::always_inline]] size_t bytes() const {
    return (panels() * panel_bytes() + kLineBytes - 1) / kLineBytes * kLineBytes;
  }

  // Coded: where a panel's scales of a block lie, and a line of that block. Columns count from the first one
  // of the first block, whether it is held or not.
  [[gnu::always_inline]] CodeGeometry geometry() const {
    return format == PackFormat::fp8_block ? kFp8Geometry
           : format == PackFormat::mxfp4   ? kMxfp4Geometry
                                           : kMxfp8Geometry;
  }
  [[gnu::always_inline]] size_t block_offset(uint32_t group, uint32_t block) const {
    const CodeGeometry code = geometry();
    const size_t panel_block = code.scale_bytes + size_t{code.block_cols / code.line_cols} * kLineBytes;
    return group_offset(group) + block * panels_in_group(group) * panel_block;
  }
  [[gnu::always_inline]] size_t scale_offset(uint32_t panel, uint32_t block) const {
    return block_offset(panel / kGroupPanels, block) + panel % kGroupPanels * geometry().scale_bytes;
  }
  [[gnu::always_inline]] size_t code_line(uint32_t panel, uint32_t block, uint32_t line) const {
    const uint32_t group = panel / kGroupPanels, panels_here = panels_in_group(group);
    return block_offset(group, block) + panels_here * geometry().scale_bytes +
           (size_t{line} * panels_here + panel % kGroupPanels) * kLineBytes;
  }
  // The lowest bit of a column's code in its row's 32 bits of a line, `col` counted from the line's first.
  // The first pair of fp8 has the high bytes: one shift fewer to the sign's place in bf16.
  [[gnu::always_inline]] uint32_t code_shift(uint32_t col) const {
    return col % 2 * 16 + (format == PackFormat::mxfp4 ? col / 2 * 4 : (1 - col / 2) * 8);
  }

  // The panel and the lane of a row.
  [[gnu::always_inline]] uint32_t panel_of(uint32_t row) const {
    if (arrangement == PackArrangement::plain) return row / kPanelRows;
    return row < half_rows() ? 2 * (row / kPanelRows) : 2 * ((row - half_rows()) / kPanelRows) + 1;
  }
  [[gnu::always_inline]] uint32_t lane_of(uint32_t row) const {
    if (arrangement == PackArrangement::plain || row < half_rows()) return row % kPanelRows;
    return (row - half_rows()) % kPanelRows;
  }
};

}  // namespace tandem
