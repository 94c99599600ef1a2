#include "grammar/tool_call_grammar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "grammar/grammar_testing.h"

namespace tandem {
namespace {

// Two tools, the first strict.
std::string form(const std::string& format, const std::string& more) {
  return R"({"format": ")" + format + R"(", "tools": [
    {"name": "weather", "strict": true, "parameters": {"type": "object", "properties": {
      "city": {"type": "string", "description": "where"}, "unit": {"type": "string", "enum": ["C", "F"]},
      "days": {"$ref": "#/$defs/days"}}, "required": ["city"], "additionalProperties": false,
      "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}}},
    {"name": "now", "parameters": {"type": "object", "properties": {"zone": {"type": "string", "format": "odd"}}}}
  ])" + more +
         "}";
}

Read read(const std::string& form_json, std::string_view text) {
  const auto rules = tool_call_grammar(form_json);
  EXPECT_TRUE(rules.has_value()) << rules.error().message;
  return rules ? read_text(*rules, text) : Read::no;
}

std::string hermes(const std::string& name, const std::string& arguments) {
  return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments + "}\n</tool_call>";
}

TEST(ToolCallGrammar, RequiredCalls) {
  const std::string one = form("hermes", R"(, "required": true, "parallel": false)");
  const std::string good = hermes("weather", R"({"city": "Köln", "days": 3})");
  EXPECT_EQ(read(one, good), Read::whole);
  EXPECT_EQ(read(one, "\n\n" + good), Read::whole);
  EXPECT_EQ(read(one, hermes("now", R"({"anything": [1, {}]})")), Read::whole) << "not strict: any object";
  EXPECT_EQ(read(one, hermes("weather", "{}")), Read::no) << "city is required";
  EXPECT_EQ(read(one, hermes("weather", R"({"city": "a", "days": 12})")), Read::no);
  EXPECT_EQ(read(one, hermes("other", "{}")), Read::no);
  EXPECT_EQ(read(one, "Let me see. " + good), Read::no);
  EXPECT_EQ(read(one, ""), Read::begun);
  EXPECT_EQ(read(one, good + "\n" + good), Read::no);
  EXPECT_EQ(read(form("hermes", R"(, "required": true)"), good + "\n" + good), Read::whole);
}

TEST(ToolCallGrammar, TextBeforeCallsThatMayBeMade) {
  const std::string may = form("hermes", "");
  const std::string good = hermes("weather", R"({"city": "Köln"})");
  for (const char* text : {"", "a", "a < b <<t <tool> <tool_ca", "<<", "<tool_call", "größer\n"}) {
    EXPECT_EQ(read(may, text), Read::whole) << text;
    EXPECT_EQ(read(may, text + good), Read::whole) << text;
    EXPECT_EQ(read(may, text + hermes("weather", "{}")), Read::no) << text;
  }
  EXPECT_EQ(read(may, "x<<tool_call>"), Read::begun);
  EXPECT_EQ(read(may, "x<tool_<tool_call>y"), Read::no) << "the mark, wherever it begins";
  EXPECT_EQ(read(may, good + " That was it."), Read::no);
}

TEST(ToolCallGrammar, AFormInsteadOfText) {
  const std::string either =
      form("hermes", R"(, "answer": {"kind": 2, "text": "{\"enum\": [\"yes\", \"no\"]}"})");
  EXPECT_EQ(read(either, "\"yes\""), Read::whole);
  EXPECT_EQ(read(either, hermes("now", "{}")), Read::whole);
  EXPECT_EQ(read(either, "\"maybe\""), Read::no);
  EXPECT_EQ(read(either, "\"yes\"" + hermes("now", "{}")), Read::no) << "one or the other";
  EXPECT_EQ(read(either, "yes"), Read::no);
}

std::string dsml(const std::string& invocations) {
  return "<｜DSML｜tool_calls>\n" + invocations + "</｜DSML｜tool_calls>";
}
std::string invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + parameters + "</｜DSML｜invoke>\n";
}
std::string parameter(const std::string& name, bool is_text, const std::string& value) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + (is_text ? "true" : "false") + "\">" + value +
         "</｜DSML｜parameter>\n";
}

TEST(ToolCallGrammar, Dsml) {
  const std::string needed = form("dsml", R"(, "required": true)");
  const std::string city = parameter("city", true, "Köln \"<b>\" </｜DSML");
  EXPECT_EQ(read(needed, dsml(invoke("weather", city))), Read::whole);
  const std::string all = city + parameter("unit", true, "F") + parameter("days", false, "3");
  EXPECT_EQ(read(needed, dsml(invoke("weather", all) + invoke("now", parameter("zone", false, "[1]")))),
            Read::whole);
  EXPECT_EQ(read(needed, dsml(invoke("now", ""))), Read::whole);
  EXPECT_EQ(read(needed, dsml(invoke("weather", ""))), Read::no) << "city is required";
  EXPECT_EQ(read(needed, dsml(invoke("weather", city + parameter("unit", true, "K")))), Read::no);
  EXPECT_EQ(read(needed, dsml(invoke("weather", city + parameter("days", false, "10")))), Read::no);
  EXPECT_EQ(read(needed, dsml(invoke("weather", city + city))), Read::no) << "twice is malformed";
  EXPECT_EQ(read(needed, dsml("")), Read::no);
  const std::string may = form("dsml", R"(, "parallel": false)");
  EXPECT_EQ(read(may, "Let me see: 1 < 2.\n\n" + dsml(invoke("now", ""))), Read::whole);
  EXPECT_EQ(read(may, dsml(invoke("now", "") + invoke("now", ""))), Read::no);
}

