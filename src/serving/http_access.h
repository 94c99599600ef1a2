// HttpAccess: who may use a server: its API keys, and the web pages (origins) whose scripts may. Immutable
// once the server runs; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serving/http_types.h"

namespace tandem {

struct HttpAccess {
  std::vector<std::string> api_keys;         // one of them must come with a request; empty: none is asked for
  std::vector<std::string> allowed_origins;  // "https://chat.example.org", or "*" for all; empty: no scripts

  // Paths that answer without a key: what load balancers and monitors ask.
  static bool is_open(std::string_view path);
  // Whether a request with these headers has a key: "Authorization: Bearer KEY", or "x-api-key: KEY". Takes
  // the same time wherever a wrong key differs.
  bool has_key(std::string_view authorization, std::string_view x_api_key) const;
  bool has_key(const HttpRequest& request) const {
    return has_key(request.header("authorization"), request.header("x-api-key"));
  }
  // The headers that let a page of `origin` read a reply; none where it may not, or sent no origin.
  HttpHeaders cors_headers(std::string_view origin) const;
};

// The keys of a file: one a line; empty lines and those that begin with # are none. Errors name the file.
Result<std::vector<std::string>> read_api_keys(const std::string& path);

}  // namespace tandem
