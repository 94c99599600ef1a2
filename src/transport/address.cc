#include "transport/address.h"

#include <charconv>

namespace tandem {
namespace {

constexpr std::string_view kForms =
    "use tcp://host:port, ucx://host:port, shm:///path/of/socket or inproc://name";

std::unexpected<Error> bad(std::string_view whole, std::string_view why) {
  return make_error(ErrorCode::invalid_argument,
                    "address \"" + std::string(whole) + "\": " + std::string(why));
}

}  // namespace

Result<Address> parse_address(std::string_view text) {
  if (text.empty()) return bad(text, "is empty; " + std::string(kForms));
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f) {
      return bad(text, "has a space or a control character; " + std::string(kForms));
    }
  }
  const size_t mark = text.find("://");
  if (mark == std::string_view::npos) return Address{"tcp", std::string(text)};
  Address address{std::string(text.substr(0, mark)), std::string(text.substr(mark + 3))};
  if (address.scheme.empty()) return bad(text, "has no scheme before \"://\"; " + std::string(kForms));
  if (address.rest.empty()) return bad(text, "has nothing behind \"://\"; " + std::string(kForms));
  return address;
}

Result<HostPort> parse_host_port(std::string_view text, std::string_view whole) {
  std::string_view host;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return bad(whole, "\"[\" without \"]\"; write IPv6 as [::1]:7000");
    host = text.substr(1, end - 1);
    if (host.empty()) return bad(whole, "nothing between \"[\" and \"]\"; write IPv6 as [::1]:7000");
    if (end + 1 >= text.size() || text[end + 1] != ':') return bad(whole, "has no port; write [::1]:7000");
    port = text.substr(end + 2);
  } else {
    const size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return bad(whole, "has no port; write host:port");
    host = text.substr(0, colon);
    if (host.find(':') != std::string_view::npos) return bad(whole, "IPv6 needs brackets; write [::1]:7000");
    port = text.substr(colon + 1);
  }
  if (host.find('/') != std::string_view::npos) return bad(whole, "the host has a \"/\"; write host:port");
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (port.empty() || error != std::errc() || end != port.data() + port.size() || number > 65535) {
    return bad(whole, "port \"" + std::string(port) + "\" is not a number from 0 to 65535");
  }
  return HostPort{std::string(host), static_cast<uint16_t>(number)};
}

std::string format_host_port(const HostPort& value) {
  const bool is_ipv6 = value.host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + value.host + "]" : value.host) + ":" + std::to_string(value.port);
}

}  // namespace tandem
