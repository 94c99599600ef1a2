#include "serving/chat/output_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "serving/chat/json_members.h"

namespace tandem {
namespace {

constexpr OutputFormat kV4{ReasoningFormat::tags, ToolCallFormat::dsml};
constexpr OutputFormat kQwen{ReasoningFormat::trimmed_tags, ToolCallFormat::hermes};
constexpr OutputFormat kGlm{ReasoningFormat::trimmed_tags, ToolCallFormat::glm};
const OutputOptions kCalls{.tool_calls = true};
const OutputOptions kThinking{.reasoning_open = true, .tool_calls = true};

// An answer as a client joins it: "r:..." reasoning, "c:..." content, then each call as name(arguments).
struct Joined {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool called = false;
  bool operator==(const Joined&) const = default;
};

void add(Joined& joined, const OutputDeltas& deltas) {
  for (const OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case OutputDelta::Kind::content:
        joined.content += delta.text;
        break;
      case OutputDelta::Kind::reasoning:
        joined.reasoning += delta.text;
        break;
      case OutputDelta::Kind::call:
        EXPECT_EQ(delta.call, joined.calls.size()) << "calls are numbered in order";
        joined.calls.emplace_back(delta.text, "");
        break;
      case OutputDelta::Kind::arguments:
        ASSERT_EQ(delta.call + 1, joined.calls.size()) << "pieces belong to the call that was begun";
        joined.calls.back().second += delta.text;
        break;
    }
    EXPECT_FALSE(delta.text.empty()) << "an empty delta says nothing";
  }
}

Joined parse(const OutputFormat& format, const OutputOptions& options,
             const std::vector<std::string>& pieces) {
  OutputParser parser(format, options);
  Joined joined;
  for (const std::string& piece : pieces) {
    OutputDeltas deltas;
    parser.push(piece, deltas);
    add(joined, deltas);
  }
  OutputDeltas deltas;
  parser.finish(deltas);
  add(joined, deltas);
  joined.called = parser.called();
  return joined;
}

// At every place, byte by byte, and at random ones: the same as in one piece.
Joined parse_any_way(const OutputFormat& format, const OutputOptions& options, const std::string& text) {
  const Joined whole = parse(format, options, {text});
  std::vector<std::string> bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_EQ(parse(format, options, {text.substr(0, i), text.substr(i)}), whole)
        << "cut at " << i << " of " << text;
    bytes.push_back(text.substr(i, 1));
  }
  EXPECT_EQ(parse(format, options, bytes), whole) << text;
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 9;
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    EXPECT_EQ(parse(format, options, pieces), whole) << text;
  }
  return whole;
}

std::string block(const std::string& inside) {
  return "<｜DSML｜tool_calls>\n" + inside + "</｜DSML｜tool_calls>";
}
std::string invoke(const std::string& name, const std::string& inside) {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + inside + "\n</｜DSML｜invoke>\n";
}
std::string parameter(const std::string& name, const std::string& value, bool text = true) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + (text ? "true" : "false") + "\">" + value +
         "</｜DSML｜parameter>";
}

TEST(OutputParser, ReasoningOfV4) {
  Joined out = parse_any_way(kV4, kThinking, "I think.\n</think>Paris </think> it is.");
  EXPECT_EQ(out.reasoning, "I think.\n");
  EXPECT_EQ(out.content, "Paris </think> it is.") << "only the first end counts";
  // Cut off before the end: all of it is reasoning.
  out = parse_any_way(kV4, kThinking, "I think that</thin");
  EXPECT_EQ(out.reasoning, "I think that</thin");
  EXPECT_EQ(out.content, "");
  // Chat mode: the prompt has closed it.
  out = parse_any_way(kV4, kCalls, "Paris </think> it is.");
  EXPECT_EQ(out.content, "Paris </think> it is.");
  EXPECT_EQ(out.reasoning, "");
}

