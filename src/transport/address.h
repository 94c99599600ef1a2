// Addresses of peers, as options and files spell them: "tcp://10.0.0.2:7000", "tcp://[::1]:7000",
// "shm:///run/ffn0.sock", "inproc://ffn0", "ucx://10.0.0.2:7000", and "10.0.0.2:7000" for tcp. Pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

struct Address {
  std::string scheme;  // "tcp", "ucx", "shm", "inproc" or what else stands before "://"
  std::string rest;    // what stands behind it, not empty
};

struct HostPort {
  std::string host;  // without brackets; empty means every interface, for listening only
  uint16_t port = 0;
};

// invalid_argument naming the address and the form that would do. Does not know which schemes exist.
Result<Address> parse_address(std::string_view text);

// The rest of a tcp or ucx address. `whole` is what the message names.
Result<HostPort> parse_host_port(std::string_view text, std::string_view whole);

// "host:port", with brackets around an IPv6 host.
std::string format_host_port(const HostPort& value);

}  // namespace tandem
