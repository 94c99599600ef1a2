#include "transport/network_interfaces.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <filesystem>
#include <fstream>

namespace tandem {
namespace {

namespace fs = std::filesystem;

SocketAddress ip(const char* text, unsigned scope = 0) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    address.length = sizeof(*v4);
  } else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_scope_id = scope;
    address.length = sizeof(*v6);
  }
  EXPECT_NE(address.length, 0u) << text;
  return address;
}

std::vector<InterfaceAddress> host() {
  return {{"lo", ip("127.0.0.1"), ip("255.0.0.0"), true},
          {"bridge0", ip("172.17.0.1"), ip("255.255.0.0"), false},
          {"eth0", ip("10.0.0.1"), ip("255.255.255.0"), false},
          {"eth0", ip("fe80::1", 2), ip("ffff:ffff:ffff:ffff::"), false},
          {"eth1", ip("fe80::1", 3), ip("ffff:ffff:ffff:ffff::"), false},
          {"eth1", ip("fd00::5"), ip("ffff:ffff:ffff:ffff::"), false},
          {"lo", ip("::1"), ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), true}};
}

TEST(NetworkInterfaces, TheOneThatHasTheAddress) {
  const auto name = [](const SocketAddress& address) {
    return interface_of(address, host()).value_or("none");
  };
  EXPECT_EQ(name(ip("10.0.0.1")), "eth0");
  EXPECT_EQ(name(ip("172.17.0.1")), "bridge0");
  EXPECT_EQ(name(ip("::ffff:10.0.0.1")), "eth0");
  EXPECT_EQ(name(ip("127.0.0.1")), "lo");
  EXPECT_EQ(name(ip("127.3.2.1")), "lo");  // the kernel gives lo the whole network, and lists one address
  EXPECT_EQ(name(ip("::ffff:127.3.2.1")), "lo");
  EXPECT_EQ(name(ip("::1")), "lo");
  EXPECT_EQ(name(ip("fd00::5")), "eth1");
  EXPECT_EQ(name(ip("fe80::1", 2)), "eth0");
  EXPECT_EQ(name(ip("fe80::1", 3)), "eth1");
  EXPECT_EQ(name(ip("10.0.0.2")), "none");  // on the network of eth0, and somebody else's
  EXPECT_EQ(name(ip("fd00::6")), "none");
  EXPECT_EQ(name({}), "none");
}

TEST(NetworkInterfaces, ThisHostHasALoopback) {
  EXPECT_EQ(interface_of(ip("127.0.0.1"), interface_addresses()), "lo");
}

TEST(NetworkInterfaces, RdmaDevicesAreThoseThatSendThroughTheInterface) {
  const fs::path folder = fs::path(testing::TempDir()) / ("tandem_rdma_" + std::to_string(getpid()));
  const auto write = [&](const fs::path& file, const std::string& text) {
    fs::create_directories((folder / file).parent_path());
    std::ofstream(folder / file) << text;
  };
  write("mlx5_1/ports/1/gid_attrs/ndevs/0", "eth1\n");
  write("mlx5_1/ports/1/gid_attrs/ndevs/1", "eth1\n");
  write("mlx5_1/ports/2/gid_attrs/ndevs/0", "eth2\n");
  write("mlx5_1/ports/2/gid_attrs/ndevs/7", "eth1.100\n");  // a VLAN
  write("mlx5_0/ports/1/gid_attrs/ndevs/0", "");            // an unused GID
  write("mlx5_0/ports/1/state", "4: ACTIVE\n");
  write("mlx5_0/device/net/ib0/dev_port", "0\n");
  write("mlx5_bond_0/ports/1/gid_attrs/ndevs/0", "bond0\n");
  write("mlx4_0/ports/1/state", "4: ACTIVE\n");
  write("mlx4_0/ports/2/state", "4: ACTIVE\n");
  write("mlx4_0/device/net/ib2/dev_port", "1\n");
  write("mlx4_0/device/net/ib3/dev_port", "2\n");  // no such port
  write("mlx4_1/ports/1/gid_attrs/ndevs/0", "eth1\n");
  using Names = std::vector<std::string>;
  const auto of = [&](const std::string& interface) { return rdma_devices_of(interface, folder.string()); };
  EXPECT_EQ(of("eth1"), (Names{"mlx4_1:1", "mlx5_1:1"}));
  EXPECT_EQ(of("eth2"), Names{"mlx5_1:2"});
  EXPECT_EQ(of("eth1.100"), Names{"mlx5_1:2"});
  EXPECT_EQ(of("bond0"), Names{"mlx5_bond_0:1"});
  EXPECT_EQ(of("ib0"), Names{"mlx5_0:1"});
  EXPECT_EQ(of("ib2"), Names{"mlx4_0:2"});
  EXPECT_EQ(of("ib3"), Names{});
  EXPECT_EQ(of("eth9"), Names{});
  EXPECT_EQ(of(""), Names{});
  EXPECT_EQ(rdma_devices_of("eth1", (folder / "missing").string()), Names{});
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tandem
