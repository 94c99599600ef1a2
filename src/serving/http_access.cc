#include "serving/http_access.h"

#include <algorithm>
#include <cstdint>

#include "base/file.h"

namespace tandem {

namespace {

// A thousand keys of a hundred letters have ten times less.
constexpr size_t kMaxKeyFileBytes = 1 << 20;

// Looks at all of `given`, whatever `key` is: the time tells nothing about where they differ.
bool equal_in_constant_time(std::string_view given, std::string_view key) {
  if (key.empty()) return false;
  size_t difference = given.size() ^ key.size();
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<uint8_t>(given[i]) ^ static_cast<uint8_t>(key[i % key.size()]);
  }
  return difference == 0;
}

}  // namespace

bool HttpAccess::is_open(std::string_view path) {
  return path == "/health" || path == "/ready" || path == "/metrics";
}

bool HttpAccess::has_key(std::string_view authorization, std::string_view x_api_key) const {
  if (api_keys.empty()) return true;
  constexpr std::string_view kBearer = "bearer ";
  std::string_view given = x_api_key;
  if (authorization.size() > kBearer.size() &&
      std::equal(kBearer.begin(), kBearer.end(), authorization.begin(),
                 [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); })) {
    given = authorization.substr(kBearer.size());
  }
  bool found = false;
  for (const std::string& key : api_keys) found = equal_in_constant_time(given, key) || found;
  return found;
}

HttpHeaders HttpAccess::cors_headers(std::string_view origin) const {
  if (origin.empty() || allowed_origins.empty()) return {};
  const bool all = std::ranges::find(allowed_origins, "*") != allowed_origins.end();
  if (!all && std::ranges::find(allowed_origins, origin) == allowed_origins.end()) return {};
  // No cookies are used, so that "*" is safe; a named origin makes the reply depend on who asks.
  HttpHeaders out{{"access-control-allow-origin", all ? "*" : std::string(origin)},
                  {"access-control-expose-headers", "x-request-id, request-id, retry-after"}};
  if (!all) out.emplace_back("vary", "origin");
  return out;
}

Result<std::vector<std::string>> read_api_keys(const std::string& path) {
  TANDEM_ASSIGN(const std::string text, read_file(path, kMaxKeyFileBytes));
  std::vector<std::string> keys;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line.front() != '#') keys.push_back(std::move(line));
    at = end + 1;
  }
  if (!keys.empty()) return keys;
  return make_error(ErrorCode::invalid_argument, path + " has no API key: give one a line");
}

}  // namespace tandem
