// PackedCache: the packed weights of one rank in a file, so that the next start maps them instead of packing
// again. A file is used only when it is whole and was made from the same checkpoint, for the same parts, by a
// version that packs alike; everything else is refused with the reason, and the caller packs anew. One thread
// calls; the pool's threads help. The bytes are read-only and live as long as the object.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/buffer.h"
#include "base/file.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/packed_cache_layout.h"

namespace tandem {

struct PackedCacheKey {
  std::string path;         // of the file
  uint64_t checkpoint = 0;  // which files the weights were made from
  uint64_t contents = 0;    // what was made from them: parts, formats, shapes
};

// How the parts that are used in place are held.
enum class CacheHold : uint8_t {
  mapped,  // the page cache's own pages, shared by all processes that use the file
  copied,  // memory of this process: where it must be huge pages, or bound to a node
};

class PackedCache {
 public:
  // Called for each part that is used in place before its copy is written; may be empty.
  using Prepare = std::function<void(size_t part, std::span<std::byte> copy)>;
  // Checks every byte. not_found: there is no file; data_loss or invalid_argument: the file cannot be used,
  // in words that follow its path; resource_exhausted: no memory for copies.
  static Result<PackedCache> open(const PackedCacheKey& key, std::span<const PackedCachePart> parts,
                                  CacheHold hold, ThreadPool& pool, const Prepare& prepare = {});

  // Of the part with this number. One that is copied out: until `release_copied_out`.
  std::span<const std::byte> part(size_t index) const;
  // All parts that are used in place.
  std::span<const std::byte> in_place() const;
  // Gives back the memory of the parts that were copied out.
  void release_copied_out();

 private:
  explicit PackedCache(PackedCacheLayout layout) : layout_(std::move(layout)) {}
  Status check_header(const PackedCacheKey& key) const;
  Status check_blocks(ThreadPool& pool);

  PackedCacheLayout layout_;
  MappedFile file_;
  OwnedBuffer copy_;  // of the parts used in place; empty when mapped
};

// Writes the file beside its place and moves it there, so that a file is there whole or not at all and
// readers of an older one keep it. False: another process is writing this very file, which is as good.
// Errors, such as a full disk or a folder that may not be written, leave nothing behind.
Result<bool> write_packed_cache(const PackedCacheKey& key, std::span<const PackedCachePart> parts,
                                ThreadPool& pool);

}  // namespace tandem
