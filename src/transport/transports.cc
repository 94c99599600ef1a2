#include "transport/transports.h"

#include <array>

#include "transport/inproc.h"
#include "transport/shm.h"
#include "transport/tcp.h"
#include "transport/ucx.h"

namespace tandem {
namespace {

constexpr std::array kTransports{
    Transport{"inproc", "inproc://name", "threads of one process", false, inproc::listen, inproc::connect},
    Transport{"shm", "shm:///path/of/socket", "processes of one user on one host, without copies", false,
              shm::listen, shm::connect},
    Transport{"tcp", "tcp://host:port", "processes on any hosts", true, tcp::listen, tcp::connect},
    Transport{"ucx", "ucx://host:port", "processes on any hosts, over RDMA and what else UCX finds", true,
              ucx::listen, ucx::connect},
};

Result<const Transport*> find_transport(const Address& address) {
  std::string known;
  for (const Transport& transport : kTransports) {
    if (transport.scheme == address.scheme) return &transport;
    known += (known.empty() ? "" : ", ") + std::string(transport.form);
  }
  return make_error(ErrorCode::unsupported, "address \"" + address.scheme + "://" + address.rest +
                                                "\": unknown scheme \"" + address.scheme +
                                                "\"; use one of: " + known);
}

EndpointOptions for_transport(const EndpointOptions& options, const Transport& transport) {
  EndpointOptions mine = options;
  if (!transport.strangers) mine.security = nullptr;
  return mine;
}

}  // namespace

std::span<const Transport> transports() {
  return kTransports;
}

Result<std::unique_ptr<Listener>> listen(const std::string& address, const EndpointOptions& options) {
  TANDEM_TRY(validate(options));
  TANDEM_ASSIGN(const Address parsed, parse_address(address));
  TANDEM_ASSIGN(const Transport* transport, find_transport(parsed));
  return transport->listen(parsed, for_transport(options, *transport));
}

Result<std::unique_ptr<Connecting>> start_connecting(const std::string& address,
                                                     const EndpointOptions& options) {
  TANDEM_TRY(validate(options));
  TANDEM_ASSIGN(const Address parsed, parse_address(address));
  TANDEM_ASSIGN(const Transport* transport, find_transport(parsed));
  return transport->connect(parsed, for_transport(options, *transport));
}

Result<std::unique_ptr<Endpoint>> connect(const std::string& address, const EndpointOptions& options,
                                          const std::atomic<bool>& stop) {
  TANDEM_ASSIGN(const auto connecting, start_connecting(address, options));
  for (;;) {
    auto endpoint = connecting->advance();
    if (!endpoint || *endpoint != nullptr) return endpoint;
    if (stop.load()) return make_error(ErrorCode::cancelled, "connecting to " + address + ": stopped");
    std::vector<pollfd> wanted = connecting->waits_for();
    ::poll(wanted.data(), wanted.size(),
           static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(kConnectingPause).count()));
  }
}

Result<std::unique_ptr<Endpoint>> connect(const std::string& address, const EndpointOptions& options) {
  const std::atomic<bool> never = false;
  return connect(address, options, never);
}

}  // namespace tandem
