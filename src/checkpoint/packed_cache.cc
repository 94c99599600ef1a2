#include "checkpoint/packed_cache.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "base/checksum.h"

namespace tandem {
namespace {

std::unexpected<Error> refuse(const std::string& path, const std::string& reason) {
  return make_error(ErrorCode::data_loss, path + " " + reason);
}

}  // namespace

Result<PackedCache> PackedCache::open(const PackedCacheKey& key, std::span<const PackedCachePart> parts,
                                      CacheHold hold, ThreadPool& pool, const Prepare& prepare) {
  PackedCache cache{PackedCacheLayout(parts)};
  TANDEM_ASSIGN(cache.file_, MappedFile::open(key.path));
  TANDEM_TRY(cache.check_header(key));
  if (hold == CacheHold::copied) {
    TANDEM_ASSIGN(cache.copy_, OwnedBuffer::allocate(cache.layout_.in_place_bytes()));
    for (size_t i = 0; prepare && i < parts.size(); ++i) {
      const uint64_t at = cache.layout_.entries()[i].offset - cache.layout_.body_begin();
      if (parts[i].in_place) prepare(i, {cache.copy_.data() + at, parts[i].bytes});
    }
  }
  if (Status checked = cache.check_blocks(pool); !checked) {
    checked.error().message = key.path + " " + checked.error().message;
    return std::unexpected(checked.error());
  }
  return cache;
}

Status PackedCache::check_header(const PackedCacheKey& key) const {
  const std::span<const std::byte> bytes = file_.bytes();
  PackedCachePrefix prefix;
  if (bytes.size() < sizeof prefix) return refuse(key.path, "is cut short");
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  if (prefix.magic != kPackedCacheMagic) return refuse(key.path, "is not a file of packed weights");
  if (prefix.version != kPackedCacheVersion) {
    return refuse(key.path, fmt::format("has format {}, and this version of Tandem reads {}", prefix.version,
                                        kPackedCacheVersion));
  }
  if (prefix.prefix_checksum != checksum64(bytes.first(offsetof(PackedCachePrefix, prefix_checksum))))
    return refuse(key.path, "has a damaged header");
  if (prefix.checkpoint != key.checkpoint)
    return refuse(key.path, "was made from other files: the checkpoint has changed");
  const std::span<const PackedCacheEntry> entries = layout_.entries();
  if (prefix.contents != key.contents || prefix.num_parts != entries.size() ||
      prefix.file_bytes != layout_.file_bytes()) {
    return refuse(key.path, "holds other weights than these settings need");
  }
  if (bytes.size() != prefix.file_bytes) {
    return refuse(key.path,
                  fmt::format("is cut short: {} of {} bytes are there", bytes.size(), prefix.file_bytes));
  }
  if (prefix.table_checksum != checksum64(bytes.subspan(layout_.entries_begin(), layout_.table_bytes())))
    return refuse(key.path, "has a damaged table");
  if (std::memcmp(bytes.data() + layout_.entries_begin(), entries.data(), entries.size_bytes()) != 0)
    return refuse(key.path, "holds other weights than these settings need");
  return {};
}

Status PackedCache::check_blocks(ThreadPool& pool) {
  const std::span<const std::byte> bytes = file_.bytes();
  std::atomic<uint64_t> damaged{UINT64_MAX};  // offset of a damaged block
  file_.will_need();
  pool.run(layout_.num_blocks(), [&](size_t block, int) {
    const uint64_t begin = layout_.block_begin(block), at = begin - layout_.body_begin();
    uint64_t expected = 0;
    std::memcpy(&expected, bytes.data() + layout_.checksums_begin() + block * sizeof expected,
                sizeof expected);
    std::span<const std::byte> checked = bytes.subspan(begin, kPackedCacheBlock);
    if (at < copy_.size()) {
      // The copy is what is checked: it is what will be used.
      std::memcpy(copy_.data() + at, checked.data(), kPackedCacheBlock);
      file_.drop_pages(begin, kPackedCacheBlock);
      checked = {copy_.data() + at, kPackedCacheBlock};
    }
    if (checksum64(checked) != expected) damaged.store(begin);
  });
  if (damaged.load() == UINT64_MAX) return {};
  return make_error(ErrorCode::data_loss,
                    fmt::format("is damaged in the {} bytes from {} on", kPackedCacheBlock, damaged.load()));
}

std::span<const std::byte> PackedCache::part(size_t index) const {
  const PackedCacheEntry& entry = layout_.entries()[index];
  const uint64_t at = entry.offset - layout_.body_begin();
  if (at + entry.bytes <= copy_.size()) return {copy_.data() + at, entry.bytes};
  return file_.bytes().subspan(entry.offset, entry.bytes);
}

std::span<const std::byte> PackedCache::in_place() const {
  if (copy_.size() != 0) return {copy_.data(), copy_.size()};
  return file_.bytes().subspan(layout_.body_begin(), layout_.in_place_bytes());
}

void PackedCache::release_copied_out() {
  const uint64_t begin = layout_.body_begin() + layout_.in_place_bytes();
  file_.drop_pages(begin, layout_.file_bytes() - begin);
}

}  // namespace tandem
