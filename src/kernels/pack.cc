#include "kernels/pack.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/bf16.h"
#include "kernels/packed_layout.h"

namespace tandem {
namespace {

float read(const float* p) {
  return *p;
}
float read(const bf16* p) {
  return to_float(*p);
}
uint32_t read_bits(const bf16* p) {
  return p->bits;
}
uint32_t read_bits(const float* p) {
  return to_bf16(*p).bits;
}

// Steps [begin, end) of one lane. Steps are cut into stretches that stay in the L1 cache while the 16 lanes
// of their lines are filled one after the other.
constexpr uint32_t kStretch = 128;  // lines of 4 panels: 32 KiB, of which one panel is written

template <class Source>
void pack_lane(const PackedLayout& layout, uint32_t panel, uint32_t lane, const Source* row, uint32_t begin,
               uint32_t end, std::byte* destination) {
  const size_t stride = layout.panels_in_group(panel / kGroupPanels) * kLineBytes;
  std::byte* out = destination + layout.line(panel, begin) + size_t{lane} * 4;
  if (layout.format == PackFormat::f32) {
    for (uint32_t step = begin; step < end; ++step, out += stride) {
      const float value = read(row + step);
      std::memcpy(out, &value, sizeof value);
    }
    return;
  }
  for (uint32_t step = begin; step < end; ++step, out += stride) {
    uint32_t pair = read_bits(row + 2 * step);
    if (2 * step + 1 < layout.cols) pair |= read_bits(row + 2 * step + 1) << 16;
    std::memcpy(out, &pair, sizeof pair);
  }
}

template <class Source>
void pack_rows(const PackedLayout& layout, uint32_t row_begin, uint32_t row_end, const Source* source,
               std::byte* destination) {
  const uint32_t steps = layout.steps();
  for (uint32_t first = row_begin; first < row_end; first += kPanelRows) {
    const uint32_t last = std::min(first + kPanelRows, row_end);
    for (uint32_t begin = 0; begin < steps; begin += kStretch) {
      const uint32_t end = std::min(begin + kStretch, steps);
      for (uint32_t row = first; row < last; ++row) {
        pack_lane(layout, layout.panel_of(row), layout.lane_of(row),
                  source + size_t{row - row_begin} * layout.cols, begin, end, destination);
      }
    }
  }
}

}  // namespace

size_t packed_weight_bytes(PackFormat format, PackArrangement arrangement, uint32_t rows, uint32_t cols) {
  return PackedLayout{format, arrangement, rows, cols}.bytes();
}

void pack_weight(PackFormat format, PackArrangement arrangement, uint32_t rows, uint32_t cols,
                 uint32_t row_begin, uint32_t row_end, DType source_dtype, const void* source,
                 std::byte* destination) {
  const PackedLayout layout{format, arrangement, rows, cols};
  assert(row_begin <= row_end && row_end <= rows);
  assert(source_dtype == DType::f32 || source_dtype == DType::bf16);
  if (source_dtype == DType::f32) {
    pack_rows(layout, row_begin, row_end, static_cast<const float*>(source), destination);
  } else {
    pack_rows(layout, row_begin, row_end, static_cast<const bf16*>(source), destination);
  }
}

}  // namespace tandem
