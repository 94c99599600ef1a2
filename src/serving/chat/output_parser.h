// OutputParser: takes the text of one answer apart while it is generated: reasoning, content, tool calls.
// What the deltas of an answer say when they are joined does not depend on how the text was cut into pieces,
// and no text is lost: a block that is malformed or cut off comes back as content, as the model wrote it. One
// per answer; one thread at a time.
//
// A further family is a ToolCallParser of its own (tool_call_parser.h) and a name in the tables of
// output_parser.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct OutputDelta {
  enum class Kind : uint8_t { content, reasoning, call, arguments };
  Kind kind = Kind::content;
  std::string text;   // call: the function's name; arguments: a piece of the JSON text
  uint32_t call = 0;  // of call and arguments: which call of the answer, from 0
};
using OutputDeltas = std::vector<OutputDelta>;

// How an answer marks its reasoning: <think> ... </think>; `trimmed_tags` with line breaks around that are no
// part of it, as Qwen3 writes them.
// `harmony`: gpt-oss' channels, of reasoning and calls alike.
enum class ReasoningFormat : uint8_t { none, tags, trimmed_tags, harmony };
// DeepSeek's <｜DSML｜tool_calls> blocks; <tool_call> with a JSON object, as Hermes and Qwen3 write it; with
// <arg_key> and <arg_value>, as GLM does.
enum class ToolCallFormat : uint8_t { none, dsml, hermes, glm, harmony };

struct OutputFormat {
  ReasoningFormat reasoning = ReasoningFormat::none;
  ToolCallFormat tool_calls = ToolCallFormat::none;
};

// vLLM's names: none, deepseek_v4, deepseek_r1, qwen3, glm45; none, deepseek_v4, hermes, glm45, glm47; and
// gpt_oss of both. Nothing for another name.
std::optional<ReasoningFormat> find_reasoning_format(std::string_view name);
std::optional<ToolCallFormat> find_tool_call_format(std::string_view name);

// Token texts that the format reads: an answer must keep them where a tokenizer calls them special.
std::vector<std::string> marker_tokens(const OutputFormat& format);

// What one request wants of it.
struct OutputOptions {
  bool reasoning_open = false;      // the prompt ended inside <think>
  bool tool_calls = false;          // the request has tools and may call them; else calls are text
  bool parallel_tool_calls = true;  // false: the first call alone, further ones are dropped
  // Its tools, a JSON list as OpenAI has it: what types arguments have, where the notation does not say.
  std::string tools_json = {};
};

class HarmonyParser;
class ThinkSplitter;
class ToolCallParser;

class OutputParser {
 public:
  OutputParser(const OutputFormat& format, const OutputOptions& options);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  // The next piece, of whole characters; appends what is decided by now.
  void push(std::string_view piece, OutputDeltas& out);
  // The answer has ended: what was held back.
  void finish(OutputDeltas& out);
  bool called() const { return called_; }  // a complete call has been given

 private:
  void pass(std::string_view content, OutputDeltas& out);
  void note_calls(OutputDeltas& out, size_t begin);

  std::unique_ptr<HarmonyParser> harmony_;  // alone, if it is there
  std::unique_ptr<ThinkSplitter> reasoning_;
  std::unique_ptr<ToolCallParser> tool_calls_;
  bool parallel_ = true;
  bool called_ = false;
};

}  // namespace tandem
