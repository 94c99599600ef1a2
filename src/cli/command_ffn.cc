// tandem ffn: the FFN role as a process.
#include <cstdio>

#include "base/log.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/ffn_host.h"
#include "cli/stop_signal.h"

namespace tandem {
namespace {

// Time for tiles in flight when the rank is asked to stop: one step takes milliseconds.
constexpr auto kDrainLimit = std::chrono::seconds(2);

// A start with settings that differ ends on both sides within a second; the refusal takes up to 0.2 s to
// leave.
constexpr auto kMisfitInterval = std::chrono::milliseconds(100);

// Peers do not authenticate yet, so a port that strangers can reach would compute for them.
Status check_address(const Settings& settings) {
  const std::string& address = settings.afd.listen;
  const bool local = address.starts_with("shm://") || address.starts_with("inproc://") ||
                     address.find("//127.") != std::string::npos ||
                     address.find("//localhost:") != std::string::npos ||
                     address.find("//[::1]:") != std::string::npos || address.starts_with("127.") ||
                     address.starts_with("localhost:");
  if (local || settings.afd.insecure) return {};
  return make_error(ErrorCode::invalid_argument, "afd.listen: " + address +
                                                     " is reachable from other hosts and peers do not "
                                                     "authenticate; say --insecure on a trusted network");
}

}  // namespace

Result<int> run_ffn(Settings& settings) {
  StopSignal stop;
  set_log_name("ffn" + std::to_string(settings.afd.ffn_rank));
  TANDEM_TRY(check_address(settings));
  TANDEM_ASSIGN(const std::unique_ptr<FfnHost> host, FfnHost::create(settings, settings.afd.listen, 1));
  if (settings.json) {
    std::printf("%s\n", rank_json(host->facts()).c_str());
  } else {
    std::printf("%sready %s\n", rank_table({host->facts()}).c_str(), host->facts().address.c_str());
  }
  std::fflush(stdout);
  while (!stop.wait_for(kMisfitInterval)) {
    const auto misfit = host->misfit();
    if (misfit && !settings.afd.keep_serving) return std::unexpected(*misfit);
  }
  host->stop(kDrainLimit);
  log_info("stopped: " + host->report());
  return kExitSuccess;
}

}  // namespace tandem
