// Words for errno, shared by the transports. Any thread.
#pragma once

#include <string>
#include <system_error>

namespace tandem {

// "Connection refused": what the system says, without the risk of strerror's shared buffer.
inline std::string system_message(int error_number) {
  return std::generic_category().message(error_number);
}

}  // namespace tandem