TEST(OutputParser, ReasoningOfQwen) {
  for (const bool open : {false, true}) {
    const OutputOptions options{.reasoning_open = open};
    const Joined out = parse_any_way(
        kQwen, options, std::string(open ? "" : "<think>") + "\nHm.\n\nYes.\n</think>\n\nParis\n");
    EXPECT_EQ(out.reasoning, "Hm.\n\nYes.");
    EXPECT_EQ(out.content, "Paris\n");
  }
  Joined out = parse_any_way(kQwen, {}, "\n<think>\n\n</think>\n\nParis");
  EXPECT_EQ(out.reasoning, "");
  EXPECT_EQ(out.content, "Paris");
  // A tag that does not begin the answer is text, and so is one that is not finished.
  EXPECT_EQ(parse_any_way(kQwen, {}, "A <think>b</think>").content, "A <think>b</think>");
  EXPECT_EQ(parse_any_way(kQwen, {}, " <thin").content, " <thin");
  EXPECT_EQ(parse_any_way(kQwen, {}, "").content, "");
  const std::string blanks(40, '\n');
  EXPECT_EQ(parse_any_way(kQwen, {}, blanks + "<think>").content, blanks + "<think>");
}

TEST(OutputParser, CallsOfV4) {
  const std::string text =
      "Let me look.\n\n" +
      block(invoke("weather", parameter("city", "Pa\"r\nis ｜DSML｜ </｜DSML｜invoke>") + "\n" +
                                  parameter("days", "3", false)) +
            invoke("now", "") + invoke("f.g", parameter("x", "{\"a\": [1, 2.50]}", false)));
  Joined out = parse_any_way(kV4, kCalls, text);
  EXPECT_EQ(out.content, "Let me look.");
  ASSERT_EQ(out.calls.size(), 3);
  EXPECT_EQ(out.calls[0].first, "weather");
  EXPECT_EQ(out.calls[0].second, R"({"city": "Pa\"r\nis ｜DSML｜ </｜DSML｜invoke>", "days": 3})");
  EXPECT_EQ(out.calls[1], std::make_pair(std::string("now"), std::string("{}")));
  EXPECT_EQ(out.calls[2], std::make_pair(std::string("f.g"), std::string(R"({"x": {"a": [1, 2.50]}})")));
  EXPECT_TRUE(out.called);

  out = parse_any_way(kV4, kThinking, "Hm " + block("") + "</think>" + text + "\nDone.\n");
  EXPECT_EQ(out.reasoning, "Hm " + block("")) << "no calls while reasoning";
  EXPECT_EQ(out.content, "Let me look.\nDone.\n");
  EXPECT_EQ(out.calls.size(), 3);

  EXPECT_EQ(parse_any_way(kV4, kCalls, text + " \n").content, "Let me look.") << "blanks at the end";
  out = parse_any_way(kV4, {.tool_calls = true, .parallel_tool_calls = false}, text);
  ASSERT_EQ(out.calls.size(), 1);
  EXPECT_EQ(out.calls[0].first, "weather");
  // Without tools in the request they are text.
  EXPECT_EQ(parse_any_way(kV4, {}, text).content, text);
}

TEST(OutputParser, ValuesThatAreNoJsonAreText) {
  const Joined out =
      parse_any_way(kV4, kCalls,
                    block(invoke("f", parameter("a", "Paris", false) + parameter("b", "", false) +
                                          parameter("c", "nul", false))));
  ASSERT_EQ(out.calls.size(), 1);
  EXPECT_EQ(out.calls[0].second, R"({"a": "Paris", "b": "", "c": "nul"})");
}

