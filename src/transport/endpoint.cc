#include "transport/endpoint.h"

namespace tandem {
namespace {

// A tile is at most 64 rows; far below both limits. They bound what a handshake can make the other side
// allocate.
constexpr uint32_t kMaxSlotsPerChannel = 1024;
constexpr size_t kMaxSlotBytes = size_t{1} << 30;

std::string milliseconds(Duration value) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(value).count()) + " ms";
}

}  // namespace

Result<void> validate(const EndpointOptions& options) {
  const auto refuse = [](std::string message) {
    return make_error(ErrorCode::invalid_argument, std::move(message));
  };
  if (options.slots_per_channel < 1 || options.slots_per_channel > kMaxSlotsPerChannel) {
    return refuse("slots_per_channel " + std::to_string(options.slots_per_channel) + " is not from 1 to " +
                  std::to_string(kMaxSlotsPerChannel));
  }
  if (options.slot_bytes < 1 || options.slot_bytes > kMaxSlotBytes) {
    return refuse("slot_bytes " + std::to_string(options.slot_bytes) + " is not from 1 to " +
                  std::to_string(kMaxSlotBytes));
  }
  if (options.heartbeat_interval < std::chrono::milliseconds(1)) {
    return refuse("heartbeat_interval " + milliseconds(options.heartbeat_interval) + " is below 1 ms");
  }
  // One lost beat must not be a lost peer.
  if (options.silence_limit < 2 * options.heartbeat_interval) {
    return refuse("silence_limit " + milliseconds(options.silence_limit) +
                  " is below twice heartbeat_interval (" + milliseconds(options.heartbeat_interval) + ")");
  }
  if (options.connect_limit <= Duration::zero()) {
    return refuse("connect_limit " + milliseconds(options.connect_limit) + " is not above 0");
  }
  return {};
}

std::string_view peer_state_name(PeerState state) {
  switch (state) {
    case PeerState::alive:
      return "alive";
    case PeerState::closed:
      return "closed";
    case PeerState::silent:
      return "silent";
    case PeerState::broken:
      return "broken";
  }
  return "broken";
}

}  // namespace tandem
