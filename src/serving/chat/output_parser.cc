#include "serving/chat/output_parser.h"

#include <algorithm>
#include <utility>

#include "serving/chat/dsml_parser.h"
#include "serving/chat/glm_parser.h"
#include "serving/chat/harmony_parser.h"
#include "serving/chat/hermes_parser.h"
#include "serving/chat/think_splitter.h"

namespace tandem {

std::optional<ReasoningFormat> find_reasoning_format(std::string_view name) {
  if (name == "none") return ReasoningFormat::none;
  if (name == "deepseek_v4") return ReasoningFormat::tags;
  if (name == "gpt_oss") return ReasoningFormat::harmony;
  // R1 and GLM break the line around their tags, as Qwen3 does.
  if (name == "qwen3" || name == "deepseek_r1" || name == "glm45") return ReasoningFormat::trimmed_tags;
  return std::nullopt;
}

std::optional<ToolCallFormat> find_tool_call_format(std::string_view name) {
  if (name == "none") return ToolCallFormat::none;
  if (name == "deepseek_v4") return ToolCallFormat::dsml;
  if (name == "hermes") return ToolCallFormat::hermes;
  if (name == "gpt_oss") return ToolCallFormat::harmony;
  // The later model writes no line breaks; both are read.
  if (name == "glm45" || name == "glm47") return ToolCallFormat::glm;
  return std::nullopt;
}

std::vector<std::string> marker_tokens(const OutputFormat& format) {
  std::vector<std::string> out;
  if (format.reasoning == ReasoningFormat::harmony || format.tool_calls == ToolCallFormat::harmony) {
    return {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"};
  }
  if (format.reasoning != ReasoningFormat::none) out.insert(out.end(), {"<think>", "</think>"});
  if (format.tool_calls == ToolCallFormat::dsml) out.emplace_back("｜DSML｜");
  const bool glm = format.tool_calls == ToolCallFormat::glm;
  if (glm || format.tool_calls == ToolCallFormat::hermes)
    out.insert(out.end(), {"<tool_call>", "</tool_call>"});
  if (glm) out.insert(out.end(), {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"});
  return out;
}

OutputParser::OutputParser(const OutputFormat& format, const OutputOptions& options)
    : parallel_(options.parallel_tool_calls) {
  const bool reasons = format.reasoning == ReasoningFormat::harmony;
  const bool calls = format.tool_calls == ToolCallFormat::harmony;
  if (reasons || calls) {
    harmony_ = std::make_unique<HarmonyParser>(reasons, calls && options.tool_calls);
    return;
  }
  if (format.reasoning != ReasoningFormat::none) {
    reasoning_ = std::make_unique<ThinkSplitter>(format.reasoning == ReasoningFormat::trimmed_tags,
                                                 options.reasoning_open);
  }
  if (!options.tool_calls) return;
  if (format.tool_calls == ToolCallFormat::dsml) tool_calls_ = std::make_unique<DsmlParser>();
  if (format.tool_calls == ToolCallFormat::hermes) tool_calls_ = std::make_unique<HermesParser>();
  if (format.tool_calls == ToolCallFormat::glm) tool_calls_ = std::make_unique<GlmParser>(options.tools_json);
}

OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

void OutputParser::push(std::string_view piece, OutputDeltas& out) {
  if (harmony_) {
    const size_t begin = out.size();
    harmony_->push(piece, out);
    return note_calls(out, begin);
  }
  if (!reasoning_) return pass(piece, out);
  std::string reasoning, content;
  reasoning_->push(piece, reasoning, content);
  if (!reasoning.empty()) out.push_back({OutputDelta::Kind::reasoning, std::move(reasoning), 0});
  pass(content, out);
}

void OutputParser::pass(std::string_view content, OutputDeltas& out) {
  if (content.empty()) return;
  if (!tool_calls_) {
    out.push_back({OutputDelta::Kind::content, std::string(content), 0});
    return;
  }
  const size_t begin = out.size();
  tool_calls_->push(content, out);
  note_calls(out, begin);
}

void OutputParser::finish(OutputDeltas& out) {
  if (harmony_) {
    const size_t begin = out.size();
    harmony_->finish(out);
    return note_calls(out, begin);
  }
  if (reasoning_) {
    std::string reasoning, content;
    reasoning_->finish(reasoning, content);
    if (!reasoning.empty()) out.push_back({OutputDelta::Kind::reasoning, std::move(reasoning), 0});
    pass(content, out);
  }
  if (!tool_calls_) return;
  const size_t begin = out.size();
  tool_calls_->finish(out);
  note_calls(out, begin);
}

void OutputParser::note_calls(OutputDeltas& out, size_t begin) {
  using Kind = OutputDelta::Kind;
  const auto first = out.begin() + static_cast<std::ptrdiff_t>(begin);
  called_ = called_ || std::any_of(first, out.end(), [](const auto& d) { return d.kind == Kind::call; });
  if (parallel_) return;
  out.erase(std::remove_if(first, out.end(),
                           [](const OutputDelta& delta) {
                             return delta.call > 0 &&
                                    (delta.kind == Kind::call || delta.kind == Kind::arguments);
                           }),
            out.end());
}

}  // namespace tandem
