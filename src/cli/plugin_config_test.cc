// vLLM's JSON in our settings: every key and alias, every refusal by name, and who goes before whom.
#include "cli/plugin_config.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "cli/setting_sources.h"

namespace tandem {
namespace {

struct Given {
  std::string command = "serve";
  std::vector<std::pair<std::string, std::string>> flags;
  std::map<std::string, std::string> environment;
  std::string file;
};

struct Outcome {
  Settings settings;
  std::string error;  // empty: accepted
  std::vector<std::string> notes;
  bool noted(const std::string& part) const {
    for (const std::string& note : notes) {
      if (note.find(part) != std::string::npos) return true;
    }
    return false;
  }
};

Outcome apply(Given given) {
  Outcome outcome;
  const std::string path = testing::TempDir() + "tandem_plugin_config_test.yaml";
  if (!given.file.empty()) {
    std::ofstream(path) << given.file;
    given.flags.emplace_back("config", path);
  }
  const auto applied =
      apply_sources(outcome.settings, {given.command, given.flags, [](const std::string&) { return true; },
                                       [&](const char* name) {
                                         const auto at = given.environment.find(name);
                                         return at == given.environment.end() ? nullptr : at->second.c_str();
                                       }});
  std::remove(path.c_str());
  if (applied) {
    outcome.notes = *applied;
  } else {
    outcome.error = applied.error().message;
  }
  return outcome;
}

Outcome apply_json(const std::string& json, const std::string& command = "serve") {
  return apply(
      {.command = command, .flags = {{"vllm.additional_config", json}}, .environment = {}, .file = {}});
}

Outcome apply_block(const std::string& block) {
  return apply_json("{\"afd\": " + block + "}");
}

Outcome apply_compilation(const std::string& json) {
  return apply(
      {.command = "serve", .flags = {{"vllm.compilation_config", json}}, .environment = {}, .file = {}});
}

TEST(PluginConfig, TheCanonicalBlockOfEitherRole) {
  const std::string rest =
      R"("connector": "CAMAsyncAFDConnector", "async": true, "host": "10.0.0.2", "port": 6239,
         "num_ffn_ranks": 2, "compute_gate_on_attention": true, "connector_extra_config": {}}})";
  const Outcome attention = apply_json(R"({"afd": {"role": "attention", )" + rest);
  ASSERT_EQ(attention.error, "");
  EXPECT_EQ(attention.settings.afd.role, "attention");
  EXPECT_EQ(attention.settings.afd.connector, "m2n");
  EXPECT_TRUE(attention.settings.afd.compute_gate_on_attention);
  EXPECT_EQ(attention.settings.afd.ffn,
            (std::vector<std::string>{"tcp://10.0.0.2:6239", "tcp://10.0.0.2:6240"}));
  EXPECT_TRUE(attention.noted("connector CAMAsyncAFDConnector is m2n here"));

  const Outcome ffn = apply(
      {.command = "ffn",
       .flags = {{"vllm.additional_config", R"({"afd": {"role": "ffn", )" + rest}, {"afd.ffn_rank", "1"}},
       .environment = {},
       .file = {}});
  ASSERT_EQ(ffn.error, "");
  EXPECT_EQ(ffn.settings.afd.ffn, attention.settings.afd.ffn);  // of which a rank listens at its own
  EXPECT_EQ(ffn.settings.afd.listen, "");
  EXPECT_EQ(ffn.settings.afd.num_ffn_ranks, 2);
}

TEST(PluginConfig, DefaultsAreThePluginsOwn) {
  const Outcome outcome = apply_block("{}");
  ASSERT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.settings.afd.role, "attention");
  EXPECT_EQ(outcome.settings.afd.connector, "p2p");
  EXPECT_EQ(outcome.settings.afd.ffn, std::vector<std::string>{"tcp://127.0.0.1:1239"});
  EXPECT_EQ(apply_json("{}").settings.afd.role, "none");  // no afd block: colocated
}

