// What both ends of an engine connection share: the endpoint's options, an identity, sending. Any thread.
#pragma once

#include <span>

#include "serving/engine_wire.h"
#include "transport/endpoint.h"

namespace tandem {

// Equal on both sides, so that a difference of releases reaches the hello, which names it.
inline constexpr uint32_t kEngineSlots = 8;  // events batch: a slot is taken only as fast as the front reads
// A prompt of 16,000 tokens, or some thousand tokens of answers; larger requests travel in parts.
inline constexpr size_t kEngineSlotBytes = size_t{64} << 10;

EndpointOptions engine_endpoint_options(Duration heartbeat_interval, Duration silence_limit);

// Identity of this process with a fresh incarnation; `shared` has the protocol's version.
EngineIdentity make_engine_identity(std::string role, uint32_t rank);

// A whole message. would_block: no credit now.
Status send_engine_message(Endpoint& endpoint, Channel channel, std::span<const std::byte> message);

}  // namespace tandem
