// HttpUrl: where a server is, taken apart. A value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

struct HttpUrl {
  bool is_tls = false;
  std::string host;  // without the brackets of IPv6
  uint16_t port = 80;
  std::string path;  // "" or "/v1": without a slash at its end

  std::string origin() const;       // "http://127.0.0.1:8000"
  std::string host_header() const;  // "127.0.0.1:8000", "[::1]:8000"
};

// "http://host:port/path", https, no port, no path. Refused with the text: other schemes, users, queries,
// fragments, ports that are none.
Result<HttpUrl> parse_http_url(std::string_view text);

}  // namespace tandem
