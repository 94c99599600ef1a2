#include "transport/options_match.h"

#include <string>

namespace tandem {

Result<void> match_options(const EndpointOptions& local, std::string_view local_address, const EndpointOptions& remote,
                           std::string_view remote_address) {
  const auto microseconds = [](Duration value) {
    return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(value).count()) + " us";
  };
  const auto compare = [&](std::string_view name, const std::string& mine, const std::string& theirs) -> Result<void> {
    if (mine == theirs) return {};
    return make_error(ErrorCode::invalid_argument,
                      std::string(name) + " differs: " + mine + " at " + std::string(local_address) + " (this side), " +
                          theirs + " at " + std::string(remote_address) + "; set the same value on both sides");
  };
  TANDEM_TRY(compare("slots_per_channel", std::to_string(local.slots_per_channel),
                     std::to_string(remote.slots_per_channel)));
  TANDEM_TRY(compare("slot_bytes", std::to_string(local.slot_bytes), std::to_string(remote.slot_bytes)));
  TANDEM_TRY(compare("heartbeat_interval", microseconds(local.heartbeat_interval),
                     microseconds(remote.heartbeat_interval)));
  TANDEM_TRY(compare("silence_limit", microseconds(local.silence_limit), microseconds(remote.silence_limit)));
  return {};
}

}  // namespace tandem
