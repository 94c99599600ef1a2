// Words and errors for errno, shared by the transports. Any thread.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

#include "base/result.h"

namespace tandem {

// "Connection refused": what the system says, without the risk of strerror's shared buffer.
inline std::string system_message(int error_number) {
  return std::generic_category().message(error_number);
}

// resource_exhausted, of a call that has just failed to make a descriptor: `what` of, and what would do.
inline std::unexpected<Error> no_descriptor(std::string_view what) {
  return make_error(ErrorCode::resource_exhausted, std::string(what) + ": " + system_message(errno) +
                                                       "; raise the limit of open files (ulimit -n)");
}

}  // namespace tandem
