#include "transport/ucx_path.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>
#include <thread>

#include "transport/endpoint_test_util.h"
#include "transport/socket.h"
#include "transport/tcp_socket.h"
#include "transport/ucx_library.h"

namespace tandem {
namespace {

// Both ends of a tcp connection over this address of the loopback.
std::pair<UniqueFd, UniqueFd> connection(const std::string& host) {
  auto listening = listen_tcp({"ucx", host + ":0"});
  EXPECT_TRUE(listening) << listening.error().message;
  const std::string address = tcp_name_of_local_end(listening->get(), "ucx");
  auto connected = connect_patiently({"ucx", address.substr(6)});
  EXPECT_TRUE(connected) << connected.error().message;
  EXPECT_TRUE(wait_for_socket(listening->get(), false, now() + kPatience));
  auto accepted = accept_connection(listening->get(), address);
  EXPECT_TRUE(accepted);
  return {std::move(*connected), std::move(accepted->socket)};
}

TEST(UcxPath, AProcessOfThisHostIsReachedOverItsLoopbackAndMemory) {
  if (std::getenv("UCX_NET_DEVICES") != nullptr) GTEST_SKIP() << "UCX_NET_DEVICES is set";
  for (const char* host : {"127.0.0.1", "127.9.8.7"}) {
    const auto [one, other] = connection(host);
    for (const int socket : {one.get(), other.get()}) {
      const auto path = ucx_path_of(socket, host_token());
      ASSERT_TRUE(path) << path.error().message;
      EXPECT_EQ(*path, (UcxPath{"lo", true})) << path->text();
    }
  }
}

TEST(UcxPath, MemoryIsSharedWithNobodyWhoDoesNotProveThatHeIsHere) {
  const auto [one, other] = connection("127.0.0.1");
  HostToken token = host_token();
  ASSERT_NE(token, HostToken{});
  EXPECT_EQ(token, host_token());
  token[15] ^= std::byte{1};
  for (const HostToken& peer : {token, HostToken{}}) {
    const auto path = ucx_path_of(one.get(), peer);
    ASSERT_TRUE(path) << path.error().message;
    EXPECT_FALSE(path->shared_memory);
  }
}

TEST(UcxPath, ASocketWithoutAPeerHasNone) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(ucx_path_of(socket.get(), host_token()).error().code, ErrorCode::unavailable);
}

TEST(UcxPath, ConnectionsOverOnePathHaveOneContextAndOthersTheirOwn) {
  const auto library = UcxLibrary::get();
  ASSERT_TRUE(library) << library.error().message;
  const auto loopback = (*library)->context({"lo", true});
  const auto again = (*library)->context({"lo", true});
  const auto network = (*library)->context({"lo", false});
  ASSERT_TRUE(loopback && again && network);
  EXPECT_EQ(*loopback, *again);
  EXPECT_NE(*loopback, *network);
}

}  // namespace
}  // namespace tandem
