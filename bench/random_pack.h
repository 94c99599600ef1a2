// Random weights in packed form, made in place: for benchmarks whose models are sizes without files. Values
// are finite and about gain / sqrt(columns) large, so that a row of magnitude 1 gives results of magnitude
// `gain`. They depend on the seed and the place in the matrix alone. One thread calls; the pool's work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>

#include "base/buffer.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/kernel_table.h"
#include "kernels/paged_kv_layout.h"

namespace tandem::bench {

// 64 bits that depend on `counter` alone.
constexpr uint64_t random_bits(uint64_t counter) {
  uint64_t x = counter * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Fills `count` bf16 values with random signs and magnitudes of about `magnitude` (a factor of two around
// it).
void fill_random_bf16(uint16_t* values, size_t count, float magnitude, uint64_t seed);

// Sets the scales of a cache of codes, `blocks` of them, so that random bytes are values of the size of
// normed keys.
void set_kv_scales(std::span<std::byte> blocks, const PagedKvLayout& layout);

// Packs one random weight into `destination`: zeroed, KernelTable::packed_bytes long. unsupported: a format
// that is not known here.
Status pack_random(const KernelTable& table, ThreadPool& pool, PackFormat format, PackArrangement arrangement,
                   uint32_t rows, uint32_t cols, float gain, uint64_t seed, std::byte* destination);

// The same for many weights: the first of each shape is made, those that follow are copies of it. Speed does
// not depend on the values, and a copy takes the time of writing memory.
class RandomPacker {
 public:
  RandomPacker(const KernelTable& table, ThreadPool& pool, uint64_t seed)
      : table_(table), pool_(pool), seed_(seed) {}
  Status fill(PackFormat format, PackArrangement arrangement, uint32_t rows, uint32_t cols,
              std::byte* destination);

 private:
  const KernelTable& table_;
  ThreadPool& pool_;
  uint64_t seed_;
  std::map<std::tuple<PackFormat, PackArrangement, uint32_t, uint32_t>, const std::byte*> made_;
};

}  // namespace tandem::bench
