// The machine's roofs for one instruction set, as loops that do nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/thread_pool.h"

namespace tandem::bench {

struct RoofLoops {
  std::string_view table;  // name of the kernel table with the same instructions
  // Reads `bytes` (a multiple of 256) and returns something that depends on them.
  float (*read)(const std::byte* data, size_t bytes) = nullptr;
  // `count` rounds of independent multiply-adds; add what they cost to `flops`.
  float (*dot_bf16)(size_t count, double& flops) = nullptr;
  float (*fma_f32)(size_t count, double& flops) = nullptr;
};

// The loops that belong to a table; nullptr for a name without any.
const RoofLoops* roof_loops(std::string_view table);

// Bytes a second read by all threads of the pool from `data`, for about `seconds`.
double measure_read(const RoofLoops& loops, ThreadPool& pool, const std::byte* data, size_t bytes,
                    double seconds);
// Floating-point operations a second on all threads of the pool.
double measure_dot_bf16(const RoofLoops& loops, ThreadPool& pool, double seconds);
double measure_fma_f32(const RoofLoops& loops, ThreadPool& pool, double seconds);

}  // namespace tandem::bench
