// PackedLayout: where an element lies inside a packed weight. The only place with such arithmetic.
//
// Rows (out features) form panels of 16; a panel's columns form steps: one column in f32, a pair of columns
// in bf16. A line is one step of one panel: 64 bytes, one vector register. Four panels form a group whose
// lines alternate, so that a group is one sequential stream with four independent accumulators:
//   [group][step][panel in group][16 rows][1 or 2 columns]
// The last group holds what is left (1..4 panels). gate_up: panel 2j is gate panel j, panel 2j + 1 is up
// panel j. Rows and columns that do not exist are zero.
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

struct PackedLayout {
  PackFormat format;
  PackArrangement arrangement;
  uint32_t rows;  // of the weight, both halves for gate_up
  uint32_t cols;

  [[gnu::always_inline]] uint32_t half_rows() const { return rows / 2; }
  [[gnu::always_inline]] uint32_t panels() const {
    return arrangement == PackArrangement::plain ? (rows + kPanelRows - 1) / kPanelRows
                                                 : 2 * ((half_rows() + kPanelRows - 1) / kPanelRows);
  }
  [[gnu::always_inline]] uint32_t steps() const { return format == PackFormat::f32 ? cols : (cols + 1) / 2; }
  [[gnu::always_inline]] uint32_t groups() const { return (panels() + kGroupPanels - 1) / kGroupPanels; }
  [[gnu::always_inline]] uint32_t panels_in_group(uint32_t group) const {
    const uint32_t left = panels() - group * kGroupPanels;
    return left < kGroupPanels ? left : kGroupPanels;
  }
  [[gnu::always_inline]] size_t group_offset(uint32_t group) const {
    return size_t{group} * kGroupPanels * steps() * kLineBytes;
  }
  // Byte offset of a line.
  [[gnu::always_inline]] size_t line(uint32_t panel, uint32_t step) const {
    const uint32_t group = panel / kGroupPanels;
    return group_offset(group) + (size_t{step} * panels_in_group(group) + panel % kGroupPanels) * kLineBytes;
  }
  [[gnu::always_inline]] size_t bytes() const { return size_t{panels()} * steps() * kLineBytes; }

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
