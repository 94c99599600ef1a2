// UcxPath: over what UCX may reach a peer, read off the connection that reaches it already. Left alone UCX
// takes any device of this host, and one that the peer also has need not lead there: a container bridge has
// the same address on every host. Any thread.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <string>

#include "base/result.h"

namespace tandem {

// Names this host (its boot) and the namespaces of the calling thread in which addresses and shared memory
// mean something (network, IPC, processes, users), and the user. All zero: not known.
using HostToken = std::array<std::byte, 16>;
HostToken host_token();

struct UcxPath {
  // For UCX_NET_DEVICES, separated by commas: the interface that has the connection's local address, and the
  // RDMA devices that send through it.
  std::string devices;
  // UCX's shared memory: only with a peer of the same host and namespaces. Processes of one machine in two
  // network namespaces are two hosts: what is shared would go around the network between them.
  bool shared_memory = false;

  auto operator<=>(const UcxPath&) const = default;
  std::string text() const;  // "eth0,mlx5_0:1, no shared memory"
};

// The path of a connected socket whose peer gave `peer`. unavailable: no interface of this namespace has the
// socket's address, and UCX_NET_DEVICES does not say what to use instead.
Result<UcxPath> ucx_path_of(int socket, const HostToken& peer);

}  // namespace tandem
