// RouteTable: which handler answers a method and a path. Filled before the server starts, then read by the
// I/O thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serving/http_types.h"

namespace tandem {

struct Route {
  std::string method;  // "GET" or "POST"
  std::string
      pattern;  // a path, or one that ends in "/*": the rest of the path, with its slashes, is the parameter
  HttpHandler handler;
};

class RouteTable {
 public:
  void add(std::string method, std::string pattern, HttpHandler handler);

  struct Match {
    const Route* route = nullptr;  // nullptr: see `allow`
    std::string allow;             // the methods that this path has, comma separated; empty: no such path
  };
  Match find(std::string_view method, std::string_view path) const;

  // The patterns, for the answer to an unknown path.
  std::string listing() const;

 private:
  std::vector<Route> routes_;
};

// What stands for "*" in a path that matched `pattern`.
std::string_view route_parameter(std::string_view pattern, std::string_view path);

}  // namespace tandem
