// ReservedPort: a TCP port of 127.0.0.1 that a process to come will listen on, chosen now so that others can
// be told. While this lives nobody gets the port from the system; a listener that names it may take it,
// because both sides of Linux's rule hold: the two sockets allow reuse, and this one never listens. One
// thread.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "transport/unique_fd.h"

namespace tandem {

class ReservedPort {
 public:
  // resource_exhausted: no port or no descriptor is left.
  static Result<ReservedPort> create();
  uint16_t port() const { return port_; }

 private:
  UniqueFd socket_;
  uint16_t port_ = 0;
};

}  // namespace tandem
