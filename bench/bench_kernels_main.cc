// bench_kernels [--json] [--threads N] [FILTER]: what `tandem bench kernels` does, without the rest of the
// program.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "bench/kernel_bench.h"

int main(int argc, char** argv) {
  bool json = false;
  tandem::KernelBenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--json") {
      json = true;
    } else if (argument == "--threads" && i + 1 < argc) {
      options.threads = std::atoi(argv[++i]);
    } else {
      options.filter = argument;
    }
  }
  const tandem::Result<std::string> report = tandem::run_kernel_bench(options, json);
  if (!report) {
    std::fprintf(stderr, "%s\n", report.error().message.c_str());
    return report.error().code == tandem::ErrorCode::invalid_argument ? 2 : 1;
  }
  std::fputs(report->c_str(), stdout);
  return 0;
}
