#include "transport/ucx_path.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "transport/little_endian.h"
#include "transport/network_interfaces.h"

namespace tandem {
namespace {

// FNV-1a, 64 bits. Nobody is kept out by it: it makes names of one length.
uint64_t hash_text(const std::string& text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325 ^ seed;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// "net:[4026531840]"; empty: not known.
std::string name_of_namespace(const char* kind) {
  std::array<char, 64> target;
  const ssize_t length =
      readlink((std::string("/proc/thread-self/ns/") + kind).c_str(), target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<size_t>(length)) : std::string();
}

}  // namespace

HostToken host_token() {
  HostToken token{};
  std::ifstream stream("/proc/sys/kernel/random/boot_id");
  std::string text;
  if (!std::getline(stream, text) || text.empty()) return token;
  for (const char* kind : {"net", "ipc", "pid", "user"}) {
    const std::string name = name_of_namespace(kind);
    if (name.empty()) return token;
    text += " " + name;
  }
  text += " " + std::to_string(geteuid());  // another user's memory cannot be opened
  store_little_endian<uint64_t>(&token[0], hash_text(text, 0));
  store_little_endian<uint64_t>(&token[8], hash_text(text, 1));
  return token;
}

std::string UcxPath::text() const {
  return devices + (shared_memory ? ", shared memory" : ", no shared memory");
}

Result<UcxPath> ucx_path_of(int socket, const HostToken& peer) {
  SocketAddress local, remote;
  local.length = remote.length = sizeof(local.storage);
  if (getsockname(socket, local.get(), &local.length) != 0 ||
      getpeername(socket, remote.get(), &remote.length) != 0) {
    return make_error(ErrorCode::unavailable, "the other side closed the connection; its log says why");
  }
  const auto interfaces = interface_addresses();
  const auto interface = interface_of(local, interfaces);
  if (!interface && std::getenv("UCX_NET_DEVICES") == nullptr) {
    return make_error(ErrorCode::unavailable, "no network interface here has the address of " +
                                                  tcp_name(local, "ucx") +
                                                  "; set UCX_NET_DEVICES on both sides, or use tcp://");
  }
  UcxPath path{interface.value_or(""), false};
  for (const std::string& device : rdma_devices_of(path.devices)) path.devices += "," + device;
  // Equal tokens alone could be two machines woken from one image, and a local address alone a port that is
  // forwarded to another host.
  path.shared_memory = peer != HostToken{} && peer == host_token() && interface_of(remote, interfaces);
  return path;
}

}  // namespace tandem
