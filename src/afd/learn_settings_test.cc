#include "afd/learn_settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace tandem {
namespace {

SettingList text_of(const SplitSettings& settings) {
  SettingList lines;
  for (const Setting& setting : list_settings(settings)) lines.emplace_back(setting.key, setting.value);
  return lines;
}

SplitSettings small_settings() {
  SplitSettings settings;
  settings.model_fingerprint = 0xfedcba9876543210;
  settings.hidden_size = 24;
  settings.num_layers = 7;
  settings.num_draft_layers = 1;
  settings.vocab_size = 100;
  settings.num_experts = 8;
  settings.top_k = 2;
  settings.moe_intermediate_size = 32;
  settings.shared_intermediate_size = 16;
  settings.moe_layers = {1, 2, 3};
  settings.numerics_id = 0x1234;
  return settings;
}

// The text says all: whoever adds a setting to list_settings reads it here too.
void expect_same_text(const SplitSettings& settings) {
  const SettingList lines = text_of(settings);
  const auto read = parse_settings(lines);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(text_of(*read), lines);
  EXPECT_EQ(read->activation_format, settings.activation_format);
  EXPECT_EQ(read->moe_layers, settings.moe_layers);
  EXPECT_EQ(read->capture_sizes, settings.capture_sizes);
  EXPECT_EQ(read->endpoint_options(8).slot_bytes, settings.endpoint_options(8).slot_bytes);
}

TEST(LearnSettings, EverySettingIsReadBack) {
  SplitSettings settings = small_settings();
  expect_same_text(settings);
  settings.moe_layers = {0, 2, 5};
  settings.num_ffn_ranks = 3;
  settings.connector = "auto";
  settings.token_ids = true;
  settings.num_hash_layers = 2;
  settings.balanced_routing = true;
  settings.weights = "int8";
  settings.graph = true;
  settings.capture_sizes = {1, 8, 24};
  expect_same_text(settings);
  settings = small_settings();
  settings.gate_on_attention = settings.shared_experts_on_attention = true;
  for (const auto format :
       {ActivationFormat::plain, ActivationFormat::fp8, ActivationFormat::mxfp8, ActivationFormat::int8}) {
    for (const auto sums : {SumMode::plain, SumMode::deterministic}) {
      settings.set_dtypes(format == ActivationFormat::plain ? DType::f32 : DType::bf16, sums, format);
      expect_same_text(settings);
    }
  }
}

std::string refusal(const SettingList& lines) {
  const auto read = parse_settings(lines);
  return read ? "" : read.error().message;
}

TEST(LearnSettings, WhatIsNoSettingIsNamed) {
  for (size_t i = 0; i < text_of(small_settings()).size(); ++i) {
    SettingList lines = text_of(small_settings());
    const std::string key = lines[i].first;
    if (key != "weights") {  // any word names weights
      lines[i].second = "nonsense";
      EXPECT_NE(refusal(lines).find(key), std::string::npos) << key << ": " << refusal(lines);
    }
    lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(refusal(lines).find(key), std::string::npos) << key << ": " << refusal(lines);
  }
  SettingList lines = text_of(small_settings());
  lines.emplace_back("may.features", "some");
  EXPECT_EQ(refusal(lines), "");
  lines.emplace_back("flavour", "mild");
  EXPECT_NE(refusal(lines).find("flavour=mild, which this release does not know"), std::string::npos);
}

TEST(LearnSettings, ListsThatAreNoneAreRefused) {
  for (const char* text : {"", "-", "3-", "-3", "3-1", "1,,2", "2,1", "1,1", "1,", "70000", "1-70000"}) {
    SettingList lines = text_of(small_settings());
    std::ranges::find_if(lines, [](const auto& line) { return line.first == "moe_layers"; })->second = text;
    EXPECT_NE(refusal(lines).find("moe_layers"), std::string::npos) << text << ": " << refusal(lines);
  }
}

TEST(LearnSettings, AnExpectationThatIsNoSettingIsNamed) {
  LearnOptions options;
  options.address = "inproc://nobody";
  options.expected = {{"hiden_size", "128"}};
  const auto learned = learn_settings(options);
  ASSERT_FALSE(learned.has_value());
  EXPECT_EQ(learned.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(learned.error().message.find("\"hiden_size\""), std::string::npos) << learned.error().message;
}

TEST(LearnSettings, APeerThatSaysNothingIsWaitedForUntilTheDeadlineAlone) {
  const std::string address = "inproc://learn_settings_test_silent";
  EndpointOptions terms = small_settings().endpoint_options(8);
  terms.silence_limit = std::chrono::hours(1);  // it is not its silence that ends the try
  const auto listener = listen(address, terms);
  ASSERT_TRUE(listener.has_value()) << listener.error().message;
  std::atomic<bool> over = false;
  std::thread peer([&] {
    std::vector<std::unique_ptr<Endpoint>> mute;
    while (!over) {
      if (auto taken = (*listener)->accept()) mute.push_back(std::move(*taken));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  LearnOptions options;
  options.address = address;
  options.handshake_limit = std::chrono::hours(1);
  options.deadline = now() + std::chrono::milliseconds(300);
  const auto learned = learn_settings(options);
  over = true;
  peer.join();
  ASSERT_FALSE(learned.has_value());
  EXPECT_EQ(learned.error().code, ErrorCode::deadline_exceeded) << learned.error().message;
  EXPECT_NE(learned.error().message.find(address), std::string::npos) << learned.error().message;
}

}  // namespace
}  // namespace tandem
