// For the tests of configurations: what a text parses to, or how it is refused.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "model/model_config.h"

namespace tandem::config_testing {

// `head` and `extra` are JSON text without the closing brace.
inline ModelConfig parsed(const std::string& head, const std::string& extra = "") {
  auto config = parse_model_config(head + extra + "}", "config.json");
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return {};
  }
  return *config;
}

inline void expect_refused(const std::string& head, const std::string& extra, const std::string& word,
                           ErrorCode code = ErrorCode::unsupported) {
  const auto config = parse_model_config(head + extra + "}", "config.json");
  ASSERT_FALSE(config.has_value()) << word;
  EXPECT_EQ(config.error().code, code) << config.error().message;
  EXPECT_NE(config.error().message.find(word), std::string::npos) << config.error().message;
  EXPECT_EQ(config.error().message.rfind("config.json", 0), 0u) << config.error().message;
}

}  // namespace tandem::config_testing
