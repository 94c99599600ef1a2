#include "transport/network_interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <span>

namespace tandem {
namespace {

namespace fs = std::filesystem;

SocketAddress copy_address(const sockaddr* address) {
  SocketAddress copy;
  if (address == nullptr) return copy;
  if (address->sa_family == AF_INET) copy.length = sizeof(sockaddr_in);
  if (address->sa_family == AF_INET6) copy.length = sizeof(sockaddr_in6);
  std::memcpy(&copy.storage, address, copy.length);
  return copy;
}

// The bytes of an IP address, 4 or 16 of them; empty: another family.
std::vector<std::byte> address_bytes(const SocketAddress& address) {
  const auto bytes = [](const void* from, size_t count) {
    const auto* first = static_cast<const std::byte*>(from);
    return std::vector<std::byte>(first, first + count);
  };
  if (address.family() == AF_INET)
    return bytes(&reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr, 4);
  if (address.family() != AF_INET6) return {};
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return bytes(&v6.s6_addr[12], 4);
  return bytes(&v6, 16);
}

// A link-local address says its interface itself: the same one may be on several.
unsigned scope_of(const SocketAddress& address) {
  if (address.family() != AF_INET6) return 0;
  return reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_scope_id;
}

bool same_network(const std::vector<std::byte>& one, const std::vector<std::byte>& other,
                  const std::vector<std::byte>& netmask) {
  if (one.size() != other.size() || one.size() != netmask.size()) return false;
  for (size_t i = 0; i < one.size(); ++i) {
    if ((one[i] & netmask[i]) != (other[i] & netmask[i])) return false;
  }
  return true;
}

// What is in a folder, sorted; nothing when it cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed))
    entries.push_back(it->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

// The kernel answers a read of an unused GID with an error: an empty line here.
std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    InterfaceAddress each{entry->ifa_name, copy_address(entry->ifa_addr), copy_address(entry->ifa_netmask),
                          (entry->ifa_flags & IFF_LOOPBACK) != 0};
    if (each.address.length != 0) found.push_back(std::move(each));
  }
  return found;
}

std::optional<std::string> interface_of(const SocketAddress& address,
                                        const std::vector<InterfaceAddress>& interfaces) {
  const auto wanted = address_bytes(address);
  if (wanted.empty()) return std::nullopt;
  for (const InterfaceAddress& each : interfaces) {
    const unsigned scope = scope_of(address);
    if (address_bytes(each.address) == wanted && (scope == 0 || scope == scope_of(each.address)))
      return each.name;
  }
  for (const InterfaceAddress& each : interfaces) {
    if (each.loopback && same_network(address_bytes(each.address), wanted, address_bytes(each.netmask)))
      return each.name;
  }
  return std::nullopt;
}

std::vector<std::string> rdma_devices_of(const std::string& interface, const std::string& folder) {
  std::set<std::string> found;
  if (interface.empty()) return {};  // an unused GID has no name either
  for (const fs::path& device : entries_of(folder)) {
    const std::vector<fs::path> ports = entries_of(device / "ports");
    for (const fs::path& port : ports) {
      for (const fs::path& gid : entries_of(port / "gid_attrs" / "ndevs")) {
        if (first_line(gid) == interface) {
          found.insert(device.filename().string() + ":" + port.filename().string());
          break;
        }
      }
    }
    const fs::path own = device / "device" / "net" / interface;
    std::error_code failed;
    if (!fs::exists(own, failed)) continue;
    // The interface's port of the device counts from 0, the ports of the device from 1.
    const std::string text = first_line(own / "dev_port");
    const std::string port = text.size() == 1 && text[0] >= '0' && text[0] <= '8'
                                 ? std::string(1, static_cast<char>(text[0] + 1))
                                 : "1";
    if (fs::exists(device / "ports" / port, failed)) found.insert(device.filename().string() + ":" + port);
  }
  return {found.begin(), found.end()};
}

}  // namespace tandem