TEST(OutputParser, BrokenBlocksOfV4AreContent) {
  const std::string good = invoke("f", parameter("a", "1", false));
  const std::vector<std::string> broken = {
      "<｜DSML｜tool_calls>",
      "<｜DSML｜tool_calls",
      "x\n\n<｜DSML｜tool_calls>\n",
      "<｜DSML｜tool_calls>\nI would call f",
      block("text"),
      block(""),
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n" + parameter("a", "never clo"),
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">cut "
      "o",
      block("<｜DSML｜invoke name=\"\">\n\n</｜DSML｜invoke>\n"),
      block("<｜DSML｜invoke name=\"f\nname=\">\n\n</｜DSML｜invoke>\n"),
      block("<｜DSML｜invoke name=\"f\" x=\"\">\n\n</｜DSML｜invoke>\n"),
      block(invoke("f", "<｜DSML｜parameter name=\"a\" string=\"maybe\">1</｜DSML｜parameter>")),
      block(invoke("f", "<｜DSML｜parameter name=\"a\">1</｜DSML｜parameter>")),
      block(invoke("f", parameter("a", "1") + parameter("a", "2"))),
      block(invoke("f", "loose text")),
      invoke("f", parameter("a", "1")),
  };
  for (const std::string& text : broken) {
    const Joined out = parse_any_way(kV4, kCalls, "so: " + text + " end");
    EXPECT_EQ(out.content, "so: " + text + " end");
    EXPECT_TRUE(out.calls.empty()) << text;
    EXPECT_FALSE(out.called);
  }
  // A good call before it stays one; a good block behind it is one.
  Joined out =
      parse_any_way(kV4, kCalls, "<｜DSML｜tool_calls>\n" + good + "<｜DSML｜invoke name=\"g\">\n<｜DSML");
  EXPECT_EQ(out.calls.size(), 1);
  EXPECT_EQ(out.content, "\n<｜DSML｜invoke name=\"g\">\n<｜DSML");
  out = parse_any_way(kV4, kCalls, "<｜DSML｜tool_calls>\nno " + block(good));
  EXPECT_EQ(out.calls.size(), 1);
  EXPECT_EQ(out.content, "<｜DSML｜tool_calls>\nno");
}

TEST(OutputParser, CallsOfHermes) {
  const Joined out =
      parse_any_way(kQwen, kCalls,
                    "<think>\nHm.\n</think>\n\nSure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": "
                    "12345678901234567890123, \"a\": "
                    "\"</tool_call> } \\\" \"}}\n</tool_call>\n<tool_call>{\"arguments\":\"{\\\"x\\\": "
                    "1}\",\"name\":\"g\"}</tool_call>\n"
                    "<tool_call>\n{\"name\": \"h\", \"arguments\": null}\n</tool_call>\n");
  EXPECT_EQ(out.reasoning, "Hm.");
  EXPECT_EQ(out.content, "Sure.");
  ASSERT_EQ(out.calls.size(), 3);
  EXPECT_EQ(out.calls[0].first, "f");
  EXPECT_EQ(out.calls[0].second, R"({"b": 12345678901234567890123, "a": "</tool_call> } \" "})")
      << "as it was written";
  EXPECT_EQ(out.calls[1], std::make_pair(std::string("g"), std::string(R"({"x": 1})")));
  EXPECT_EQ(out.calls[2], std::make_pair(std::string("h"), std::string("{}")));
}

TEST(OutputParser, BrokenBlocksOfHermesAreContent) {
  for (const std::string text :
       {"<tool_call>", "<tool_call>\n", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1",
        "<tool_call>{}</tool_call>", "<tool_call>[1]</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": 7}</tool_call>", "<tool_call>{\"name\": \"f\"}",
        "<tool_call>{\"name\": \"f\"} and</tool_call>", "<tool_call>{name: f}</tool_call>",
        "<tool_call>{]</tool_call>", "<tool_call>f()</tool_call>", "</tool_call>"}) {
    const Joined out = parse_any_way(kQwen, kCalls, "so: " + text + " end");
    EXPECT_EQ(out.content, "so: " + text + " end");
    EXPECT_TRUE(out.calls.empty()) << text;
  }
}

const OutputOptions kGlmCalls{.tool_calls = true, .tools_json = R"([{"type": "function", "function": {
  "name": "weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}, "fine": {"type": "boolean"},
    "note": {"type": ["string", "null"]}, "where": {"anyOf": [{"type": "string"}, {"type": "array"}]},
    "code": {"type": "string", "pattern": "[0-9]+"}, "share": {"type": "number"}}}}}])"};

