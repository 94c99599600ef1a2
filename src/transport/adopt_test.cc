// EndpointOptions::adopt, on every transport.
#include <gtest/gtest.h>

#include "transport/endpoint_test_util.h"
#include "transport/hello.h"
#include "transport/little_endian.h"

namespace tandem {
namespace {

EndpointOptions listeners_options() {
  EndpointOptions options;
  options.slots_per_channel = 4;
  options.slot_bytes = 1000;
  options.silence_limit = std::chrono::seconds(20);  // a busy machine is not a dead peer
  return options;
}

class AdoptTest : public testing::TestWithParam<const char*> {};

// Of a client that does not know the model.
TEST_P(AdoptTest, AConnectingSideMayTakeTheOptionsOfTheListener) {
  EndpointOptions options = listeners_options();
  options.heartbeat_interval = std::chrono::milliseconds(70);
  auto listener = listen(unique_address(GetParam()), options);
  ASSERT_TRUE(listener) << listener.error().message;
  EndpointOptions unknowing;
  unknowing.adopt = true;
  auto [a, b] = make_pair(**listener, unknowing);
  ASSERT_TRUE(a && b);
  for (const Endpoint* endpoint : {a.get(), b.get()}) {
    const EndpointCaps caps = endpoint->caps();
    EXPECT_EQ(caps.max_message_bytes, options.slot_bytes);
    EXPECT_EQ(caps.slots_per_channel, options.slots_per_channel);
    EXPECT_EQ(caps.heartbeat_interval, options.heartbeat_interval);
    EXPECT_EQ(caps.silence_limit, options.silence_limit);
  }
  // As many credits as the listener gives, and not one more.
  for (uint32_t i = 0; i < options.slots_per_channel; ++i) {
    const auto slot = a->acquire(Channel::request, options.slot_bytes);
    ASSERT_TRUE(slot) << slot.error().message;
    ASSERT_TRUE(a->commit(*slot, options.slot_bytes));
  }
  EXPECT_EQ(a->acquire(Channel::request, 1).error().code, ErrorCode::would_block);
  for (uint32_t i = 0; i < options.slots_per_channel; ++i) {
    EXPECT_EQ(receive_one(*b, {a.get()}).lease.bytes().size(), options.slot_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, AdoptTest, testing::Values("inproc", "shm", "tcp", "ucx"),
                         [](const auto& instance) { return std::string(instance.param); });

// What a listening side says is not trusted further than our own options.
TEST(Adopt, WhatNoOptionsMayBeIsRefusedByName) {
  EndpointOptions unknowing;
  unknowing.adopt = true;
  const auto refusal = [&](size_t at, uint64_t value) {
    auto hello = HelloLayout::encode(listeners_options());
    at == 8 ? store_little_endian<uint32_t>(&hello[at], static_cast<uint32_t>(value))
            : store_little_endian<uint64_t>(&hello[at], value);
    const auto adopted = adopt_hello(unknowing, hello, "tcp://a:1");
    return adopted ? std::string() : adopted.error().message;
  };
  EXPECT_EQ(refusal(8, 4), "");
  EXPECT_NE(refusal(8, 0).find("tcp://a:1 offers slots_per_channel 0"), std::string::npos) << refusal(8, 0);
  EXPECT_NE(refusal(8, 1000000).find("slots_per_channel"), std::string::npos);
  EXPECT_NE(refusal(16, 0).find("slot_bytes"), std::string::npos);
  EXPECT_NE(refusal(16, UINT64_MAX).find("slot_bytes"), std::string::npos);
  EXPECT_NE(refusal(24, 0).find("heartbeat_interval"), std::string::npos);
  EXPECT_NE(refusal(24, UINT64_MAX).find("silence_limit"), std::string::npos);
  EXPECT_NE(refusal(32, 1).find("silence_limit"), std::string::npos);
}

// Who states something is compared, as ever.
TEST(Adopt, OnlyWhoAsksAdopts) {
  const auto hello = HelloLayout::encode(listeners_options());
  const auto kept = adopt_hello(EndpointOptions{}, hello, "tcp://a:1");
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->slot_bytes, EndpointOptions{}.slot_bytes);
}

}  // namespace
}  // namespace tandem
