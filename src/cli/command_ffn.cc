// tandem ffn: the FFN role as a process.
#include <cstdio>

#include "base/log.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/ffn_host.h"
#include "cli/peer_settings.h"
#include "cli/rank_listener.h"
#include "cli/rank_setup.h"
#include "cli/reload_on_hangup.h"
#include "cli/stop_signal.h"

namespace tandem {
namespace {

// Time for tiles in flight when the rank is asked to stop: one step takes milliseconds.
constexpr auto kDrainLimit = std::chrono::seconds(2);

// A start with settings that differ ends on both sides within a second; the refusal takes up to 0.2 s to
// leave.
constexpr auto kMisfitInterval = std::chrono::milliseconds(100);

}  // namespace

Result<int> run_ffn(Settings& settings) {
  TANDEM_TRY(settle_rank(settings, "ffn"));
  return run_settled_ffn(settings);
}

Result<int> run_settled_ffn(Settings& settings) {
  TANDEM_TRY(check_metrics_listen(settings));
  // The host goes after the signal's thread, which may be reporting.
  std::unique_ptr<FfnHost> host;
  StopSignal stop(settings.reload != nullptr);
  TANDEM_TRY(check_listen_address(settings.afd, "afd.listen", settings.afd.listen));
  TANDEM_ASSIGN(host, FfnHost::create(settings, settings.afd.listen, 1));
  // Whoever started this rank asks for its counts now and then (RankProcesses::counters).
  stop.on_report([&settings, &host] {
    if (settings.json) {
      std::printf("%s\n", counters_json(host->counters()).c_str());
    } else {
      log_info(host->report());
    }
    std::fflush(stdout);
  });
  if (settings.json) {
    std::printf("%s\n", rank_json(host->facts()).c_str());
  } else {
    std::printf("%sready %s\n", rank_table({host->facts()}).c_str(), host->facts().address.c_str());
  }
  std::fflush(stdout);
  while (!stop.wait_for(kMisfitInterval)) {
    reload_on_hangup(stop, settings, {});
    const auto misfit = host->misfit();
    if (misfit && !settings.afd.keep_serving) return std::unexpected(*misfit);
  }
  host->stop(kDrainLimit);
  log_info("stopped: " + host->report());
  return kExitSuccess;
}

}  // namespace tandem
