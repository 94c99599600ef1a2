// Measures the kernels against the machine's own roofs: read bandwidth, bf16 dot peak, float32 FMA peak. Each
// case is measured in turn with its roof, several times, and reported by the median of the ratios: other work
// on the machine then slows both alike. Takes about half a minute and up to 1.3 GiB. Any thread; runs a pool
// of its own.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "bench/kernel_cases.h"

namespace tandem {

struct KernelBenchOptions {
  int threads = 0;        // 0: the CPU budget of this process
  int rounds = 7;         // pairs of (roof, kernel) per case; at least 1
  double seconds = 0.06;  // about how long one measurement takes
  std::string filter;     // only cases whose name contains it; empty: all
};

// A table, or JSON: {"table", "threads", "roofs": {...}, "cases": [{"name", "microseconds",
// "gigabytes_per_second", "gigaflops", "roof", "roof_giga_per_second", "share", "bytes", "flops", "note"}]}.
// GB are 10^9 bytes. Fails on a bad option or when memory is short.
Result<std::string> run_kernel_bench(const KernelBenchOptions& options, bool json);

// The same for other cases (bench/shape_cases.h).
Result<std::string> run_case_bench(const KernelBenchOptions& options, std::vector<bench::CaseMaker> cases,
                                   bool json);

}  // namespace tandem
