#include "serving/http_url.h"

#include <charconv>

namespace tandem {

std::string HttpUrl::host_header() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return name + ":" + std::to_string(port);
}

std::string HttpUrl::origin() const {
  return (is_tls ? "https://" : "http://") + host_header();
}

Result<HttpUrl> parse_http_url(std::string_view text) {
  const auto refuse = [&](const std::string& why) {
    return make_error(ErrorCode::invalid_argument,
                      "'" + std::string(text) + "': " + why + "; use one such as http://127.0.0.1:8000");
  };
  HttpUrl url;
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    url.is_tls = true;
    url.port = 443;
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else {
    return refuse("not a URL of http or https");
  }
  if (rest.find_first_of("?#@ \r\n") != std::string_view::npos)
    return refuse("a user, a query, a fragment or a space has no place here");
  const size_t slash = rest.find('/');
  std::string_view place = rest.substr(0, slash);
  if (slash != std::string_view::npos) url.path = rest.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();

  if (place.starts_with('[')) {
    const size_t end = place.find(']');
    if (end == std::string_view::npos) return refuse("a [ without its ]");
    url.host = place.substr(1, end - 1);
    place.remove_prefix(end + 1);
  } else {
    url.host = place.substr(0, place.find(':'));
    place.remove_prefix(url.host.size());
  }
  if (url.host.empty()) return refuse("no host");
  if (place.empty()) return url;
  place.remove_prefix(1);
  const auto [end, error] = std::from_chars(place.data(), place.data() + place.size(), url.port);
  if (error != std::errc() || end != place.data() + place.size() || url.port == 0)
    return refuse("'" + std::string(place) + "' is not a port");
  return url;
}

}  // namespace tandem
