#include "grammar/json_schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "grammar/grammar_testing.h"

namespace tandem {
namespace {

struct Case {
  std::string schema;
  std::vector<std::string> valid, invalid;
};

void expect_case(const Case& c) {
  const auto rules = json_schema_grammar(c.schema);
  ASSERT_TRUE(rules.has_value()) << c.schema << ": " << rules.error().message;
  for (const std::string& text : c.valid) {
    EXPECT_EQ(read_text(*rules, text), Read::whole) << c.schema << " has " << text;
    EXPECT_TRUE(nlohmann::json::accept(text)) << text;
  }
  for (const std::string& text : c.invalid) {
    EXPECT_NE(read_text(*rules, text), Read::whole) << c.schema << " has not " << text;
  }
}

TEST(JsonSchema, Values) {
  expect_case({R"({})",
               {"1", "\"a\"", "null", R"({"a":[1,{}]})", "[]", "-0.5e+3"},
               {"", "01", "nul", "[1,]", "'a'"}});
  expect_case(
      {R"({"type":"string"})",
       {R"("")", R"("é\n\"\u00e9")", R"("/")", R"("\uD83D\ude00\ud7ff\ue000")"},
       {"\"\n\"", R"("\x")", R"("a)", "\"\xff\"", R"("\ud83d")", R"("\ud83d\u0041")", R"("\udc00")"}});
  // What a float64 cannot hold is no number to many parsers.
  expect_case({R"({"type":"number"})",
               {"9999999999999999999.9e289", "-1E99", "5e-07", "1e+100", "2e207"},
               {"1e290", "1e300", "1e999", "1e"}});
  expect_case({R"({"type":["integer","null"]})", {"null", "-7", "0"}, {"1.5", "true", "-"}});
  expect_case({R"({"type":"boolean"})", {"true", "false"}, {"True", "0"}});
  expect_case(
      {R"({"enum":["a",1,null,{"x":[true]}]})", {R"("a")", "1", "null", R"({"x":[true]})"}, {R"("b")", "2"}});
  expect_case({R"({"const":"é\""})", {R"("é\"")"}, {R"("é")"}});
  // The type says which of the values are meant; what else is said of them, nothing.
  expect_case(
      {R"({"type":["integer","boolean"],"enum":["a",1,2.0,2.5,true,null],"title":"t","x-names":["b"]})",
       {"1", "2.0", "true"},
       {R"("a")", "2.5", "null"}});
  expect_case(
      {R"({"type":"string","format":"odd","enum":["a",null],"nullable":true})", {R"("a")", "null"}, {"1"}});
  expect_case({R"({"type":"string","nullable":true})", {"null", R"("a")"}, {"1"}});
}

TEST(JsonSchema, Strings) {
  expect_case({R"({"type":"string","minLength":2,"maxLength":3})",
               {R"("ab")", R"("é\n😀")"},
               {R"("a")", R"("abcd")"}});
  expect_case({R"({"type":"string","pattern":"^[a-c]+$"})", {R"("abc")"}, {R"("")", R"("abd")"}});
  expect_case({R"({"type":"string","pattern":"b"})", {R"("abc")", R"("\"b")"}, {R"("ac")"}});
  // The pattern is about the text, not about how JSON writes it.
  expect_case({R"({"type":"string","pattern":"^[\"\\\\\n]$"})",
               {R"("\"")", R"("\\")", R"("\n")"},
               {R"("n")", R"(""")"}});
  expect_case({R"({"format":"date-time"})",
               {R"("2026-11-30T23:59:59.5Z")", R"("2026-02-01T00:00:00+02:00")"},
               {R"("2026-13-01T00:00:00Z")", R"("2026-11-30")"}});
  expect_case({R"({"type":"string","format":"uuid"})",
               {R"("123e4567-e89b-12d3-a456-426614174000")"},
               {R"("123e4567")"}});
  expect_case(
      {R"({"type":"string","format":"ipv4"})", {R"("255.0.10.1")"}, {R"("256.0.0.1")", R"("1.2.3")"}});
  expect_case(
      {R"({"type":"string","format":"email"})", {R"("a.b@example.com")"}, {R"("a@b")", R"("@b.de")"}});
  expect_case(
      {R"({"type":"string","format":"duration"})",
       {R"("P3D")", R"("P1Y2M3D")", R"("PT5M")", R"("P1Y")", R"("P2W")", R"("P1DT12H")", R"("PT1H30M10S")"},
       {R"("3D")", R"("P")", R"("PT")", R"("P1DT")", R"("PT5S3M")", R"("PT5M5M")", R"("P3D1M")"}});
  // Days that there are.
  expect_case(
      {R"({"type":"string","format":"date"})",
       {R"("2026-01-31")", R"("2026-04-30")", R"("2026-02-28")", R"("2024-02-29")", R"("2000-02-29")",
        R"("1996-02-29")", R"("2400-02-29")"},
       {R"("2026-02-29")", R"("1900-02-29")", R"("2023-02-29")", R"("2024-02-30")", R"("2026-04-31")",
        R"("2026-06-31")", R"("2026-11-31")", R"("2026-01-32")", R"("2026-00-10")", R"("2026-01-00")"}});
}

TEST(JsonSchema, Integers) {
  for (const auto& [low, high] : std::vector<std::pair<int, int>>{{0, 0},
                                                                  {0, 9},
                                                                  {1, 10},
                                                                  {7, 123},
                                                                  {-5, 5},
                                                                  {-120, -7},
                                                                  {99, 100},
                                                                  {-1, 0},
                                                                  {200, 299},
                                                                  {-300, 1001}}) {
    const nlohmann::json schema = {{"type", "integer"}, {"minimum", low}, {"maximum", high}};
    const auto rules = json_schema_grammar(schema.dump());
    ASSERT_TRUE(rules.has_value());
    for (int i = -1300; i <= 1300; ++i) {
      ASSERT_EQ(read_text(*rules, std::to_string(i)) == Read::whole, i >= low && i <= high)
          << schema << " " << i;
    }
    EXPECT_NE(read_text(*rules, "-0"), Read::whole);
    EXPECT_NE(read_text(*rules, "007"), Read::whole);
  }
  expect_case({R"({"type":"integer","exclusiveMinimum":10})",
               {"11", "100", "999999999999999999"},
               {"10", "9", "-11"}});
  expect_case({R"({"type":"integer","exclusiveMaximum":-3})", {"-4", "-50"}, {"-3", "0", "5"}});
  expect_case({R"({"type":"integer","minimum":999999999999999999,"maximum":9223372036854775807})",
               {"999999999999999999"},
               {"999999999999999998", "1000000000000000000"}});
}

TEST(JsonSchema, Arrays) {
  expect_case({R"({"type":"array","items":{"type":"integer"}})",
               {"[]", "[1,2]", "[1, 2]", "[\n  1,\n  2\n]"},
               {"[1.5]", "[,1]"}});
  expect_case({R"({"items":{"type":"integer"},"minItems":2,"maxItems":3})",
               {"[1,2]", "[1,2,3]"},
               {"[]", "[1]", "[1,2,3,4]"}});
  expect_case({R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}});
  expect_case({R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
               {"[]", "[1]", R"([1,"a"])"},
               {R"(["a"])", R"([1,"a",2])"}});
  expect_case(
      {R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":3,"maxItems":4})",
       {R"([1,"a",null])", R"([1,"a",null,null])"},
       {R"([1,"a"])", R"([1,"a",null,null,null])"}});
}

TEST(JsonSchema, Objects) {
  expect_case({R"({"type":"object"})", {"{}", R"({"a":1,"b":{"c":[]}})"}, {"[]", R"({"a"})", R"({"a":1,})"}});
  expect_case(
      {R"({"properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"null"}},"required":["b"]})",
       {R"({"b":""})", R"({"a":1,"b":""})", R"({"b": "x", "c": null})", R"({"a":1,"b":"","c":null})"},
       {"{}", R"({"a":1})", R"({"b":"","a":1})", R"({"b":"","d":1})", R"({"b":"",})", R"({,"b":""})"}});
  expect_case(
      {R"({"properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
       {"{}", R"({"ab":1})", R"({"x":true})", R"({"ab":1,"abc":true,"a":false,"":true})", R"({"b\n":true})"},
       {R"({"ab":true})", R"({"x":1})", R"({"\u0061b":true})"}});
  expect_case({R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"}});
  expect_case(
      {R"({"type":"object","required":["q"]})", {R"({"q":[1]})", R"({"q":1,"a":2})"}, {"{}", R"({"a":2})"}});
}

TEST(JsonSchema, ReferencesMayRecur) {
  expect_case({R"({"$defs":{"node":{"type":"object","properties":{"value":{"type":"integer"},"next":{"anyOf":[
                    {"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["value","next"]}},"$ref":"#/$defs/node"})",
               {R"({"value":1,"next":{"value":2,"next":null}})"},
               {R"({"value":1})", R"({"value":1,"next":{}})"}});
  expect_case(
      {R"({"definitions":{"a/b":{"type":"integer"}},"type":"array","items":{"$ref":"#/definitions/a~1b"}})",
       {"[1]"},
       {"[null]"}});
}

TEST(JsonSchema, AllOfMergesObjects) {
  expect_case(
      {R"({"$defs":{"base":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}},
                  "allOf":[{"$ref":"#/$defs/base"},{"properties":{"name":{"type":"string"}},"required":["name"]}]})",
       {R"({"id":1,"name":"x"})"},
       {R"({"id":1})", R"({"name":"x"})"}});
  expect_case({R"({"allOf":[{"type":"integer"}],"description":"one"})", {"1"}, {"null"}});
}

