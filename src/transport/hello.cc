#include "transport/hello.h"

#include <algorithm>
#include <string>

#include "transport/little_endian.h"

namespace tandem {
namespace {

uint64_t microseconds(Duration value) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(value).count());
}

struct Terms {
  uint64_t version, slots_per_channel, slot_bytes, heartbeat_us, silence_us;
};

Terms terms_of(const EndpointOptions& options) {
  return {HelloLayout::kVersion, options.slots_per_channel, options.slot_bytes,
          microseconds(options.heartbeat_interval), microseconds(options.silence_limit)};
}

Result<void> match(const Terms& local, std::string_view local_address, const Terms& remote,
                   std::string_view remote_address, std::string_view slot_bytes_remedy) {
  const auto compare = [&](std::string_view name, uint64_t mine, uint64_t theirs, std::string_view unit,
                           std::string_view remedy) -> Result<void> {
    if (mine == theirs) return {};
    return make_error(ErrorCode::invalid_argument,
                      std::string(name) + " differs: " + std::to_string(mine) + std::string(unit) + " at " +
                          std::string(local_address) + " (this side), " + std::to_string(theirs) +
                          std::string(unit) + " at " + std::string(remote_address) + "; " +
                          std::string(remedy));
  };
  constexpr std::string_view same_value = "set the same value on both sides";
  TANDEM_TRY(compare("transport version", local.version, remote.version, "",
                     "install the same release on both sides"));
  TANDEM_TRY(compare("slots_per_channel", local.slots_per_channel, remote.slots_per_channel, "", same_value));
  TANDEM_TRY(compare("slot_bytes", local.slot_bytes, remote.slot_bytes, "", slot_bytes_remedy));
  TANDEM_TRY(compare("heartbeat_interval", local.heartbeat_us, remote.heartbeat_us, " us", same_value));
  TANDEM_TRY(compare("silence_limit", local.silence_us, remote.silence_us, " us", same_value));
  return {};
}

SecurityMode mode_of(const EndpointOptions& options) {
  return options.security ? options.security->mode() : SecurityMode::none;
}

// What makes a connection of `mode`, as a remedy names it.
std::string_view flags_of(SecurityMode mode) {
  return mode == SecurityMode::key   ? "--peer-key-file"
         : mode == SecurityMode::tls ? "--peer-tls-certificate, --peer-tls-key and --peer-tls-ca"
                                     : "";
}

Result<void> match_security(SecurityMode local, std::string_view local_address, uint32_t theirs,
                            std::string_view remote_address) {
  const auto mine = static_cast<uint32_t>(local);
  if (mine == theirs) return {};
  const std::string_view missing_here = flags_of(static_cast<SecurityMode>(theirs));
  const std::string remedy =
      !missing_here.empty() ? "give this side " + std::string(missing_here) + " as well, or that side none"
      : theirs == 0         ? "give that side " + std::string(flags_of(local)) + " as well"
                            : "install the same release on both sides";
  return make_error(ErrorCode::invalid_argument, "security differs: " + security_name(mine) + " at " +
                                                     std::string(local_address) + " (this side), " +
                                                     security_name(theirs) + " at " +
                                                     std::string(remote_address) + "; " + remedy);
}

}  // namespace

std::array<std::byte, HelloLayout::kBytes> HelloLayout::encode(const EndpointOptions& options,
                                                               Carrier carrier) {
  const Terms terms = terms_of(options);
  std::array<std::byte, kBytes> bytes{};
  store_little_endian<uint32_t>(&bytes[0], kMagic);
  store_little_endian<uint32_t>(&bytes[4], kVersion);
  if (!options.adopt) {
    store_little_endian<uint32_t>(&bytes[8], options.slots_per_channel);
    store_little_endian<uint64_t>(&bytes[16], terms.slot_bytes);
    store_little_endian<uint64_t>(&bytes[24], terms.heartbeat_us);
    store_little_endian<uint64_t>(&bytes[32], terms.silence_us);
  }
  store_little_endian<uint32_t>(&bytes[40], static_cast<uint32_t>(carrier));
  store_little_endian<uint32_t>(&bytes[44], static_cast<uint32_t>(mode_of(options)));
  return bytes;
}

