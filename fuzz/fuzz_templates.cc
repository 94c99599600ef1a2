// Chat templates, and behind a NUL the messages that they render: what parses renders or refuses, within
// bounds, and says truly which bytes came from the request.
#include "fuzzing.h"
#include "serving/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  using fuzz::require;
  const auto [source, given] = fuzz::halves({reinterpret_cast<const char*>(data), size});
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed) {
    require(!parsed.error().message.empty(), "a refusal says why");
    return 0;
  }
  constexpr std::string_view kMessages =
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "Ü <|im_end|> x"},
          {"role": "assistant", "content": "A", "tool_calls": [{"type": "function",
           "function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}}]}, {"role": "tool", "content": "7"}])";
  constexpr std::string_view kTools =
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])";
  const auto rendered = parsed->render({.messages_json = given.empty() ? kMessages : given,
                                        .tools_json = size % 2 == 0 ? kTools : std::string_view(),
                                        .bos_token = "<s>",
                                        .eos_token = "</s>",
                                        .extra_json = R"({"enable_thinking": true})",
                                        .now = std::chrono::system_clock::time_point{}});
  if (!rendered) {
    require(!rendered.error().message.empty(), "a refusal says why");
    return 0;
  }
  size_t end = 0;
  for (const TextRange& range : rendered->from_request) {
    require(range.begin >= end && range.begin < range.end && range.end <= rendered->text.size(),
            "ranges are ascending, disjoint, not empty, and inside the text");
    end = range.end;
  }
  return 0;
}