TEST(PluginConfig, EveryAliasIsItsKeyAndAContradictionIsRefused) {
  struct Case {
    const char *key, *alias, *value, *other;
  };
  for (const Case& c :
       {Case{"connector", "afd_connector", "\"p2p\"", "\"local\""},
        Case{"role", "afd_role", "\"attention\"", "\"ffn\""}, Case{"host", "afd_host", "\"a\"", "\"b\""},
        Case{"port", "afd_port", "7", "8"}, Case{"async_dp", "async", "false", "true"}}) {
    const auto block = [&](const char* value, const char* second) {
      return std::string("{\"") + c.key + "\": " + value + ", \"" + c.alias + "\": " + second + "}";
    };
    const std::string only = std::string("{\"") + c.alias + "\": " + c.value + "}";
    EXPECT_EQ(apply_block(only).error, "") << c.alias;
    EXPECT_EQ(apply_block(block(c.value, c.value)).error, "") << c.alias;
    const std::string error = apply_block(block(c.value, c.other)).error;
    EXPECT_NE(error.find(std::string("afd.") + c.key + " and its alias afd." + c.alias), std::string::npos)
        << error;
    EXPECT_NE(error.find("keep one"), std::string::npos) << error;
  }
  // Two names of one connector are one value.
  EXPECT_EQ(
      apply_block(R"({"connector": "P2pNcclAFDConnector", "afd_connector": "CAMP2pAFDConnector"})").error,
      "");
}

