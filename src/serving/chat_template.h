// A model's chat template: a subset of Jinja that renders the templates of DeepSeek, Qwen, Mixtral and Llama
// as transformers' apply_chat_template does (trim_blocks, lstrip_blocks, no autoescape). What it cannot
// render is refused when the template is parsed, naming construct and line.
//
// Immutable once parsed; any number of threads may render it. Time and memory of a rendering are bounded.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

struct ChatRenderOptions {
  std::string_view messages_json;    // an array of objects
  std::string_view tools_json = {};  // an array, or empty: the template sees none
  bool add_generation_prompt = true;
  std::string_view bos_token = {};  // empty: the template sees it as undefined
  std::string_view eos_token = {};
  std::string_view extra_json = {};  // an object: further variables (enable_thinking, ...), or empty
  // What strftime_now says; now when absent.
  std::optional<std::chrono::system_clock::time_point> now = std::nullopt;
};

struct RenderedChat {
  std::string text;
  // Bytes of `text` that came from messages, tools or extra variables, ascending and disjoint: give them to
  // EncodeOptions::plain_ranges, so that no message can write a control token. With add_special_tokens false,
  // since the template writes BOS itself.
  std::vector<TextRange> from_request;
};

class ChatTemplate {
 public:
  // Errors: `unsupported` naming a construct that is not implemented, `invalid_argument` for bad syntax; both
  // with the line.
  static Result<ChatTemplate> parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Errors: `invalid_argument` for JSON that is not what it should be, for what the template refuses
  // (raise_exception) and for operations on wrong types; `resource_exhausted` when a rendering would take too
  // long.
  Result<RenderedChat> render(const ChatRenderOptions& options) const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

}  // namespace tandem