std::string glm_call(const std::string& name, const std::vector<std::pair<std::string, std::string>>& values,
                     const std::string& gap = "\n") {
  std::string out = "<tool_call>" + name + gap;
  for (const auto& [key, value] : values)
    out += "<arg_key>" + key + "</arg_key>" + gap + "<arg_value>" + value + "</arg_value>" + gap;
  return out + "</tool_call>";
}

TEST(OutputParser, CallsOfGlm) {
  for (const std::string gap : {"\n", "", " \n\n"}) {  // 4.5 breaks lines, 4.7 does not
    const Joined out = parse_any_way(
        kGlm, kGlmCalls,
        "\n<think>Hm.</think>\nSure.\n" +
            glm_call("weather", {{"city", " New\nYork <b> \"x\""}, {"days", "3"}}, gap) + "\n" +
            glm_call("now", {}, gap) + "\n" + glm_call("f.g", {{"x", "{\"a\": [1, 2.50]}"}}, gap) + "\n");
    EXPECT_EQ(out.reasoning, "Hm.");
    EXPECT_EQ(out.content, "Sure.");
    ASSERT_EQ(out.calls.size(), 3);
    EXPECT_EQ(out.calls[0].first, "weather");
    EXPECT_EQ(out.calls[0].second, R"({"city": " New\nYork <b> \"x\"", "days": 3})");
    EXPECT_EQ(out.calls[1], std::make_pair(std::string("now"), std::string("{}")));
    EXPECT_EQ(out.calls[2], std::make_pair(std::string("f.g"), std::string(R"({"x": {"a": [1, 2.50]}})")));
  }
  const std::string two = glm_call("now", {}) + glm_call("now", {});
  EXPECT_EQ(parse_any_way(kGlm, {.tool_calls = true, .parallel_tool_calls = false}, two).calls.size(), 1);
  EXPECT_EQ(parse_any_way(kGlm, {}, two).content, two) << "without tools they are text";
}

// The notation does not say what is text: the schema does.
TEST(OutputParser, ValuesOfGlmHaveTheSchemasTypes) {
  const auto value = [](const std::string& key, const std::string& text,
                        const std::string& tool = "weather") {
    const Joined out = parse_any_way(kGlm, kGlmCalls, glm_call(tool, {{key, text}}));
    EXPECT_EQ(out.calls.size(), 1);
    const std::string head = "{\"" + key + "\": ";
    if (out.calls.empty() || !out.calls[0].second.starts_with(head)) return std::string("none");
    return out.calls[0].second.substr(head.size(), out.calls[0].second.size() - head.size() - 1);
  };
  EXPECT_EQ(value("city", "42"), R"("42")");
  EXPECT_EQ(value("city", "\"Rome\""), R"("\"Rome\"")");
  EXPECT_EQ(value("city", ""), R"("")");
  EXPECT_EQ(value("unit", "C"), R"("C")");
  EXPECT_EQ(value("days", " 7\n"), "7");
  EXPECT_EQ(value("days", "12345678901234567890123"), "12345678901234567890123");
  EXPECT_EQ(value("days", "seven"), R"("seven")") << "no JSON";
  EXPECT_EQ(value("fine", "true"), "true");
  EXPECT_EQ(value("share", "3"), "3") << "a whole number is a number";
  EXPECT_EQ(value("note", "null"), "null");
  EXPECT_EQ(value("note", "42"), R"("42")");
  EXPECT_EQ(value("where", "[1]"), "[1]");
  EXPECT_EQ(value("where", "true"), R"("true")");
  EXPECT_EQ(value("code", "\"17\""), R"("17")") << "as enforced calls write it";
  EXPECT_EQ(value("code", "17"), R"("17")");
  EXPECT_EQ(value("other", "17"), "17") << "not declared";
  EXPECT_EQ(value("city", "42", "unknown"), "42");
}

