#include "base/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace tandem {
namespace {

struct Settings {
  bool loud = false;
  int64_t port = 8000;
  double share = 0.5;
  std::string name = "none", colour = "red";
  std::vector<std::string> peers;

  OptionSet declare() {
    OptionSet set;
    set.boolean("log.loud", loud, "Say more.");
    set.integer("serving.port", port, 0, 65535, "Port to listen on.");
    set.real("serving.share", share, 0, 1, "Share of prefill.");
    set.text("name", name, "A name.");
    set.choice("colour", colour, {"red", "green"}, "A colour.");
    set.list("afd.ffn", peers, "Addresses.");
    return set;
  }
};

TEST(Options, EveryTypeIsParsedAndChecked) {
  Settings settings;
  OptionSet set = settings.declare();
  ASSERT_TRUE(set.set("serving.port", "9000", "--port").has_value());
  ASSERT_TRUE(set.set("log.loud", "true", "x").has_value());
  ASSERT_TRUE(set.set("serving.share", "0.25", "x").has_value());
  ASSERT_TRUE(set.set("colour", "green", "x").has_value());
  ASSERT_TRUE(set.set("afd.ffn", "a:1,b:2", "x").has_value());
  EXPECT_EQ(settings.port, 9000);
  EXPECT_TRUE(settings.loud);
  EXPECT_EQ(settings.share, 0.25);
  EXPECT_EQ(settings.peers, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(set.find("serving.port")->default_text, "8000");
  EXPECT_EQ(set.find("serving.port")->get(), "9000");
}

TEST(Options, ErrorsNameWhereKeyValueAndRemedy) {
  Settings settings;
  OptionSet set = settings.declare();
  const auto message = [&](const char* key, const char* value) {
    const auto result = set.set(key, value, "--here");
    return result ? std::string() : result.error().message;
  };
  EXPECT_EQ(message("serving.port", "65536"), "--here: serving.port: 65536 is not in 0..65535");
  for (const char* text : {"", "12x", " 1", "1.0", "0x10", "99999999999999999999"}) {
    EXPECT_NE(message("serving.port", text), "") << text;
  }
  for (const char* text : {"nan", "inf", "1e400", "-0.1", "2"})
    EXPECT_NE(message("serving.share", text), "") << text;
  EXPECT_EQ(message("colour", "blue"), "--here: colour: 'blue' is not one of red | green");
  EXPECT_NE(message("log.loud", "yes"), "");
  EXPECT_NE(message("afd.ffn", "a,,b"), "");
  EXPECT_EQ(message("serving.prot", "1"), "--here: unknown key 'serving.prot'; did you mean 'serving.port'?");
  EXPECT_EQ(settings.port, 8000);  // nothing was changed by what was refused
}

TEST(Options, ARefusalIsOneLineWhateverWasGiven) {
  Settings settings;
  OptionSet set = settings.declare();
  for (const char* key : {"serving.port", "serving.share", "colour", "log.loud", "no\nkey"}) {
    const auto result = set.set(key, "a\nb\r\x1b[2J\x7f", "tandem.yaml line 2");
    ASSERT_FALSE(result) << key;
    for (const char c : result.error().message) EXPECT_TRUE(c >= ' ' && c != '\x7f') << result.error().message;
  }
}

TEST(Options, TheEnvironmentHasATwinOfEachFlag) {
  Settings settings;
  OptionSet set = settings.declare();
  std::set<std::string> flags;
  for (const Option& option : set.options()) EXPECT_TRUE(flags.insert(option.flag()).second) << option.flag();
  EXPECT_EQ(set.find("serving.port")->environment(), "TANDEM_PORT");
  setenv("TANDEM_PORT", "x", 1);
  EXPECT_NE(set.set_from_environment().error().message.find("TANDEM_PORT: serving.port"), std::string::npos);
  setenv("TANDEM_PORT", "81", 1);
  EXPECT_TRUE(set.set_from_environment().has_value());
  EXPECT_EQ(settings.port, 81);
  unsetenv("TANDEM_PORT");
}

}  // namespace
}  // namespace tandem
