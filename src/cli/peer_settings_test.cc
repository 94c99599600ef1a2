#include "cli/peer_settings.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>

namespace tandem {
namespace {

TEST(PeerSettings, OnlyLoopbackListensWhereNobodyMustShowWhoHeIs) {
  const AfdSettings plain;
  for (const char* local :
       {"tcp://127.0.0.1:7000", "127.3.2.1:0", "tcp://localhost:1", "tcp://[::1]:7000", "ucx://127.0.0.1:0",
        "tcp://[::ffff:127.0.0.1]:7000", "shm:///run/ffn.sock", "inproc://ffn"}) {
    EXPECT_TRUE(check_listen_address(plain, "afd.listen", local)) << local;
  }
  for (const char* open :
       {"tcp://0.0.0.0:7000", "tcp://10.0.0.2:0", "tcp://[::]:7000", "tcp://:7000", "ucx://10.0.0.2:7000",
        "10.0.0.2:7000", "tcp://127.0.0.1.example.org:7000", "tcp://node1:7000", "tcp://[fe80::1]:7000"}) {
    const Status refused = check_listen_address(plain, "afd.listen", open);
    ASSERT_FALSE(refused) << open;
    EXPECT_EQ(
        refused.error().message,
        "afd.listen: other hosts reach " + std::string(open) +
            " and nothing says who may use it; give all ranks the same --peer-key-file, or "
            "certificates (--peer-tls-certificate), or say --insecure on a network that nobody else is in");
    AfdSettings insecure;
    insecure.insecure = true;
    EXPECT_TRUE(check_listen_address(insecure, "afd.listen", open)) << open;
    AfdSettings keyed;
    keyed.peer_key_file = "/etc/tandem/peer.key";
    EXPECT_TRUE(check_listen_address(keyed, "afd.listen", open)) << open;
  }
}

TEST(PeerSettings, AKeyIsReadAndPassedOn) {
  AfdSettings afd;
  auto none = peer_security(afd);
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
  EXPECT_TRUE(peer_arguments(afd).empty());

  afd.peer_key_file = testing::TempDir() + "/tandem_peer_settings.key";
  std::ofstream(afd.peer_key_file) << std::string(64, 'f') << "\n";
  ::chmod(afd.peer_key_file.c_str(), 0600);
  auto read = peer_security(afd);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ((*read)->mode(), SecurityMode::key);
  EXPECT_EQ(peer_arguments(afd), std::vector<std::string>{"--peer-key-file=" + afd.peer_key_file});

  ::chmod(afd.peer_key_file.c_str(), 0644);
  read = peer_security(afd);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().message, "afd.peer_key_file: peer key " + afd.peer_key_file +
                                      ": others than its owner may use it; chmod 600 " + afd.peer_key_file);
  std::remove(afd.peer_key_file.c_str());
}

TEST(PeerSettings, FilesThatDoNotGoTogetherAreRefusedByName) {
  const auto expect = [](const Settings& settings, const std::string& message) {
    const auto refused = validate(settings);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, message);
  };
  Settings settings;
  settings.afd.peer_tls_certificate = "rank.pem";
  settings.afd.peer_tls_ca = "ca.pem";
  expect(settings,
         "TLS between ranks without afd.peer_tls_key is not supported; use all three files, or none of them");
  settings.afd.peer_tls_key = "rank.key";
  EXPECT_TRUE(validate(settings));
  EXPECT_TRUE(check_listen_address(settings.afd, "afd.listen", "tcp://0.0.0.0:7000"));
  EXPECT_EQ(peer_arguments(settings.afd),
            (std::vector<std::string>{"--peer-tls-certificate=rank.pem", "--peer-tls-key=rank.key",
                                      "--peer-tls-ca=ca.pem"}));
  EXPECT_EQ(peer_security(settings.afd).error().message.substr(0, 27), "TLS between ranks: rank.pem");
  settings.afd.peer_key_file = "peer.key";
  expect(settings,
         "afd.peer_key_file with afd.peer_tls_certificate is not supported; use one of the two: TLS already "
         "shows "
         "who a peer is");
  settings.afd.peer_key_file.clear();
  for (const bool starts_ranks : {true, false}) {
    Settings over_ucx = settings;
    if (starts_ranks) over_ucx.up.transport = "ucx";
    if (!starts_ranks) over_ucx.afd.ffn = {"tcp://10.0.0.2:7000", "ucx://10.0.0.3:7000"};
    expect(over_ucx,
           "afd.peer_tls_certificate with ucx is not supported; use tcp, or afd.peer_key_file: ucx encrypts "
           "nothing");
  }
}

}  // namespace
}  // namespace tandem
