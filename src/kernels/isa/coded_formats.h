// The formats of coded_product.h: how codes and scales are read, and where they lie in a group of panels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa/isa_namespace.h"
#include "kernels/packed_layout.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// How a format's codes and scales are read. kPrefetchBytes: as prefetch_bytes of product.h; a line holds more
// steps. One row of fp8 reads 25 GB/s with 512 bytes and 21 to 23 with 1 KiB, of mxfp4 27 with 256 bytes.
struct Fp8Code {
  static constexpr size_t kPrefetchBytes = 512;
  static constexpr PackFormat kFormat = PackFormat::fp8_block;
  static constexpr CodeGeometry kGeometry = kFp8Geometry;
  template <int K>
  TANDEM_INLINE static PairBits bits(const Codes& codes) {
    return e4m3_bits<K>(codes);
  }
  TANDEM_INLINE static Vec scale(const std::byte* p) { return load(reinterpret_cast<const float*>(p)); }
  TANDEM_INLINE static Vec ratio(const std::byte* from, const std::byte* to) {
    return div(scale(from), scale(to));
  }
};
struct Mxfp4Code {
  static constexpr size_t kPrefetchBytes = 256;
  static constexpr PackFormat kFormat = PackFormat::mxfp4;
  static constexpr CodeGeometry kGeometry = kMxfp4Geometry;
  template <int K>
  TANDEM_INLINE static PairBits bits(const Codes& codes) {
    return e2m1_bits<K>(codes);
  }
  TANDEM_INLINE static Vec scale(const std::byte* p) {
    return e8m0_scale(reinterpret_cast<const uint8_t*>(p));
  }
  TANDEM_INLINE static Vec ratio(const std::byte* from, const std::byte* to) {
    return e8m0_ratio(reinterpret_cast<const uint8_t*>(from), reinterpret_cast<const uint8_t*>(to));
  }
};

struct Mxfp8Code {
  static constexpr size_t kPrefetchBytes = 512;
  static constexpr PackFormat kFormat = PackFormat::mxfp8;
  static constexpr CodeGeometry kGeometry = kMxfp8Geometry;
  template <int K>
  TANDEM_INLINE static PairBits bits(const Codes& codes) {
    return e4m3_bits<K>(codes);
  }
  TANDEM_INLINE static Vec scale(const std::byte* p) { return Mxfp4Code::scale(p); }
  TANDEM_INLINE static Vec ratio(const std::byte* from, const std::byte* to) {
    return Mxfp4Code::ratio(from, to);
  }
};

// Steps (pairs of columns) of a group, counted from the first of its first block.
template <class Code>
struct CodeSteps {
  static constexpr uint32_t kLine = Code::kGeometry.line_cols / 2;
  static constexpr uint32_t kBlock = Code::kGeometry.block_cols / 2;
};

// Where the blocks of one group lie.
template <class Code>
struct CodedGroup {
  const std::byte* data = nullptr;  // of the group
  uint32_t panels = 0;              // of the group

  TANDEM_INLINE const std::byte* block(uint32_t b) const {
    constexpr size_t kPanelBlock =
        Code::kGeometry.scale_bytes + CodeSteps<Code>::kBlock / CodeSteps<Code>::kLine * kLineBytes;
    return data + size_t{b} * panels * kPanelBlock;
  }
  TANDEM_INLINE const std::byte* scales(uint32_t b, uint32_t panel) const {
    return block(b) + panel * Code::kGeometry.scale_bytes;
  }
  // Line `line` of block b, panel 0.
  TANDEM_INLINE const std::byte* lines(uint32_t b, uint32_t line) const {
    return block(b) + panels * Code::kGeometry.scale_bytes + size_t{line} * panels * kLineBytes;
  }
};

// The pairs of step `k` of a line, where lines are not used whole.
template <class Code>
TANDEM_INLINE PairBits bits_at(const Codes& codes, uint32_t k) {
  if constexpr (CodeSteps<Code>::kLine == 2) {
    return k == 0 ? Code::template bits<0>(codes) : Code::template bits<1>(codes);
  } else {
    switch (k) {
      case 0:
        return Code::template bits<0>(codes);
      case 1:
        return Code::template bits<1>(codes);
      case 2:
        return Code::template bits<2>(codes);
      default:
        return Code::template bits<3>(codes);
    }
  }
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
