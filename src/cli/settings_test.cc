#include "cli/settings.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "cli/config_file.h"

namespace tandem {
namespace {

std::string read(const std::string& yaml, Settings& settings) {
  const std::string path = testing::TempDir() + "tandem_settings_test.yaml";
  std::ofstream(path) << yaml;
  OptionSet set = settings.declare();
  const auto result = read_config_file(path, set);
  std::remove(path.c_str());
  return result ? std::string()
                : result.error().message.substr(result.error().message.rfind("line") == std::string::npos
                                                    ? 0
                                                    : result.error().message.rfind("line "));
}

TEST(ConfigFile, ReadsNestedKeysAndJson) {
  Settings settings;
  EXPECT_EQ(read("model: /m\nafd:\n  role: attention\n  ffn: [tcp://a:1, tcp://b:2]\nserving:\n  port: 81\n",
                 settings),
            "");
  EXPECT_EQ(settings.model, "/m");
  EXPECT_EQ(settings.afd.role, "attention");
  EXPECT_EQ(settings.afd.ffn.size(), 2u);
  EXPECT_EQ(settings.serving.port, 81);
  Settings json;
  EXPECT_EQ(read(R"({"serving": {"port": 82}, "engine": {"deterministic": true}})", json), "");
  EXPECT_EQ(json.serving.port, 82);
  EXPECT_TRUE(json.engine.deterministic);
  EXPECT_EQ(read("", json), "");
}

TEST(ConfigFile, RefusesEachDefectWithItsLine) {
  Settings settings;
  EXPECT_EQ(read("model: a\nafd:\n  rol: ffn\n", settings),
            "line 3: unknown key 'afd.rol'; did you mean 'afd.role'?");
  EXPECT_EQ(read("model: a\nmodel: b\n", settings), "line 2: key 'model' is given twice");
  EXPECT_EQ(read("afd:\n  role: ffn\nafd:\n  role: ffn\n", settings), "line 3: key 'afd' is given twice");
  EXPECT_EQ(read("serving:\n  port: '81'\n", settings),
            "line 2: serving.port: text '81' where 0..65535 is expected");
  EXPECT_NE(read("serving:\n  port: 81.5\n", settings), "");
  EXPECT_NE(read("serving:\n  port:\n", settings), "");
  EXPECT_NE(read("serving:\n  port: [1]\n", settings), "");
  EXPECT_NE(read("serving: 3\n", settings), "");
  EXPECT_NE(read("model: {a: 1}\n", settings), "");
  EXPECT_NE(read("- a\n", settings), "");
  EXPECT_NE(read("a: [1\n", settings), "");
  EXPECT_NE(read("engine:\n  deterministic: 1\n", settings), "");
}

TEST(Settings, CombinationsAreRefusedByName) {
  Settings settings;
  settings.afd.send_token_ids = settings.afd.compute_gate_on_attention = true;
  EXPECT_NE(validate(settings).error().message.find("afd.send_token_ids"), std::string::npos);
  settings = {};
  settings.afd.activation_dtype = "bf16";
  settings.engine.compute_dtype = "float32";
  EXPECT_NE(validate(settings).error().message.find("afd.activation_dtype: bf16"), std::string::npos);
}

TEST(Settings, M2nNeedsTheGateOnAttention) {
  const auto message = [](auto change) {
    Settings settings;
    change(settings);
    const auto result = validate(settings);
    return result ? std::string("accepted") : result.error().message;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_EQ(message([](Settings& s) { s.up.ffn = 2; }), "accepted");
  EXPECT_EQ(message([](Settings& s) { s.afd.connector = "auto", s.up.ffn = 3; }), "accepted");
  EXPECT_TRUE(has(message([](Settings& s) { s.afd.connector = "local", s.up.ffn = 2; }),
                  "afd.connector: local with 2 FFN ranks is not supported; use p2p, m2n or auto"));
  EXPECT_TRUE(
      has(message([](Settings& s) { s.afd.connector = "m2n"; }), "afd.connector: m2n with the gate on FFN"));
  const auto m2n = [&](auto change) {
    return message([&](Settings& s) {
      s.afd.connector = "m2n";
      s.afd.compute_gate_on_attention = true;
      change(s);
    });
  };
  EXPECT_EQ(m2n([](Settings&) {}), "accepted");
  EXPECT_TRUE(has(m2n([](Settings& s) { s.afd.exchange = "allgather"; }),
                  "afd.exchange: allgather with afd.connector m2n is not supported; use auto"));
  EXPECT_EQ(m2n([](Settings& s) { s.up.ffn = 3; }), "accepted");
  EXPECT_EQ(m2n([](Settings& s) { s.afd.ffn = {"a:1", "b:1"}; }), "accepted");
  EXPECT_EQ(m2n([](Settings& s) { s.afd.num_ffn_ranks = 3, s.afd.ffn_rank = 2; }), "accepted");
  EXPECT_TRUE(has(m2n([](Settings& s) { s.afd.num_ffn_ranks = 3, s.afd.ffn_rank = 3; }),
                  "afd.ffn_rank: 3 of afd.num_ffn_ranks 3"));
  EXPECT_TRUE(has(m2n([](Settings& s) { s.afd.num_ffn_ranks = 3, s.afd.ffn = {"a:1", "b:1"}; }),
                  "afd.num_ffn_ranks: 3 with 2 addresses"));
}

TEST(Settings, SharedExpertsFollowTheGateUnlessSaidOtherwise) {
  Settings settings;
  EXPECT_FALSE(settings.shared_experts_on_attention());
  settings.afd.compute_gate_on_attention = true;
  EXPECT_TRUE(settings.shared_experts_on_attention());
  settings.afd.compute_shared_experts_on_attention = "false";
  EXPECT_FALSE(settings.shared_experts_on_attention());
}

}  // namespace
}  // namespace tandem
