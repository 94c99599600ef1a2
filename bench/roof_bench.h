// Measures the machine's roofs for one kernel table, or for every one that this CPU can run: read bandwidth
// with one and with all threads, from small and from huge pages; the peaks of the bf16 dot, of int8 products
// and of float32 FMA. The kinds are measured in turn, several times, and reported by their medians: what
// other work on the machine takes is then spread over all. Takes some seconds a table and 512 MiB. Any
// thread; runs pools of its own.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace tandem {

struct RoofBenchOptions {
  int threads = 0;                        // 0: the CPU budget of this process
  int runs = 5;                           // of each kind; at least 1
  double seconds = 0.06;                  // of one measurement
  bool all_tables = false;                // not only the table in use
  size_t read_bytes = size_t{256} << 20;  // a multiple of 2 MiB, beyond the caches
};

// A table, or JSON: {"threads", "runs", "read_bytes", "huge_pages": {"bytes", "mode", "note"}, "tables":
// [{"table", "in_use", "read": {"small_pages": {"one_thread", "all_threads"}, "huge_pages": {...}},
// "bf16_dot": {"one_thread", "all_threads"}, "int8_dot": {...}, "f32_fma": {...}}]}. Read in GB/s (10^9
// bytes), peaks in 10^9 operations a second, a multiply-add being two. invalid_argument: a bad option;
// resource_exhausted: no memory.
Result<std::string> run_roof_bench(const RoofBenchOptions& options, bool json);

}  // namespace tandem