TEST(PluginConfig, DefectsAreRefusedByName) {
  const std::map<std::string, std::string> cases = {
      {R"({"afd": {"rol": "ffn"}})",
       "unknown key 'afd.rol'; did you mean 'role'? Known are: connector, afd_connector"},
      {R"({"afd": {"num_ffn_servers": 2}})", "afd.num_ffn_servers: unknown key; use num_ffn_ranks"},
      {R"({"afd": {"role": "ffn", "role": "ffn"}})", "has the key 'role' twice"},
      {R"({"afd": {"role": "both"}})", "afd.role: 'both' is not one of attention | ffn"},
      {R"({"afd": {"port": "7000"}})", "afd.port: \"7000\" where a whole number is expected"},
      {R"({"afd": {"port": 65536}})", "afd.port: 65536 is not in 1..65535"},
      {R"({"afd": {"port": 65535, "num_ffn_ranks": 2, "connector": "m2n", "compute_gate_on_attention": true}})",
       "afd.port: 65535 with 2 FFN ranks is not supported; use at most 65534"},
      {R"({"afd": {"port": 1.5}})", "afd.port: 1.5 where a whole number is expected"},
      {R"({"afd": {"host": ""}})", "afd.host: \"\" where a word is expected"},
      {R"({"afd": {"num_ffn_ranks": 0}})", "afd.num_ffn_ranks: afd.num_ffn_ranks: 0 is not in 1..1024"},
      {R"({"afd": {"compute_gate_on_attention": "true"}})", "\"true\" where true or false is expected"},
      {R"({"afd": {"connector": "NvlinkAFDConnector"}})", "unknown connector 'NvlinkAFDConnector'"},
      {R"({"afd": {"connector": "dummy"}})", "afd.connector: dummy is not supported; use local"},
      {R"({"afd": {"async": true}})",
       "afd.async_dp: true with connector p2p is not supported; use connector m2n"},
      {R"({"afd": {"async": false, "connector": "m2n", "compute_gate_on_attention": true}})",
       "afd.async_dp: false with connector m2n is not supported; use true"},
      {R"({"afd": {"connector": "m2n"}})", "afd.connector: m2n with the gate on FFN is not supported"},
      {R"({"afd": {"connector_extra_config": 3}})",
       "afd.connector_extra_config: 3 where an object is expected"},
      {R"({"afd": []})", "afd: [] where an object is expected"},
      {R"({"afd": {}, "ascend_scheduler_config": {}})",
       "unknown key 'ascend_scheduler_config'; the only one is afd"},
      {R"([])", "[] where an object is expected"},
      {R"({"afd": )", "is not valid JSON"},
  };
  for (const auto& [json, expected] : cases) {
    const std::string error = apply_json(json).error;
    EXPECT_NE(error.find(expected), std::string::npos) << json << "\n" << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(PluginConfig, ExtraKeysAreTranslatedOrRefusedByName) {
  const auto extra = [](const std::string& inside) {
    return apply_block("{\"connector\": \"p2p\", \"connector_extra_config\": {" + inside + "}}").error;
  };
  for (const char* key : {"core_num", "attn_core_num", "ffn_core_num", "hccl_buffer_size", "async_slots",
                          "async_transfer", "ring_depth", "recv_poll_timeout_ms"}) {
    const std::string error = extra(std::string("\"") + key + "\": 8");
    EXPECT_NE(
        error.find("afd.connector_extra_config." + std::string(key) + ": 8 is not supported; leave it out"),
        std::string::npos)
        << error;
    EXPECT_NE(error.find("leave it out"), std::string::npos) << error;
  }
  EXPECT_EQ(
      extra(R"("dynamicQuant": 0, "quant_mode": 0, "attn_ranks_per_dp": 1, "async_moe_ubatching": false)"),
      "");
  EXPECT_NE(extra(R"("dynamicQuant": 2)").find("dynamicQuant: 2 is not supported; use 0, or 1"),
            std::string::npos);
  EXPECT_NE(extra(R"("quant_mode": 1)").find("use 0, and --activation-dtype"), std::string::npos);
  EXPECT_NE(extra(R"("attn_ranks_per_dp": 8)").find("attn_ranks_per_dp: 8 is not supported; use 1"),
            std::string::npos);
  EXPECT_NE(extra(R"("async_moe_split": "token")").find("does nothing alone"), std::string::npos);
  EXPECT_NE(extra(R"("async_moe_ubatching": 1)").find("1 where true or false is expected"),
            std::string::npos);
  EXPECT_NE(extra(R"("dynamicquant": 1)").find("did you mean 'dynamicQuant'?"), std::string::npos);

  const auto read = read_additional_config(
      R"({"afd": {"connector_extra_config": {"dynamicQuant": 1, "async_moe_ubatching": true, "async_moe_num_ubatches": 4}}})",
      "test");
  ASSERT_TRUE(read.has_value()) << read.error().message;
  std::map<std::string, std::string> set;
  for (const PluginSetting& setting : read->settings) set[setting.key] = setting.value;
  EXPECT_EQ(set["afd.activation_dtype"], "int8");
  EXPECT_EQ(set["afd.micro_batches"], "4");
}

// A copy of a common key inside connector_extra_config is deprecated and decides nothing.
TEST(PluginConfig, ACopyIsNeverASecondJudge) {
  const Outcome equal = apply_block(
      R"({"compute_gate_on_attention": true, "connector_extra_config": {"compute_gate_on_attention": true}})");
  EXPECT_EQ(equal.error, "");
  EXPECT_TRUE(equal.noted("connector_extra_config.compute_gate_on_attention is deprecated"));
  const Outcome different = apply_block(
      R"({"compute_gate_on_attention": false, "connector_extra_config": {"compute_gate_on_attention": true}})");
  EXPECT_NE(different.error.find("connector_extra_config.compute_gate_on_attention: true, and "
                                 "afd.compute_gate_on_attention is false"),
            std::string::npos)
      << different.error;
  // Alone it would decide: it may only repeat what holds without it.
  const std::string alone = R"({"afd": {"connector_extra_config": {"compute_gate_on_attention": true}}})";
  EXPECT_NE(apply_json(alone).error.find("true, and afd.compute_gate_on_attention is false"),
            std::string::npos);
  EXPECT_EQ(apply({.command = "serve",
                   .flags = {{"vllm.additional_config", alone}, {"afd.compute_gate_on_attention", "true"}},
                   .environment = {},
                   .file = {}})
                .error,
            "");
  // By alias, and for keys that we keep nowhere.
  EXPECT_NE(apply_block(R"({"host": "a", "connector_extra_config": {"afd_host": "b"}})")
                .error.find("b, and afd.host is a"),
            std::string::npos);
  EXPECT_EQ(apply_block(R"({"connector_extra_config": {"afd_port": 1239, "async": false}})").error, "");
}

TEST(PluginConfig, FlagBeforeEnvironmentBeforePluginBeforeFile) {
  const std::string json =
      R"({"afd": {"num_ffn_ranks": 3, "connector": "m2n", "compute_gate_on_attention": true}})";
  Given given{.command = "serve",
              .flags = {{"vllm.additional_config", json}},
              .environment = {},
              .file = "afd:\n  num_ffn_ranks: 2\n  ffn: [tcp://f:1]\n  compute_gate_on_attention: false\n"};
  given.file = "afd:\n  num_ffn_ranks: 2\n  compute_gate_on_attention: false\n";
  EXPECT_EQ(apply(given).settings.afd.num_ffn_ranks, 3);
  EXPECT_EQ(apply(given).error, "");
  given.environment["TANDEM_NUM_FFN_RANKS"] = "4";
  EXPECT_EQ(apply(given).settings.afd.num_ffn_ranks, 4);
  EXPECT_EQ(apply(given).settings.afd.ffn.size(), 4u);  // addresses are made for what holds at the end
  given.flags.emplace_back("afd.num_ffn_ranks", "5");
  EXPECT_EQ(apply(given).settings.afd.num_ffn_ranks, 5);
  // The JSON itself comes from the environment or the file as well.
  EXPECT_EQ(
      apply(
          {.command = "serve", .flags = {}, .environment = {{"TANDEM_ADDITIONAL_CONFIG", json}}, .file = {}})
          .settings.afd.num_ffn_ranks,
      3);
  EXPECT_EQ(apply({.command = "serve",
                   .flags = {},
                   .environment = {},
                   .file = "vllm:\n  additional_config: '" + json + "'\n"})
                .settings.afd.num_ffn_ranks,
            3);
  const std::string blamed =
      apply(
          {.command = "serve", .flags = {}, .environment = {{"TANDEM_ADDITIONAL_CONFIG", "[]"}}, .file = {}})
          .error;
  EXPECT_EQ(blamed.rfind("TANDEM_ADDITIONAL_CONFIG: ", 0), 0u) << blamed;
}

TEST(PluginConfig, AddressesThatAreGivenOtherwiseStay) {
  EXPECT_EQ(apply({.command = "attention",
                   .flags = {{"vllm.additional_config", R"({"afd": {"host": "a", "port": 5}})"},
                             {"afd.ffn", "shm://s"}},
                   .environment = {},
                   .file = {}})
                .settings.afd.ffn,
            std::vector<std::string>{"shm://s"});
  // Those of a file give way to what the block says, and not to its defaults.
  const std::string file = "afd:\n  ffn: [tcp://f:1]\n";
  const auto with = [&](const std::string& json) {
    return apply({.command = "attention",
                  .flags = {{"vllm.additional_config", json}},
                  .environment = {},
                  .file = file})
        .settings.afd.ffn;
  };
  EXPECT_EQ(with(R"({"afd": {}})"), std::vector<std::string>{"tcp://f:1"});
  EXPECT_EQ(with(R"({"afd": {"port": 9}})"), std::vector<std::string>{"tcp://127.0.0.1:9"});
  EXPECT_EQ(with(R"({"afd": {"host": "::1", "port": 9}})"), std::vector<std::string>{"tcp://[::1]:9"});
}

TEST(PluginConfig, TheRoleMustBeTheCommands) {
  EXPECT_EQ(apply_json(R"({"afd": {"role": "ffn"}})", "serve").settings.afd.role, "ffn");
  EXPECT_EQ(apply_json(R"({"afd": {"role": "ffn"}})", "ffn").error, "");
  EXPECT_EQ(apply_json(R"({"afd": {}})", "ffn").error, "");
  EXPECT_NE(apply_json(R"({"afd": {"role": "ffn"}})", "attention")
                .error.find(
                    "afd.role: ffn with tandem attention is not supported; use tandem serve, or tandem ffn"),
            std::string::npos);
}

TEST(CompilationConfig, ModesAreTranslatedOrRefusedByName) {
  const auto read = [](const std::string& json) { return read_compilation_config(json, "test", "8,16,32"); };
  const auto value = [&](const std::string& json, const std::string& key) {
    const auto config = read(json);
    if (!config) return config.error().message;
    for (const PluginSetting& setting : config->settings) {
      if (setting.key == key) return setting.value;
    }
    return std::string("(nothing)");
  };
  EXPECT_EQ(value(R"({"cudagraph_mode": "NONE"})", "afd.execution"), "eager");
  EXPECT_EQ(value(R"({"cudagraph_mode": "FULL_DECODE_ONLY"})", "afd.execution"), "graph");
  EXPECT_EQ(value(R"({"cudagraph_mode": "FULL"})", "afd.execution"), "graph");
  EXPECT_NE(read(R"({"cudagraph_mode": "FULL"})")->notes.at(0).find("FULL resolves to FULL_DECODE_ONLY"),
            std::string::npos);
  for (const char* mode : {"PIECEWISE", "FULL_AND_PIECEWISE"}) {
    const std::string error = value("{\"cudagraph_mode\": \"" + std::string(mode) + "\"}", "");
    EXPECT_NE(error.find("cudagraph_mode: " + std::string(mode) + " is not supported; use FULL_DECODE_ONLY"),
              std::string::npos)
        << error;
  }
  EXPECT_NE(value(R"({"cudagraph_mode": "full"})", "").find("'full' is not one of NONE"), std::string::npos);
  EXPECT_NE(value(R"({"cudagraph_mode": 2})", "").find("2 where a word is expected"), std::string::npos);
  EXPECT_EQ(value(R"({"cudagraph_capture_sizes": [1, 8, 64]})", "afd.capture_sizes"), "1,8,64");
  EXPECT_EQ(value(R"({"max_cudagraph_capture_size": 16})", "afd.capture_sizes"), "8,16");
  EXPECT_NE(value(R"({"max_cudagraph_capture_size": 4})", "").find("4 is below every size"),
            std::string::npos);
  EXPECT_NE(value(R"({"cudagraph_capture_sizes": [8, 64], "max_cudagraph_capture_size": 32})", "")
                .find("64 with max_cudagraph_capture_size 32"),
            std::string::npos);
  for (const char* sizes : {"[]", "8", "[0]", "[1.5]", "[\"8\"]", "[-1]"}) {
    EXPECT_NE(value("{\"cudagraph_capture_sizes\": " + std::string(sizes) + "}", "").find("is expected"),
              std::string::npos)
        << sizes;
  }
  EXPECT_NE(value(R"({"level": 3})", "").find("test level: 3 is not supported; leave it out"),
            std::string::npos);
  EXPECT_NE(value(R"({"cudagraph_moed": "NONE"})", "").find("unknown key 'cudagraph_moed'; known are"),
            std::string::npos);
  EXPECT_NE(value(R"({"cudagraph_mode": "NONE", "cudagraph_mode": "FULL"})", "").find("twice"),
            std::string::npos);
}

TEST(CompilationConfig, EagerHasThreeNamesAndTheyMustAgree) {
  EXPECT_EQ(apply_compilation(R"({"cudagraph_mode": "NONE"})").settings.afd.execution, "eager");
  const auto eager = [](std::vector<std::pair<std::string, std::string>> more, const std::string& file) {
    more.emplace_back("vllm.enforce_eager", "true");
    return apply({.command = "serve", .flags = more, .environment = {}, .file = file});
  };
  EXPECT_EQ(eager({}, "").error, "");
  EXPECT_EQ(eager({{"afd.execution", "eager"}}, "").error, "");
  const Outcome over_file = eager({}, "afd:\n  execution: graph\n");  // a flag goes before the file
  EXPECT_EQ(over_file.error, "");
  EXPECT_EQ(over_file.settings.afd.execution, "eager");
  for (const auto& contradiction : {std::pair{"afd.execution", "graph"},
                                    std::pair{"vllm.compilation_config", R"({"cudagraph_mode": "FULL"})"}}) {
    const std::string error = eager({{contradiction.first, contradiction.second}}, "").error;
    EXPECT_NE(error.find("vllm.enforce_eager: true with afd.execution graph is not supported"),
              std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace tandem
