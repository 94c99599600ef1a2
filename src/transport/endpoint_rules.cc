#include "transport/endpoint_rules.h"

#include "base/buffer.h"
#include "base/log.h"

namespace tandem {

Result<void> check_message(const EndpointOptions& options, const std::string& peer_name, Channel channel,
                           size_t bytes) {
  if (bytes == 0 || static_cast<size_t>(channel) >= kNumChannels) {
    return make_error(ErrorCode::invalid_argument, "a message needs a channel and at least one byte");
  }
  if (bytes > options.slot_bytes) {
    return make_error(ErrorCode::out_of_range, "message of " + std::to_string(bytes) + " bytes to " +
                                                   peer_name + " is larger than slot_bytes " +
                                                   std::to_string(options.slot_bytes));
  }
  return {};
}

Result<void> check_commit(const SendSlot& slot, size_t bytes, size_t slot_bytes) {
  if (bytes <= slot.bytes.size() && bytes <= slot_bytes) return {};
  return make_error(ErrorCode::out_of_range, "commit of " + std::to_string(bytes) +
                                                 " bytes in a slot acquired for " +
                                                 std::to_string(slot.bytes.size()));
}

size_t slot_stride(size_t slot_bytes) {
  return (slot_bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

std::unexpected<Error> slot_not_acquired() {
  return make_error(ErrorCode::invalid_argument, "commit of a slot that is not acquired");
}

std::unexpected<Error> peer_unavailable(const std::string& peer_name, PeerState state) {
  // Another thread may have found the connection gone before the poller has noted it: alive means closed
  // here.
  const PeerState seen = state == PeerState::alive ? PeerState::closed : state;
  return make_error(ErrorCode::unavailable,
                    "peer " + peer_name + " is " + std::string(peer_state_name(seen)));
}

void log_lost_peer(const std::string& peer_name, PeerState state, std::string_view reason, bool orderly) {
  const std::string line =
      "peer " + peer_name + " is " + std::string(peer_state_name(state)) + ": " + std::string(reason);
  orderly ? log_info(line) : log_warning(line);
}

}  // namespace tandem
