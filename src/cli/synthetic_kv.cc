#include "cli/synthetic_kv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "bench/random_pack.h"

namespace tandem {
namespace {

// Made once, then copied to every block from a place of its own: as float32 two of these are one value of
// that size.
constexpr size_t kValues = size_t{1} << 19;
// Blocks do not begin alike. Odd in units of 64 bytes, so that blocks of a power of two take all of them.
constexpr size_t kStride = 64 * 1031;

}  // namespace

void fill_with_synthetic_kv(StatePools& pools, const PagedKvLayout& layout, ThreadPool& threads) {
  std::vector<uint16_t> values(kValues);
  bench::fill_random_bf16(values.data(), values.size(), 1.0f, /*seed=*/1);
  const size_t bytes = values.size() * sizeof(uint16_t);
  const auto* const source = reinterpret_cast<const std::byte*>(values.data());
  for (uint32_t group = 0; group < pools.num_groups(); ++group) {
    BlockPool& pool = pools.pool(group);
    threads.run(pool.num_blocks(), [&](size_t block, int) {
      for (size_t layer = 0; layer < pool.spec().layers.size(); ++layer) {
        const std::span<std::byte> target = pool.bytes_of(static_cast<int32_t>(block), layer);
        size_t from = (block * pool.spec().layers.size() + layer) * kStride % bytes;
        for (size_t done = 0; done < target.size(); from = 0) {
          const size_t count = std::min(target.size() - done, bytes - from);
          std::memcpy(target.data() + done, source + from, count);
          done += count;
        }
        if (layout.coded()) bench::set_kv_scales(target, layout);
      }
    });
  }
}

}  // namespace tandem
