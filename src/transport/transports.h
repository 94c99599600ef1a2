// The transports that this build has: one table that `listen`, `connect` and `tandem doctor` read. Any
// thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "transport/address.h"
#include "transport/connecting.h"
#include "transport/endpoint.h"

namespace tandem {

struct Transport {
  std::string_view scheme;
  std::string_view form;     // "tcp://host:port"
  std::string_view purpose;  // one line for doctor and help
  bool strangers = false;    // anybody who reaches the address may call: EndpointOptions::security matters
  Result<std::unique_ptr<Listener>> (*listen)(const Address& address, const EndpointOptions& options);
  Result<std::unique_ptr<Connecting>> (*connect)(const Address& address, const EndpointOptions& options);
};

std::span<const Transport> transports();

}  // namespace tandem
