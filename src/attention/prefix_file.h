// The layout of a prefix cache's file, for prefix_store.cc and prefix_saver.cc alone.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/prefix_cache.h"
#include "attention/prefix_store.h"
#include "base/checksum.h"

namespace tandem::prefix_file {

inline constexpr std::array<char, 8> kMagic = {'T', 'N', 'D', 'M', 'P', 'R', 'E', 'F'};
inline constexpr uint32_t kVersion = 2;

// [FileHead][identity] then for each unit [UnitHead][salt][tokens][blocks]. Little-endian, packed.
struct FileHead {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t num_units = 0;
  uint64_t identity_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t units_checksum = 0;  // of the last unit; of the identity when there is none
  uint64_t checksum = 0;        // of the fields before and the identity
};
static_assert(sizeof(FileHead) == 48);

struct UnitHead {
  uint64_t checksum = 0;  // of all behind it up to the next unit; begins with the one before, the first with
                          // the identity's
  uint32_t parent = 0;  // number in the file, UINT32_MAX: none
  uint32_t flags = 0;
  uint64_t salt_bytes = 0, block_bytes = 0;
};
static_assert(sizeof(UnitHead) == 32);
inline constexpr size_t kChecksumBytes = sizeof(uint64_t);
inline constexpr uint32_t kDrafted = 1, kResumes = 2, kResumeDrafted = 4;

inline std::string groups_of(const PrefixCache& cache) {
  std::string text = fmt::format("unit {}+{}\n", cache.unit_tokens(), cache.lookahead());
  const StatePools& pools = cache.pools();
  for (uint32_t group = 0; group < pools.num_groups(); ++group) {
    const StateGroupSpec& spec = pools.pool(group).spec();
    text += fmt::format("group.{} {} tokens of {} bytes, {} retained, layers", spec.name,
                        spec.tokens_per_block, spec.bytes_per_block, spec.retain_tokens);
    for (const uint32_t layer : spec.layers) text += fmt::format(" {}", layer);
    text += fmt::format(", {}\n", dtype_name(spec.dtype));
  }
  return text;
}

inline std::string identity_of(const PrefixStoreOptions& options, const PrefixCache& cache) {
  return options.identity + groups_of(cache);
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

inline uint64_t checksum_of_head(FileHead head, std::string_view identity) {
  head.checksum = 0;
  return checksum64(identity, checksum64(bytes_of(head)));
}

// Calls visit(bytes) for each block of the unit, in each layer.
template <class Visit>
void for_each_block(PrefixCache& cache, uint32_t unit, bool resumes, Visit visit) {
  for (uint32_t group = 0; group < cache.pools().num_groups(); ++group) {
    BlockPool& pool = cache.pools().pool(group);
    if (!pool.spec().keeps_all() && !resumes) continue;
    for (const int32_t block : std::as_const(cache).blocks_of(unit, group)) {
      for (size_t layer = 0; layer < pool.spec().layers.size(); ++layer) visit(pool.bytes_of(block, layer));
    }
  }
}

}  // namespace tandem::prefix_file
