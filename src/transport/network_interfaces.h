// Network interfaces of this network namespace, and the RDMA devices beside them: which one a connected
// socket uses. Asks the system anew at every call. Any thread; the namespace is the calling thread's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/socket.h"

namespace tandem {

// One address of one interface.
struct InterfaceAddress {
  std::string name;  // "eth0"
  SocketAddress address;
  SocketAddress netmask;  // of length 0: none
  bool loopback = false;
};
std::vector<InterfaceAddress> interface_addresses();

// The interface that has this address (an IPv4 address may be written as IPv6). An address of the network of
// a loopback interface is that interface's, as the kernel sees 127.0.0.0/8. None: nobody's here.
std::optional<std::string> interface_of(const SocketAddress& address,
                                        const std::vector<InterfaceAddress>& interfaces);

// The ports of RDMA devices that send through this interface, as UCX names them ("mlx5_0:1"), in order. A
// port belongs to the interface when one of its GIDs does (RoCE, also over a bond or a VLAN), or when the
// interface is the device's own (IP over InfiniBand). `folder`: where the kernel lists RDMA devices.
std::vector<std::string> rdma_devices_of(const std::string& interface,
                                         const std::string& folder = "/sys/class/infiniband");

}  // namespace tandem
