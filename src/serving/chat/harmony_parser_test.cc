#include "serving/chat/harmony_parser.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace tandem {
namespace {

using Kind = OutputDelta::Kind;

struct Parts {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Parts&) const = default;
};

// With gpt-oss' formats, as a server makes the parser.
Parts parse(const std::string& text, size_t piece, bool tools = true) {
  OutputFormat format;
  format.reasoning = find_reasoning_format("gpt_oss").value();
  format.tool_calls = find_tool_call_format("gpt_oss").value();
  OutputOptions options;
  options.tool_calls = tools;
  OutputParser parser(format, options);
  OutputDeltas deltas;
  for (size_t at = 0; at < text.size(); at += piece)
    parser.push(std::string_view(text).substr(at, piece), deltas);
  parser.finish(deltas);
  Parts parts;
  for (const OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case Kind::reasoning:
        parts.reasoning += delta.text;
        break;
      case Kind::content:
        parts.content += delta.text;
        break;
      case Kind::call:
        EXPECT_EQ(delta.call, parts.calls.size());
        parts.calls.emplace_back(delta.text, "");
        break;
      case Kind::arguments:
        parts.calls.at(delta.call).second += delta.text;
        break;
    }
  }
  EXPECT_EQ(parser.called(), !parts.calls.empty());
  return parts;
}

// However it is cut.
void expect_parts(const std::string& text, const Parts& wanted, bool tools = true) {
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
    const Parts got = parse(text, piece, tools);
    EXPECT_EQ(got.reasoning, wanted.reasoning) << piece;
    EXPECT_EQ(got.content, wanted.content) << piece;
    EXPECT_EQ(got.calls, wanted.calls) << piece;
  }
}

TEST(HarmonyParser, ReasoningThenAnswer) {
  const Parts wanted{"2 < 3, and <| is no mark.", "Three.\n", {}};
  const std::string text =
      "<|channel|>analysis<|message|>2 < 3, and <| is no "
      "mark.<|end|><|start|>assistant<|channel|>final<|message|>"
      "Three.\n";
  expect_parts(text, wanted);
  expect_parts(text + "<|return|>", wanted);
  expect_parts("<|channel|>final<|message|>Three.\n", {"", "Three.\n", {}});
  // Cut off.
  expect_parts("<|channel|>analysis<|message|>Let me", {"Let me", "", {}});
}

TEST(HarmonyParser, Calls) {
  const std::string call =
      "<|start|>assistant<|channel|>commentary to=functions.get_weather "
      "<|constrain|>json<|message|>{\"city\": "
      "\"Rome<|\"}";
  const Parts wanted{"Look.", "", {{"get_weather", "{\"city\": \"Rome<|\"}"}}};
  expect_parts("<|channel|>analysis<|message|>Look.<|end|>" + call, wanted);
  expect_parts("<|channel|>analysis<|message|>Look.<|end|>" + call + "<|call|>", wanted);
  // The recipient beside the role; text before a call; two calls.
  expect_parts(
      "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant "
      "to=functions.a<|channel|>commentary<|message|>{}"
      "<|call|><|start|>assistant<|channel|>commentary to=functions.b<|message|>{\"x\":1}<|call|>",
      {"", "I look.", {{"a", "{}"}, {"b", "{\"x\":1}"}}});
}

// Marks in a text of the arguments are letters.
TEST(HarmonyParser, MarksInsideArguments) {
  const std::string header = "<|channel|>commentary to=functions.a<|message|>";
  for (const std::string inside : {"<|call|>", "<|end|><|start|>assistant", "\\\"}<|return|>"}) {
    const std::string arguments = "{\"x\": [\"" + inside + "\"]}";
    expect_parts(header + arguments + "<|call|>", {"", "", {{"a", arguments}}});
    expect_parts(header + " " + arguments + "\n<|end|><|start|>assistant" + header + "{}",
                 {"", "", {{"a", " " + arguments + "\n"}, {"a", "{}"}}});
    expect_parts(header + arguments, {"", "", {{"a", arguments}}});
  }
  // An object that is not closed, or has something behind it, ends at the first mark; what follows is read as
  // ever.
  const std::string rest = "<|start|>assistant<|channel|>final<|message|>Sorry.";
  expect_parts(header + "{\"x\": \"1<|call|>" + rest, {"", header + "{\"x\": \"1<|call|>Sorry.", {}});
  expect_parts(header + "{} or so<|end|>" + rest, {"", header + "{} or so<|end|>Sorry.", {}});
}

TEST(HarmonyParser, NothingIsLost) {
  const std::string header = "<|channel|>commentary to=functions.a <|constrain|>json<|message|>";
  // Without tools in the request, with arguments that are no object, cut off, to somebody else.
  expect_parts(header + "{}", {"", header + "{}", {}}, false);
  expect_parts(header + "[1]<|call|>", {"", header + "[1]<|call|>", {}});
  expect_parts(header + "{\"x\":", {"", header + "{\"x\":", {}});
  const std::string python = "<|channel|>analysis to=python<|message|>print(1)";
  expect_parts(python, {"", python, {}});
  // No harmony at all, and a header without a message.
  expect_parts("Just <b>text</b>.", {"", "Just <b>text</b>.", {}});
  expect_parts("<|channel|>final", {"", "<|channel|>final", {}});
  expect_parts("<table>", {"", "<table>", {}});
}

}  // namespace
}  // namespace tandem
