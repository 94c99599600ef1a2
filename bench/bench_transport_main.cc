// bench_transport [--json] [--seconds S] [--security key,tls] [TRANSPORT]: what `tandem bench transport`
// does, without the rest of the program.
#include <cstdio>

#include "bench/standalone.h"
#include "bench/transport_bench.h"

int main(int argc, char** argv) {
  tandem::TransportBenchOptions options;
  tandem::OptionSet flags;
  flags.list("security", options.security, "key, tls: tcp once more, with a key and inside TLS.");
  flags.real("seconds", options.seconds, 0.001, 60, "About how long one case is measured.");
  options.progress = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  return tandem::bench::run_standalone(argc, argv, flags, options.transport,
                                       [&](bool json) { return tandem::run_transport_bench(options, json); });
}
