#include "serving/chat_format.h"

#include <gtest/gtest.h>

#include "base/file.h"

namespace tandem {
namespace {

ChatTemplateSource source_of(const std::string& file) {
  return {.text = read_file("tests/fixtures/chat_templates/" + file, 1 << 20).value(),
          .file = file,
          .bos_token = "<s>",
          .eos_token = "</s>"};
}

ChatFormat format_of(const ChatTemplateSource& source, const OutputChoice& choice = {}) {
  auto format = make_chat_format(source, choice);
  EXPECT_TRUE(format) << format.error().message;
  return format ? std::move(*format) : ChatFormat();
}

TEST(ChatFormat, WhatTemplatesHaveAPlaceFor) {
  const ChatFormat qwen = format_of(source_of("qwen3.jinja"));
  EXPECT_TRUE(qwen.features.tools);
  EXPECT_TRUE(qwen.features.tool_messages);
  EXPECT_TRUE(qwen.features.reads_tool_calls);
  EXPECT_FALSE(qwen.features.reasoning_effort);
  EXPECT_FALSE(qwen.features.latest_reminder);
  EXPECT_EQ(qwen.output.reasoning, ReasoningFormat::trimmed_tags);
  EXPECT_EQ(qwen.output.tool_calls, ToolCallFormat::hermes);

  const ChatFormat v31 = format_of(source_of("deepseek_v31.jinja"));
  EXPECT_TRUE(v31.features.tool_messages);
  EXPECT_FALSE(v31.features.reads_tool_calls) << "its own tool tokens have no parser";
  EXPECT_EQ(v31.output.reasoning, ReasoningFormat::trimmed_tags);

  const ChatFormat mixtral = format_of(source_of("mixtral.jinja"));
  EXPECT_FALSE(mixtral.features.tools);
  EXPECT_FALSE(mixtral.features.tool_messages);
  EXPECT_EQ(mixtral.output.reasoning, ReasoningFormat::none);

  const ChatFormat effort =
      format_of({.text = "{{ messages[0].content }} {{ reasoning_effort }}", .file = "t"});
  EXPECT_TRUE(effort.features.reasoning_effort);
}

// In the manner of gpt-oss': it looks for marks in every content that is there, and has its own name for
// reasoning.
TEST(ChatFormat, Harmony) {
  const ChatFormat format = format_of(
      {.text = "{% for m in messages %}<|start|>{{ m.role }}{% if 'content' in m and '<|channel|>' in "
               "m.content %}!"
               "{% endif %}{% if m.tool_calls %} to={{ m.tool_calls[0].function.name }}{% endif %}<|message|>"
               "{{ m.thinking or m.content or '' }}<|end|>{% endfor %}<|start|>assistant{% if tools %}"
               "{{ tools[0].function.name }}{% endif %}",
       .file = "t"});
  EXPECT_EQ(format.output.reasoning, ReasoningFormat::harmony);
  EXPECT_EQ(format.output.tool_calls, ToolCallFormat::harmony);
  EXPECT_TRUE(format.features.tools && format.features.tool_messages && format.features.reads_tool_calls);
  EXPECT_EQ(format.features.call_format, "harmony");
  ChatInput input;
  input.messages.push_back({.role = "user", .content = "q"});
  input.messages.push_back({.role = "assistant",
                            .has_content = false,
                            .reasoning_content = "why",
                            .tool_calls = {{.id = "call00001", .name = "f", .arguments = "{}"}}});
  input.messages.push_back({.role = "assistant", .content = "a", .reasoning_content = "not seen again"});
  const auto prompt = format.render(input);
  ASSERT_TRUE(prompt) << prompt.error().message;
  EXPECT_EQ(prompt->text,
            "<|start|>user<|message|>q<|end|><|start|>assistant to=f<|message|>why<|end|>"
            "<|start|>assistant<|message|>a<|end|><|start|>assistant");
}

TEST(ChatFormat, Glm) {
  for (const char* file : {"glm45.jinja", "glm47.jinja"}) {
    const ChatFormat glm = format_of(source_of(file));
    EXPECT_TRUE(glm.features.tools && glm.features.tool_messages && glm.features.reads_tool_calls) << file;
    EXPECT_EQ(glm.features.thinking_switch, "enable_thinking") << file;
    EXPECT_EQ(glm.features.call_format, "glm") << file;
    EXPECT_EQ(glm.output.reasoning, ReasoningFormat::trimmed_tags) << file;
    EXPECT_EQ(glm.output.tool_calls, ToolCallFormat::glm) << file;
  }
  const ChatFormat qwen2 = format_of(source_of("qwen2.jinja")), olmoe = format_of(source_of("olmoe.jinja"));
  for (const ChatFormat& plain : {qwen2, olmoe}) {
    EXPECT_FALSE(plain.features.tools || plain.features.tool_messages || plain.features.reasons);
    EXPECT_EQ(plain.output.tool_calls, ToolCallFormat::none);
  }
}

// Templates that write arguments as they come get their text, others an object.
TEST(ChatFormat, ArgumentsAsTheTemplateWantsThem) {
  const std::string head = "{% for m in messages %}{% for c in m.tool_calls %}";
  const std::string tail = "{% endfor %}{% endfor %}";
  ChatInput input;
  input.messages.push_back({.role = "user", .content = "q"});
  input.messages.push_back({.role = "assistant",
                            .has_content = false,
                            .tool_calls = {{.id = "c", .name = "f", .arguments = "{\"b\":1,\"a\":\"x\"}"}}});
  for (const auto& [body, wanted] :
       {std::pair<std::string, std::string>{"{{ c.function.name + c.function.arguments }}",
                                            "f{\"b\":1,\"a\":\"x\"}"},
        {"{{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}",
         "fb=1;a=x;"}}) {
    const ChatFormat format = format_of({.text = head + body + tail, .file = "t"});
    EXPECT_TRUE(format.features.tool_messages) << body;
    const auto prompt = format.render(input);
    ASSERT_TRUE(prompt) << prompt.error().message;
    EXPECT_EQ(prompt->text, wanted);
  }
}

TEST(ChatFormat, DeveloperIsSystemToATemplate) {
  const ChatFormat format = format_of({.text = "{{ messages[0].role }}", .file = "t"});
  ChatInput input;
  input.messages.push_back({.role = "developer", .content = "q"});
  EXPECT_EQ(format.render(input)->text, "system");
}

TEST(ChatFormat, DeepseekV4NeedsNoTemplate) {
  ChatInput input;
  input.messages.push_back({.role = "user", .content = "q"});
  input.kwargs_json = R"({"reasoning_effort": "max"})";
  ChatTemplateSource source{.is_deepseek_v4 = true};
  const ChatFormat format = format_of(source);
  EXPECT_TRUE(format.features.tools && format.features.tool_messages && format.features.latest_reminder &&
              format.features.reasoning_effort && format.features.reads_tool_calls);
  EXPECT_EQ(format.output.tool_calls, ToolCallFormat::dsml);
  const std::string preview = format.render(input)->text;
  source.has_dspark = true;
  EXPECT_NE(format_of(source).render(input)->text, preview) << "later releases have another text for it";
  source.text = "own";
  EXPECT_EQ(format_of(source).render(input)->text, "own") << "a template wins";
  EXPECT_FALSE(format_of({}).render) << "neither: no chat";
}

TEST(ChatFormat, ParsersByName) {
  const ChatFormat format =
      format_of(source_of("deepseek_v31.jinja"), {.reasoning_parser = "none", .tool_call_parser = "hermes"});
  EXPECT_EQ(format.output.reasoning, ReasoningFormat::none);
  EXPECT_EQ(format.output.tool_calls, ToolCallFormat::hermes);
  EXPECT_TRUE(format.features.reads_tool_calls);
  EXPECT_TRUE(
      format_of(source_of("deepseek_v31.jinja"), {.tool_call_parser = "none"}).features.reads_tool_calls)
      << "calls as text are wanted";
  const auto wrong = make_chat_format({}, {.reasoning_parser = "mine"});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message, "reasoning_parser: there is no mine");
}

}  // namespace
}  // namespace tandem
