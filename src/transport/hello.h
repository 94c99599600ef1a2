// Hello: the first thing that each side of a shm or tcp connection says; what both must have in common, and
// the words that refuse a difference. Pure, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "transport/endpoint.h"

namespace tandem {

// What carries the messages that follow the hello.
enum class Carrier : uint32_t {
  messages = 0,  // the connection that carries the hello, or the memory that it hands over
  ucx = 1,       // UCX: workers' addresses follow
};

// Little-endian: 0 magic u32 | 4 version u32 | 8 slots_per_channel u32 | 12 zero u32 | 16 slot_bytes u64 |
// 24 heartbeat_interval in us u64 | 32 silence_limit in us u64 | 40 carrier u32 | 44 security u32 | 48 the
// host's token (ucx_path.h) with carrier ucx, else zero. Magic and version keep their places in every
// version, so that any two releases can name their difference.
struct HelloLayout {
  static constexpr size_t kBytes = 64;
  static constexpr size_t kHostToken = 48;
  static constexpr uint32_t kMagic = 0x48444e54;  // "TNDH"
  static constexpr uint32_t kVersion = 1;

  // With options.adopt the four values are 0: "as you say".
  static std::array<std::byte, kBytes> encode(const EndpointOptions& options,
                                              Carrier carrier = Carrier::messages);
};

// invalid_argument naming the first option that differs, both values and both addresses.
Result<void> match_options(const EndpointOptions& local, std::string_view local_address,
                           const EndpointOptions& remote, std::string_view remote_address);

// Whether the peer may put 0 for slots_per_channel, slot_bytes, heartbeat_interval and silence_limit, each on
// its own: "as you say". A client without the model's files cannot know the slots' size; it learns it from
// the hello that the listening side answers with.
enum class Unstated : uint8_t { refused, adopted };

// The same for a hello as it was received; data_loss: not a hello.
Result<void> match_hello(const EndpointOptions& local, std::string_view local_address,
                         std::span<const std::byte> hello, std::string_view remote_address,
                         Carrier carrier = Carrier::messages, Unstated unstated = Unstated::refused);

// With local.adopt: the options with the four values of a listening side's hello, as `validate` allows them.
// Otherwise, and for what is no hello of this version (match_hello names it), `local` as it is.
Result<EndpointOptions> adopt_hello(const EndpointOptions& local, std::span<const std::byte> hello,
                                    std::string_view remote_address);

}  // namespace tandem
