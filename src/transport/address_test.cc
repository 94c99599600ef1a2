#include "transport/address.h"

#include <gtest/gtest.h>

#include "transport/endpoint.h"

namespace tandem {
namespace {

TEST(Address, Forms) {
  EXPECT_EQ(parse_address("10.0.0.2:7000")->scheme, "tcp");
  EXPECT_EQ(parse_address("10.0.0.2:7000")->rest, "10.0.0.2:7000");
  EXPECT_EQ(parse_address("shm:///run/ffn0.sock")->rest, "/run/ffn0.sock");
  EXPECT_EQ(parse_address("inproc://ffn0")->scheme, "inproc");
}

TEST(Address, HostAndPort) {
  const auto parse = [](std::string_view text) { return parse_host_port(text, text); };
  EXPECT_EQ(parse("ffn0.local:7000")->host, "ffn0.local");
  EXPECT_EQ(parse("ffn0.local:7000")->port, 7000);
  EXPECT_EQ(parse("[::1]:65535")->host, "::1");
  EXPECT_EQ(parse("[::1]:65535")->port, 65535);
  EXPECT_EQ(parse(":7000")->host, "");
  EXPECT_EQ(format_host_port({"::1", 5}), "[::1]:5");
  EXPECT_EQ(format_host_port({"a", 5}), "a:5");
  for (const char* bad : {"host", "host:", "host:70000", "host:-1", "host:7x", "::1:7000", "[::1]",
                          "[::1:7000", "[]:7", "[::1]7000", "a/b:7", "host:99999999999999999999"}) {
    const auto parsed = parse(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(parsed.error().message.find(bad), std::string::npos) << parsed.error().message;
  }
}

TEST(Address, BadTextIsRefusedByName) {
  for (const char* bad : {"", "tcp://", "://x", "tcp://a b:1", "shm://a\n"}) {
    EXPECT_FALSE(parse_address(bad)) << bad;
  }
  const auto unknown = connect("rdma://10.0.0.2:7000", {});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::unsupported);
  EXPECT_NE(unknown.error().message.find("\"rdma\""), std::string::npos);
  EXPECT_NE(unknown.error().message.find("inproc://name"), std::string::npos) << unknown.error().message;
}

TEST(EndpointOptions, OutOfRangeIsRefusedByName) {
  const auto message_of = [](auto change) {
    EndpointOptions options;
    change(options);
    const auto valid = validate(options);
    EXPECT_FALSE(valid);
    const auto listening = listen("inproc://options", options);
    EXPECT_FALSE(listening);
    return valid ? std::string() : valid.error().message;
  };
  EXPECT_TRUE(validate({}));
  EXPECT_EQ(message_of([](auto& o) { o.slots_per_channel = 0; }),
            "slots_per_channel 0 is not from 1 to 1024");
  EXPECT_NE(message_of([](auto& o) { o.slot_bytes = size_t{2} << 30; }).find("slot_bytes"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& o) { o.slot_bytes = 0; }).find("slot_bytes"), std::string::npos);
  EXPECT_NE(message_of([](auto& o) { o.silence_limit = o.heartbeat_interval; }).find("silence_limit"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& o) { o.heartbeat_interval = Duration::zero(); }).find("heartbeat"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& o) { o.connect_limit = Duration::zero(); }).find("connect_limit"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem
