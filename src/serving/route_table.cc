#include "serving/route_table.h"

#include <algorithm>
#include <utility>

namespace tandem {

namespace {
bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with("/*")) return pattern == path;
  const std::string_view stem = pattern.substr(0, pattern.size() - 1);
  return path.size() > stem.size() && path.starts_with(stem);
}
}  // namespace

void RouteTable::add(std::string method, std::string pattern, HttpHandler handler) {
  routes_.push_back({std::move(method), std::move(pattern), std::move(handler)});
}

RouteTable::Match RouteTable::find(std::string_view method, std::string_view path) const {
  Match match;
  for (const Route& route : routes_) {
    if (!matches(route.pattern, path)) continue;
    if (route.method == method) {
      match.route = &route;
      return match;
    }
    match.allow += (match.allow.empty() ? "" : ", ") + route.method;
  }
  return match;
}

std::string RouteTable::listing() const {
  std::string text;
  for (const Route& route : routes_) {
    text += (text.empty() ? "" : ", ") + route.method + " " + route.pattern;
  }
  return text;
}

std::string_view route_parameter(std::string_view pattern, std::string_view path) {
  return path.substr(std::min(path.size(), pattern.size() - 1));
}

}  // namespace tandem
