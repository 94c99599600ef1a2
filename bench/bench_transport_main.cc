// bench_transport [--json] [--seconds S] [TRANSPORT]: what `tandem bench transport` does, without the rest of
// the program.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "bench/transport_bench.h"

int main(int argc, char** argv) {
  bool json = false;
  tandem::TransportBenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--json") {
      json = true;
    } else if (argument == "--seconds" && i + 1 < argc) {
      options.seconds = std::atof(argv[++i]);
    } else {
      options.transport = argument;
    }
  }
  const tandem::Result<std::string> report = tandem::run_transport_bench(options, json);
  if (!report) {
    std::fprintf(stderr, "%s\n", report.error().message.c_str());
    return report.error().code == tandem::ErrorCode::invalid_argument ? 2 : 1;
  }
  std::fputs(report->c_str(), stdout);
  return 0;
}
