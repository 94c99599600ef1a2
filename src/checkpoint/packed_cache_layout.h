// PackedCacheLayout: where things lie in a file of packed weights. The only place with such arithmetic.
//
//   [PackedCachePrefix][PackedCacheEntry of each part][checksum of each block]   then, each on a multiple of
//   [used where they lie: parts, each on a multiple of 64 bytes]                 kPackedCacheBlock:
//   [copied out: parts, likewise]
//
// Little-endian. The two sections are cut into blocks with a checksum each, so that threads check the file in
// equal pieces, however large its tensors are. Padding is zero.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

// Raised when the file, or what kernels expect in a packed weight, changes: older files are then refused.
// (A test compares the bytes that packing and quantising make.)
inline constexpr uint32_t kPackedCacheVersion = 1;
inline constexpr std::array<char, 8> kPackedCacheMagic = {'T', 'N', 'D', 'M', 'P', 'A', 'C', 'K'};
// A huge page: sections that begin on one can be mapped by huge pages where the file system has them. Its
// checksum takes a tenth of a millisecond, so threads end together.
inline constexpr uint64_t kPackedCacheBlock = uint64_t{2} << 20;
// Of a part: a cache line, as kernels want it.
inline constexpr uint64_t kPackedCacheAlignment = 64;

struct PackedCachePrefix {
  std::array<char, 8> magic = kPackedCacheMagic;
  uint32_t version = kPackedCacheVersion;
  uint32_t num_parts = 0;
  uint64_t checkpoint = 0, contents = 0;  // of PackedCacheKey
  uint64_t file_bytes = 0;
  uint64_t table_checksum = 0;   // of entries and block checksums
  uint64_t prefix_checksum = 0;  // of everything before it
};
static_assert(sizeof(PackedCachePrefix) == 56);

struct PackedCacheEntry {
  uint64_t id = 0;  // of the part
  uint64_t offset = 0, bytes = 0;
  bool operator==(const PackedCacheEntry&) const = default;
};
static_assert(sizeof(PackedCacheEntry) == 24);

// One tensor's bytes in the file.
struct PackedCachePart {
  uint64_t id = 0;  // a hash of what it is: changes when anything about it does
  uint64_t bytes = 0;
  bool in_place = true;             // used where it lies; false: copied out at once
  const std::byte* data = nullptr;  // to write from
};

class PackedCacheLayout {
 public:
  explicit PackedCacheLayout(std::span<const PackedCachePart> parts) : entries_(parts.size()) {
    for (const bool in_place : {true, false}) {
      if (!in_place) in_place_bytes_ = body_bytes_ = up(body_bytes_, kPackedCacheBlock);
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].in_place != in_place) continue;
        entries_[i] = {parts[i].id, body_bytes_, parts[i].bytes};
        body_bytes_ += up(parts[i].bytes, kPackedCacheAlignment);
      }
    }
    body_bytes_ = up(body_bytes_, kPackedCacheBlock);
    body_begin_ = up(checksums_begin() + num_blocks() * sizeof(uint64_t), kPackedCacheBlock);
    for (PackedCacheEntry& entry : entries_) entry.offset += body_begin_;
  }

  std::span<const PackedCacheEntry> entries() const { return entries_; }
  uint64_t entries_begin() const { return sizeof(PackedCachePrefix); }
  uint64_t checksums_begin() const { return entries_begin() + entries_.size() * sizeof(PackedCacheEntry); }
  uint64_t table_bytes() const { return body_begin_ - entries_begin(); }  // with its padding
  uint64_t body_begin() const { return body_begin_; }
  uint64_t in_place_bytes() const { return in_place_bytes_; }  // of the body, which begins with them
  uint64_t num_blocks() const { return body_bytes_ / kPackedCacheBlock; }
  uint64_t block_begin(uint64_t block) const { return body_begin_ + block * kPackedCacheBlock; }
  uint64_t file_bytes() const { return body_begin_ + body_bytes_; }

 private:
  static uint64_t up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

  std::vector<PackedCacheEntry> entries_;  // in the order of the parts
  uint64_t body_begin_ = 0, body_bytes_ = 0, in_place_bytes_ = 0;
};

}  // namespace tandem
