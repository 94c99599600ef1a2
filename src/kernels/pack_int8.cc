// Packing of int8 weights: four columns of a row side by side, shifted into the unsigned bytes.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/pack.h"
#include "kernels/packed_layout.h"

namespace tandem {
namespace {

// Steps that stay in the L1 cache while the 16 rows of their lines are filled one after the other.
constexpr uint32_t kStretch = 128;
constexpr uint32_t kColumns = 4;  // of a step

// Steps [begin, end) of one row. Adding 128 to an int8 flips its highest bit.
void pack_row(const PackedLayout& layout, uint32_t row, const std::byte* codes, uint32_t begin, uint32_t end,
              std::byte* destination) {
  const uint32_t panel = layout.panel_of(row), lane = layout.lane_of(row);
  const size_t stride = layout.panels_in_group(panel / kGroupPanels) * kLineBytes;
  std::byte* out = destination + layout.line(panel, begin) + size_t{lane} * kColumns;
  for (uint32_t step = begin; step < end; ++step, out += stride) {
    const uint32_t columns = std::min(kColumns, layout.cols - step * kColumns);
    for (uint32_t c = 0; c < columns; ++c) out[c] = codes[size_t{step} * kColumns + c] ^ std::byte{0x80};
  }
}

}  // namespace

PackFault pack_int8_weight(PackArrangement arrangement, uint32_t rows, uint32_t cols, uint32_t row_begin,
                           uint32_t row_end, const CodedRows& source, std::byte* destination) {
  const PackedLayout layout{PackFormat::int8, arrangement, rows, cols};
  const auto* scales = static_cast<const float*>(source.scales);
  const uint32_t steps = layout.steps();
  for (uint32_t first = row_begin; first < row_end; first += kPanelRows) {
    const uint32_t last = std::min(first + kPanelRows, row_end);
    for (uint32_t row = first; row < last; ++row) {
      const float scale = scales[(row - row_begin) * source.scale_stride];
      if (!std::isfinite(scale)) return PackFault::bad_scale;
      std::memcpy(destination + layout.row_scales(layout.panel_of(row)) + layout.lane_of(row) * sizeof scale,
                  &scale, sizeof scale);
    }
    for (uint32_t begin = 0; begin < steps; begin += kStretch) {
      const uint32_t end = std::min(begin + kStretch, steps);
      for (uint32_t row = first; row < last; ++row) {
        pack_row(layout, row, source.codes + (row - row_begin) * source.code_stride, begin, end, destination);
      }
    }
  }
  return PackFault::none;
}

}  // namespace tandem
