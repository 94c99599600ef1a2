// bench_kernels [--json] [--threads N] [FILTER]: what `tandem bench kernels` does, without the rest of the
// program.
#include "bench/kernel_bench.h"
#include "bench/standalone.h"

int main(int argc, char** argv) {
  tandem::KernelBenchOptions options;
  int64_t threads = options.threads;
  tandem::OptionSet flags;
  flags.integer("threads", threads, 0, 1024, "Threads of the kernels; 0: the CPU budget of this process.");
  return tandem::bench::run_standalone(argc, argv, flags, options.filter, [&](bool json) {
    options.threads = static_cast<int>(threads);
    return tandem::run_kernel_bench(options, json);
  });
}