TEST(OutputParser, BrokenBlocksOfGlmAreContent) {
  const std::string open = "<tool_call>", close = "</tool_call>";
  for (const std::string& text :
       {open, open + "\n", open + close, open + "weather", open + "weather\n<arg_k",
        open + "the weather" + close, open + "{\"name\": \"f\"}" + close,
        open + "f\n<arg_key>a</arg_key>\n" + close, open + "f\n<arg_key>a</arg_key>1" + close,
        open + "f\n<arg_key>a</arg_key>\n<arg_value>never clo",
        open + "f\n<arg_key></arg_key>\n<arg_value>1</arg_value>" + close,
        open + "f\n<arg_key>a\n</arg_key>\n<arg_value>1</arg_value>" + close,
        open + "f\n<arg_key>a<b</arg_key>\n<arg_value>1</arg_value>" + close,
        open + "f\n<arg_value>1</arg_value>" + close, open + "f\nloose" + close,
        glm_call("f", {{"a", "1"}, {"a", "2"}}), close}) {
    const Joined out = parse_any_way(kGlm, kGlmCalls, "so: " + text + " end");
    EXPECT_EQ(out.content, "so: " + text + " end");
    EXPECT_TRUE(out.calls.empty()) << text;
  }
  const Joined out = parse_any_way(kGlm, kGlmCalls, open + "no " + glm_call("now", {}));
  EXPECT_EQ(out.calls.size(), 1) << "a good block behind it";
}

TEST(OutputParser, TextFlowsAsItComes) {
  OutputParser parser(kV4, kCalls);
  const auto push = [&](const std::string& piece) {
    OutputDeltas deltas;
    parser.push(piece, deltas);
    return deltas;
  };
  OutputDeltas deltas = push("Hello, wor");
  ASSERT_EQ(deltas.size(), 1);
  EXPECT_EQ(deltas[0].text, "Hello, wor");
  deltas = push("ld <");
  ASSERT_EQ(deltas.size(), 1);
  EXPECT_EQ(deltas[0].text, "ld") << "only what may begin a block is held, and the blanks before it";
  deltas = push("b>");
  ASSERT_EQ(deltas.size(), 1);
  EXPECT_EQ(deltas[0].text, " <b>");
  // A call is given as soon as it is complete, whatever follows.
  deltas = push("<｜DSML｜tool_calls>" + invoke("f", parameter("a", "1", false) + parameter("b", "x")));
  ASSERT_EQ(deltas.size(), 4);
  EXPECT_EQ(deltas[0].kind, OutputDelta::Kind::call);
  EXPECT_EQ(deltas[1].text + "|" + deltas[2].text + "|" + deltas[3].text, R"({"a": 1|, "b": "x"|})");
}

