// tandem bench sharing: many clients on one pool of experts.
#include <cstdio>

#include "bench/model_shapes.h"
#include "bench/sharing_bench.h"
#include "cli/command.h"
#include "cli/commands.h"

namespace tandem {

Result<int> run_bench_sharing(Settings& settings) {
  const SharingSettings& sharing = settings.sharing;
  bench::SharingOptions options;
  options.arms = sharing.arms;
  options.clients = static_cast<uint32_t>(sharing.clients);
  options.rows = static_cast<uint32_t>(sharing.rows);
  options.experts = static_cast<uint32_t>(sharing.experts);
  options.top_k = static_cast<uint32_t>(sharing.top_k);
  options.hidden = static_cast<uint32_t>(sharing.hidden);
  options.intermediate = static_cast<uint32_t>(sharing.intermediate);
  options.layers = static_cast<uint32_t>(sharing.layers);
  TANDEM_ASSIGN(options.format, bench::find_weight_format(sharing.format));
  options.seconds = sharing.seconds;
  options.runs = static_cast<int>(settings.measure.runs);
  options.think_ms = sharing.think_ms;
  options.flood_rate = sharing.flood_rate;
  options.transport = sharing.transport;
  options.threads = static_cast<int>(settings.engine.threads);
  TANDEM_ASSIGN(const std::string report, bench::run_sharing_bench(options, settings.json));
  std::fputs(report.c_str(), stdout);
  return kExitSuccess;
}

}  // namespace tandem
