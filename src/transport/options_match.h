// What both sides of a connection must have in common, and the words that refuse a difference. Pure, any thread.
#pragma once

#include <string_view>

#include "transport/endpoint.h"

namespace tandem {

// invalid_argument naming the first option that differs, both values and both addresses.
Result<void> match_options(const EndpointOptions& local, std::string_view local_address, const EndpointOptions& remote,
                           std::string_view remote_address);

}  // namespace tandem