// Pieces of all formats in random order: no cut changes what comes out, arguments are always JSON objects,
// and no letter is lost outside calls.
TEST(OutputParser, AnyText) {
  const std::vector<std::string> words = {"<｜DSML｜tool_calls>",
                                          "</｜DSML｜tool_calls>",
                                          "<｜DSML｜invoke name=\"",
                                          "f\">",
                                          "</｜DSML｜invoke>",
                                          "<｜DSML｜parameter name=\"",
                                          "a\" string=\"true\">",
                                          "b\" string=\"false\">",
                                          "</｜DSML｜parameter>",
                                          "\n",
                                          "  ",
                                          "x",
                                          "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
                                          "<tool_call>",
                                          "</tool_call>",
                                          "{",
                                          "}",
                                          "\"",
                                          "\\",
                                          "<think>",
                                          "</think>",
                                          "<",
                                          "é",
                                          "1",
                                          "<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>",
                                          "{\"name\": \"g\"}</tool_call>",
                                          "<arg_key>",
                                          "a</arg_key>",
                                          "<arg_value>",
                                          "</arg_value>",
                                          "f\n"};
  std::mt19937 random(11);
  int calls = 0;
  for (int round = 0; round < 8000; ++round) {
    std::vector<std::string> pieces;
    std::string text;
    // Half of them begin as a good block does, else hardly any would become one.
    if (round % 6 == 0) pieces = {words[0], words[2], words[3]};
    if (round % 6 == 2) pieces = {words[13], words[12]};
    if (round % 6 == 4) pieces = {words[13], "f\n"};
    for (size_t count = random() % 12; count > 0; --count) pieces.push_back(words[random() % words.size()]);
    for (const std::string& piece : pieces) text += piece;
    for (const OutputFormat& format : {kV4, kQwen, kGlm}) {
      const OutputOptions options{.reasoning_open = random() % 4 == 0, .tool_calls = true};
      const Joined whole = parse(format, options, {text});
      ASSERT_EQ(parse(format, options, pieces), whole) << text;
      std::vector<std::string> bytes;
      for (const char c : text) bytes.emplace_back(1, c);
      ASSERT_EQ(parse(format, options, bytes), whole) << text;
      for (const auto& [name, arguments] : whole.calls) {
        ASSERT_TRUE(nlohmann::json::parse(arguments, nullptr, false).is_object()) << arguments;
        ++calls;
      }
      if (!whole.calls.empty()) continue;
      const auto letters = [](std::string_view from) {
        std::string out;
        for (const char c : from) {
          if (c != '\n' && c != ' ') out += c;
        }
        return out;
      };
      std::string kept = letters(whole.reasoning + whole.content), all = letters(text);
      for (const std::string_view tag : {"<think>", "</think>"}) {
        for (std::string* each : {&kept, &all}) {
          for (size_t at; (at = each->find(tag)) != std::string::npos;) each->erase(at, tag.size());
        }
      }
      ASSERT_EQ(kept, all) << text;
    }
  }
  EXPECT_GT(calls, 100) << "the texts must have calls";
}

// What a token at a time costs must not grow with what is held.
TEST(OutputParser, LongValues) {
  OutputParser parser(kV4, kCalls);
  OutputDeltas deltas;
  parser.push(
      "<｜DSML｜tool_calls><｜DSML｜invoke name=\"write\"><｜DSML｜parameter name=\"text\" string=\"true\">",
      deltas);
  std::string value;
  for (int i = 0; i < 200000; ++i) {
    parser.push("abcde ", deltas);
    value += "abcde ";
  }
  ASSERT_TRUE(deltas.empty());
  parser.push("</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>", deltas);
  ASSERT_EQ(deltas.size(), 3);
  EXPECT_EQ(deltas[1].text + deltas[2].text, "{\"text\": \"" + value + "\"}");
}

TEST(OutputParser, Names) {
  EXPECT_EQ(find_reasoning_format("deepseek_v4"), ReasoningFormat::tags);
  EXPECT_EQ(find_reasoning_format("qwen3"), ReasoningFormat::trimmed_tags);
  EXPECT_EQ(find_reasoning_format("hermes"), std::nullopt);
  EXPECT_EQ(find_tool_call_format("deepseek_v4"), ToolCallFormat::dsml);
  EXPECT_EQ(find_tool_call_format("hermes"), ToolCallFormat::hermes);
  EXPECT_EQ(find_reasoning_format("glm45"), ReasoningFormat::trimmed_tags);
  EXPECT_EQ(find_tool_call_format("glm45"), ToolCallFormat::glm);
  EXPECT_EQ(find_tool_call_format("glm47"), ToolCallFormat::glm);
  EXPECT_EQ(find_tool_call_format("none"), ToolCallFormat::none);
  EXPECT_EQ(find_tool_call_format("auto"), std::nullopt);
}

TEST(JsonMembers, AsTheyStand) {
  const auto members = json_members(R"( { "a" : [1, {"x": ","}] , "b\"}": "c:\\" ,"d":-1.50e3} )");
  ASSERT_EQ(members.size(), 3);
  EXPECT_EQ(members[0].key + "=" + std::string(members[0].value), R"(a=[1, {"x": ","}])");
  EXPECT_EQ(members[1].key + "=" + std::string(members[1].value), R"(b"}="c:\\")");
  EXPECT_EQ(members[2].key + "=" + std::string(members[2].value), "d=-1.50e3");
  EXPECT_TRUE(json_members("{ }").empty());
}

}  // namespace
}  // namespace tandem