std::string refusal(const std::string& schema) {
  const auto rules = json_schema_grammar(schema);
  EXPECT_FALSE(rules.has_value()) << schema;
  return rules ? "" : rules.error().message;
}

TEST(JsonSchema, WhatItCannotKeepIsNamed) {
  struct Refused {
    const char *schema, *message;
  };
  for (const Refused& c : {
           Refused{"{", "is not JSON"},
           {R"({"not":{}})", R"(at #: the keyword "not" is not supported)"},
           {R"({"properties":{"a":{"uniqueItems":true}}})",
            R"(at #/properties/a: the keyword "uniqueItems")"},
           {R"({"properties":{"a":{"type":"number","minimum":1}}})", R"("minimum" of a number)"},
           {R"({"items":{"type":"date"}})", R"(at #/items: unknown type "date")"},
           {R"({"type":"string","format":"color"})", R"(format "color" is not supported; it may be date,)"},
           {R"_({"type":"string","pattern":"(?=a)"})_", "lookahead is not supported"},
           {R"({"type":"string","pattern":"a","maxLength":3})", "a length beside a pattern"},
           {R"({"$ref":"other.json"})", "leaves the document"},
           {R"({"$ref":"#/$defs/missing"})", "leads nowhere"},
           {R"({"$ref":"#","type":"object"})", R"("type" beside "$ref")"},
           {R"({"anyOf":[{"type":"null"}],"properties":{}})", R"("properties" beside "anyOf")"},
           {R"({"enum":[]})", "at least one value"},
           {R"({"type":"array","minItems":3,"maxItems":2})", "minItems is above maxItems"},
           {R"({"type":"array","maxItems":-1})", "maxItems is -1"},
           {R"({"type":"integer","minimum":5,"maximum":4})", "no integer lies within"},
           {R"({"type":"integer","minimum":1.5})", "minimum is 1.5"},
           {R"({"type":"string","enum":[1,2]})", "no value of enum has the type \"string\""},
           {R"({"type":"integer","const":1.5})", "no value of const has the type \"integer\""},
           {R"({"enum":[1,2,3],"minimum":2})", R"("minimum" beside "enum")"},
           {R"({"const":"a","pattern":"b"})", R"("pattern" beside "const")"},
           {R"({"type":"integer","minimum":1000000000000000000})", "more than 18 digits"},
           {R"({"type":"integer","exclusiveMaximum":-999999999999999999})", "more than 18 digits"},
           {R"({"type":"string","pattern":"^a$","format":"date"})", "a format beside a pattern"},
           {R"({"properties":{"a":{}},"required":["b"]})", R"(required names "b")"},
           {R"({"allOf":[{"type":"object"},{"type":"string"}]})", R"("type" inside allOf)"},
           {R"({"$defs":{"a":{"properties":{}}},"allOf":[{"$ref":"#/$defs/a","required":["x"]},{}]})",
            R"("required" beside "$ref")"},
           {R"({"properties":{"a":false}})", "at #/properties/a: false allows no value"},
           {R"([1])", "is not a schema"},
       }) {
    EXPECT_NE(refusal(c.schema).find(c.message), std::string::npos) << c.schema << ": " << refusal(c.schema);
  }
  std::string deep = "{}";
  for (int i = 0; i < 80; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_NE(refusal(deep).find("nesting deeper than 64"), std::string::npos);
  const std::string brackets(100000, '[');
  EXPECT_NE(refusal(R"({"const":)" + brackets).find("nests deeper than 128 levels"), std::string::npos);
  EXPECT_NE(refusal(R"({"properties":{")" + std::string(2000, 'n') + R"(":{}},"additionalProperties":true})")
                .find("whose name has 2000 bytes"),
            std::string::npos);
  // A schema that is nothing but itself.
  const auto self = json_schema_grammar(R"({"$ref":"#"})");
  ASSERT_TRUE(self.has_value());
  EXPECT_NE(GrammarNetwork::build(*self).error().message.find("left recursion"), std::string::npos);
}

}  // namespace
}  // namespace tandem
