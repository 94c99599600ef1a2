#include "cli/settings_reload.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tandem {
namespace {

using testing::Test;

// A process whose file says `now`.
class SettingsReloadTest : public Test {
 protected:
  SettingsReload make(bool takes_serving = true) {
    return {
        now, [this]() -> Result<Settings> { return now; },
        [takes_serving](const std::string& key) { return takes_serving || !key.starts_with("serving."); }};
  }
  static std::string refusal(const SettingsReload& reload) {
    const auto change = reload.read();
    return change ? std::string() : change.error().message;
  }

  Settings now;
};

TEST_F(SettingsReloadTest, WhatHasChangedIsSaidUntilItIsKept) {
  SettingsReload reload = make();
  EXPECT_TRUE(reload.read()->what.empty());
  now.engine.log_level = "error";
  now.serving.drain_s = 20;
  now.serving.request_timeout_s = 1.5;
  now.serving.queue_timeout_s = 3;
  now.serving.allowed_origins = {"https://a", "https://b"};
  const auto change = reload.read();
  ASSERT_TRUE(change.has_value()) << change.error().message;
  EXPECT_EQ(change->what,
            (std::vector<std::string>{"engine.log_level info, now error",
                                      "serving.allowed_origins none, now https://a,https://b",
                                      "serving.request_timeout_s 0, now 1.5",
                                      "serving.queue_timeout_s 0, now 3", "serving.drain_s 10, now 20"}));
  EXPECT_EQ(change->settings.serving.drain_s, 20);
  EXPECT_EQ(reload.read()->what.size(), 5u) << "nobody has taken them";
  reload.keep(change->settings);
  EXPECT_TRUE(reload.read()->what.empty());
}

TEST_F(SettingsReloadTest, SecretsAreNotShown) {
  SettingsReload reload = make();
  now.serving.api_key = {"team-key"};
  EXPECT_EQ(reload.read()->what, std::vector<std::string>{"serving.api_key"});
}

// Every other setting, by its name. A new one is refused until somebody has thought about it.
TEST_F(SettingsReloadTest, EverythingElseNeedsARestart) {
  const SettingsReload reload = make();
  const Settings start = now;
  size_t refused = 0;
  OptionSet options = now.declare();
  for (const Option& option : options.options()) {
    now = start;
    // Of a choice one of those that are allowed, which stand first and last.
    const std::string first = option.allowed.substr(0, option.allowed.find(' ')),
                      last = option.allowed.substr(option.allowed.rfind(' ') + 1);
    const std::string candidates[] = {"7", "0.5", "true", "false", "8", "128", "123456", first, last};
    ASSERT_TRUE(std::ranges::any_of(candidates, [&](const std::string& text) {
      return option.set(text).has_value() && option.get() != option.default_text;
    })) << option.key;
    const bool reloadable =
        std::ranges::any_of(reloadable_settings(), [&](const std::string& key) { return key == option.key; });
    const std::string message = refusal(reload);
    if (reloadable && !option.key.starts_with("serving.ssl_")) {
      EXPECT_EQ(message, "") << option.key;
      continue;
    }
    ++refused;
    EXPECT_TRUE(message.starts_with(option.key)) << message;
    EXPECT_NE(message.find("needs a restart; a running process takes engine.log_level, "), std::string::npos)
        << message;
  }
  EXPECT_GT(refused, 100u);
}

TEST_F(SettingsReloadTest, OneThatNeedsARestartKeepsTheOthersBack) {
  const SettingsReload reload = make();
  now.serving.drain_s = 20;
  now.serving.max_num_seqs = 32;
  EXPECT_TRUE(refusal(reload).starts_with("serving.max_num_seqs 64, now 32: this needs a restart"))
      << refusal(reload);
}

TEST_F(SettingsReloadTest, CertificatesAreRenewedAndTlsStaysAsItIs) {
  now.serving.ssl_certfile = "a.pem";
  now.serving.ssl_keyfile = "a.key";
  const SettingsReload reload = make();
  now.serving.ssl_certfile = "b.pem";
  EXPECT_EQ(refusal(reload), "");
  now.serving.ssl_certfile = "";
  EXPECT_NE(refusal(reload).find("serving.ssl_certfile a.pem, now none: this needs a restart"),
            std::string::npos);
  EXPECT_TRUE(refusal(reload).ends_with("TLS stays on or off")) << refusal(reload);
}

// One file for all roles: what this one has no use for may change.
TEST_F(SettingsReloadTest, SettingsOfOthersDoNotMatter) {
  const SettingsReload reload = make(/*takes_serving=*/false);
  now.serving.max_num_seqs = 32;
  EXPECT_TRUE(reload.read()->what.empty());
}

TEST_F(SettingsReloadTest, WhatCannotBeReadIsAnError) {
  const SettingsReload reload(
      now, [] { return Result<Settings>(make_error(ErrorCode::invalid_argument, "line 3")); },
      [](const std::string&) { return true; });
  EXPECT_EQ(refusal(reload), "line 3");
}

}  // namespace
}  // namespace tandem