Result<void> match_options(const EndpointOptions& local, std::string_view local_address,
                           const EndpointOptions& remote, std::string_view remote_address) {
  return match(terms_of(local), local_address, terms_of(remote), remote_address, local.slot_bytes_remedy);
}

Result<void> match_hello(const EndpointOptions& local, std::string_view local_address,
                         std::span<const std::byte> hello, std::string_view remote_address, Carrier carrier,
                         Unstated unstated) {
  if (hello.size() < HelloLayout::kBytes || load_little_endian<uint32_t>(&hello[0]) != HelloLayout::kMagic) {
    return make_error(
        ErrorCode::data_loss,
        std::string(remote_address) + " does not speak Tandem's transport (no hello); check the address");
  }
  const Terms ours = terms_of(local);
  Terms remote{load_little_endian<uint32_t>(&hello[4]), load_little_endian<uint32_t>(&hello[8]),
               load_little_endian<uint64_t>(&hello[16]), load_little_endian<uint64_t>(&hello[24]),
               load_little_endian<uint64_t>(&hello[32])};
  if (unstated == Unstated::adopted) {
    if (remote.slots_per_channel == 0) remote.slots_per_channel = ours.slots_per_channel;
    if (remote.slot_bytes == 0) remote.slot_bytes = ours.slot_bytes;
    if (remote.heartbeat_us == 0) remote.heartbeat_us = ours.heartbeat_us;
    if (remote.silence_us == 0) remote.silence_us = ours.silence_us;
  }
  if (remote.version == HelloLayout::kVersion) {
    TANDEM_TRY(match_security(mode_of(local), local_address, load_little_endian<uint32_t>(&hello[44]),
                              remote_address));
  }
  TANDEM_TRY(match(ours, local_address, remote, remote_address, local.slot_bytes_remedy));
  const auto theirs = load_little_endian<uint32_t>(&hello[40]);
  if (theirs != static_cast<uint32_t>(carrier)) {
    const auto name = [](uint32_t value) {
      return value == static_cast<uint32_t>(Carrier::ucx) ? "ucx" : "tcp";
    };
    return make_error(ErrorCode::invalid_argument,
                      std::string("transport differs: ") + name(static_cast<uint32_t>(carrier)) + " at " +
                          std::string(local_address) + " (this side), " + name(theirs) + " at " +
                          std::string(remote_address) + "; use the same scheme on both sides");
  }
  return {};
}

Result<EndpointOptions> adopt_hello(const EndpointOptions& local, std::span<const std::byte> hello,
                                    std::string_view remote_address) {
  if (!local.adopt || hello.size() < HelloLayout::kBytes ||
      load_little_endian<uint32_t>(&hello[0]) != HelloLayout::kMagic ||
      load_little_endian<uint32_t>(&hello[4]) != HelloLayout::kVersion) {
    return local;
  }
  // More would overflow as a Duration; `validate` has the closer bounds.
  constexpr uint64_t kMaxMicroseconds = uint64_t{1} << 40;
  const auto time = [&](size_t at) {
    return std::chrono::microseconds(std::min(load_little_endian<uint64_t>(&hello[at]), kMaxMicroseconds));
  };
  EndpointOptions agreed = local;
  agreed.adopt = false;
  agreed.slots_per_channel = load_little_endian<uint32_t>(&hello[8]);
  agreed.slot_bytes = load_little_endian<uint64_t>(&hello[16]);
  agreed.heartbeat_interval = time(24);
  agreed.silence_limit = time(32);
  if (const auto valid = validate(agreed); !valid) {
    return make_error(ErrorCode::data_loss, std::string(remote_address) + " offers " + valid.error().message);
  }
  return agreed;
}

}  // namespace tandem
