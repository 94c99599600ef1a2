// The machine's roofs for one instruction set, as loops that do nothing else, and the memory that they read.
// One thread calls; the pool's threads work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"

namespace tandem::bench {

struct RoofLoops {
  std::string_view table;  // name of the kernel table with the same instructions
  // Reads `bytes` (a multiple of 256) and returns something that depends on them.
  float (*read)(const std::byte* data, size_t bytes) = nullptr;
  // `count` rounds of independent multiply-adds; add what they cost to `flops`.
  float (*dot_bf16)(size_t count, double& flops) = nullptr;
  float (*fma_f32)(size_t count, double& flops) = nullptr;
  // Byte products, summed in int32; by VPDPBUSD where the table's CPUs have it.
  float (*dot_i8)(size_t count, double& operations) = nullptr;
};

// Memory to read from: touched, in pages of one kind as far as the system gives them.
enum class PageKind : uint8_t { small, huge };

class ReadMemory {
 public:
  // `bytes`: a multiple of 2 MiB. resource_exhausted when there is no memory.
  static Result<ReadMemory> create(size_t bytes, PageKind pages);
  ReadMemory(ReadMemory&& other) noexcept;
  ReadMemory& operator=(ReadMemory&&) = delete;
  ~ReadMemory();

  const std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  // Of them, what lies in huge pages now (AnonHugePages of the process's smaps); 0 where that is not told.
  size_t huge_bytes() const;

 private:
  ReadMemory() = default;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Beyond any last-level cache that a share of a server has.
inline constexpr size_t kReadBytes = size_t{256} << 20;

// The loops that belong to a table; nullptr for a name without any.
const RoofLoops* roof_loops(std::string_view table);

// Bytes a second read by all threads of the pool from `data`, for about `seconds`.
double measure_read(const RoofLoops& loops, ThreadPool& pool, const std::byte* data, size_t bytes,
                    double seconds);
// Floating-point operations a second on all threads of the pool.
double measure_dot_bf16(const RoofLoops& loops, ThreadPool& pool, double seconds);
double measure_fma_f32(const RoofLoops& loops, ThreadPool& pool, double seconds);
double measure_dot_i8(const RoofLoops& loops, ThreadPool& pool, double seconds);

// Of at least one value; the upper one of the two in the middle.
double median(std::vector<double> values);

}  // namespace tandem::bench