std::string glm(const std::string& name, const std::string& values, const std::string& gap = "\n") {
  return "<tool_call>" + name + gap + values + "</tool_call>";
}
std::string value(const std::string& key, const std::string& text, const std::string& gap = "\n") {
  return "<arg_key>" + key + "</arg_key>" + gap + "<arg_value>" + text + "</arg_value>" + gap;
}

TEST(ToolCallGrammar, CallsOfGlm) {
  const std::string one = form("glm", R"(, "required": true, "parallel": false)");
  for (const std::string gap : {"\n", ""}) {
    EXPECT_EQ(read(one, glm("weather",
                            value("city", "Köln <x> </arg_ \"q\"\n", gap) + value("unit", "C", gap) +
                                value("days", "3", gap),
                            gap)),
              Read::whole);
    EXPECT_EQ(read(one, glm("now", "", gap)), Read::whole);
  }
  const std::string city = value("city", "a");
  EXPECT_EQ(read(one, "\n" + glm("weather", city)), Read::whole);
  EXPECT_EQ(read(one, glm("weather", value("unit", "C"))), Read::no) << "city is required";
  EXPECT_EQ(read(one, glm("weather", city + value("unit", "K"))), Read::no);
  EXPECT_EQ(read(one, glm("weather", city + value("days", "12"))), Read::no);
  EXPECT_EQ(read(one, glm("weather", city + value("days", "x"))), Read::no);
  EXPECT_EQ(read(one, glm("weather", city + value("wind", "1"))), Read::no) << "not declared";
  EXPECT_EQ(read(one, glm("weather", city + "x")), Read::no);
  EXPECT_EQ(read(one, glm("other", "")), Read::no);
  EXPECT_EQ(read(one, glm("weathers", city)), Read::no);
  EXPECT_EQ(read(one, glm("now", value("zone", "{\"any\": 1"))), Read::whole) << "not strict: any value";
  EXPECT_EQ(read(one, glm("now", "") + "\n" + glm("now", "")), Read::no);
  const std::string may = form("glm", "");
  for (const char* text : {"", "Let me see.\n", "a <tool_ca"}) {
    EXPECT_EQ(read(may, text), Read::whole) << text;
    EXPECT_EQ(read(may, text + glm("now", "") + "\n" + glm("weather", city) + glm("now", "")), Read::whole);
    EXPECT_EQ(read(may, text + glm("weather", "")), Read::no) << text;
  }
}

// What a parser takes as it is, an enforced call writes as it is.
TEST(ToolCallGrammar, WhatIsWrittenAsText) {
  using Json = nlohmann::ordered_json;
  for (const char* text : {R"({"type": "string", "description": "d"})", R"({"enum": ["a", "b"]})",
                           R"({"type": "string", "enum": ["a"]})"})
    EXPECT_TRUE(is_written_as_text(Json::parse(text))) << text;
  for (const char* json : {R"({"type": "string", "pattern": "a"})", R"({"type": ["string", "null"]})", "{}",
                           R"({"enum": ["a", 1]})", R"({"enum": ["<a"]})", R"({"type": "integer"})", "true"})
    EXPECT_FALSE(is_written_as_text(Json::parse(json))) << json;
  const std::string patterned = R"({"format": "glm", "required": true, "tools": [{"name": "f", "strict": true,
      "parameters": {"type": "object", "properties": {"code": {"type": "string", "pattern": "^[0-9]{2}$"}},
      "required": ["code"], "additionalProperties": false}}]})";
  EXPECT_EQ(read(patterned, glm("f", value("code", "\"17\""))), Read::whole);
  EXPECT_EQ(read(patterned, glm("f", value("code", "17"))), Read::no);
}

TEST(ToolCallGrammar, RefusesByName) {
  const auto refused = [](const std::string& text) {
    const auto rules = tool_call_grammar(text);
    EXPECT_FALSE(rules.has_value());
    return rules ? "" : rules.error().message;
  };
  const std::string schema = refused(R"({"format": "hermes", "tools": [{"name": "f", "strict": true,
      "parameters": {"type": "object", "patternProperties": {"a": {}}}}]})");
  EXPECT_TRUE(schema.starts_with("the function f: ")) << schema;
  EXPECT_NE(schema.find("patternProperties"), std::string::npos) << schema;
  EXPECT_NE(
      refused(R"({"format": "dsml", "tools": [{"name": "f", "parameters": {"properties": {"a\"b": {}}}}]})")
          .find("cannot be written"),
      std::string::npos);
  EXPECT_NE(refused("{}").find("list of tools"), std::string::npos);
}

}  // namespace
}  // namespace tandem
