#include "serving/engine_link.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>

namespace tandem {

EndpointOptions engine_endpoint_options(Duration heartbeat_interval, Duration silence_limit) {
  EndpointOptions options;
  options.slots_per_channel = kEngineSlots;
  options.slot_bytes = kEngineSlotBytes;
  options.heartbeat_interval = heartbeat_interval;
  options.silence_limit = silence_limit;
  return options;
}

EngineIdentity make_engine_identity(std::string role, uint32_t rank) {
  std::array<char, 256> host{};
  const bool named = gethostname(host.data(), host.size() - 1) == 0;
  std::random_device random;
  EngineIdentity identity;
  identity.role = std::move(role);
  identity.rank = rank;
  identity.name = fmt::format("{}:{}", named ? host.data() : "unknown-host", getpid());
  identity.incarnation = (uint64_t{random()} << 32) | random();
  identity.shared.emplace_back("engine_protocol",
                               fmt::format("{}.{}", EngineHead::kMajor, EngineHead::kMinor));
  return identity;
}

Status send_engine_message(Endpoint& endpoint, Channel channel, std::span<const std::byte> message) {
  TANDEM_ASSIGN(const SendSlot slot, endpoint.acquire(channel, message.size()));
  std::memcpy(slot.bytes.data(), message.data(), message.size());
  return endpoint.commit(slot, message.size());
}

}  // namespace tandem
