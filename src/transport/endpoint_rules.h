// What the endpoints of every transport check and say alike. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "transport/endpoint.h"

namespace tandem {

// A message may have these bytes on this channel: invalid_argument, or out_of_range above slot_bytes.
Result<void> check_message(const EndpointOptions& options, const std::string& peer_name, Channel channel,
                           size_t bytes);

// A commit's bytes fit the slot that was acquired; out_of_range.
Result<void> check_commit(const SendSlot& slot, size_t bytes, size_t slot_bytes);

// Bytes from slot to slot of a channel: messages begin on cache lines.
size_t slot_stride(size_t slot_bytes);

std::unexpected<Error> slot_not_acquired();

// The error of a call that needs a living peer.
std::unexpected<Error> peer_unavailable(const std::string& peer_name, PeerState state);

// The one line about a peer that is gone; a warning unless it left in order.
void log_lost_peer(const std::string& peer_name, PeerState state, std::string_view reason, bool orderly);

}  // namespace tandem
