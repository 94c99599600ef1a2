#include "serving/form_place.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

// An answer in harmony is messages: its form, the reasoning before it and calls are one grammar of those.
std::optional<ApiError> put_into_messages(const ServedModel& model, GrammarSpec& grammar) {
  if (grammar.reasoning_budget != UINT32_MAX) {
    return ApiError{
        .message =
            "a budget of reasoning (thinking.budget_tokens, thinking_token_budget) is not kept in "
            "gpt-oss' messages: leave it out, or give a reasoning_effort"};
  }
  if (grammar.empty()) return std::nullopt;
  for (const char* mark : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"}) {
    const auto id = model.tokenizer->id_of(mark);
    if (id && model.tokenizer->is_control(*id)) continue;
    return ApiError{
        .message = fmt::format("an answer of a given form is written in harmony messages for this model, "
                               "which need {} as a control token, and the tokenizer has none: give text as "
                               "the form, and tool_choice auto",
                               mark)};
  }
  if (grammar.kind == GrammarKind::tool_calls) return std::nullopt;  // of these messages already
  const nlohmann::ordered_json form = {
      {"format", "harmony"},
      {"reasoning", model.output_format.reasoning == ReasoningFormat::harmony},
      {"tools", nlohmann::ordered_json::array()},
      {"answer", {{"kind", static_cast<int>(grammar.kind)}, {"text", grammar.text}}}};
  grammar.kind = GrammarKind::tool_calls;
  grammar.text = form.dump();
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> place_form(const ServedModel& model, bool reasoning_open, GrammarSpec& grammar) {
  const bool has_budget = grammar.reasoning_budget != UINT32_MAX;
  if (grammar.empty() && !has_budget) return std::nullopt;
  const OutputFormat& format = model.output_format;
  if (format.reasoning == ReasoningFormat::harmony || format.tool_calls == ToolCallFormat::harmony)
    return put_into_messages(model, grammar);
  if (model.output_format.reasoning == ReasoningFormat::none) {
    // A model that does not reason keeps every budget.
    grammar.reasoning_budget = UINT32_MAX;
    return std::nullopt;
  }
  grammar.reasoning_begin = model.tokenizer->id_of("<think>").value_or(-1);
  grammar.reasoning_end = model.tokenizer->id_of("</think>").value_or(-1);
  grammar.in_reasoning = reasoning_open;
  if (grammar.reasoning_end < 0) grammar.reasoning_begin = -1;
  if (grammar.reasoning_end >= 0) return std::nullopt;
  if (has_budget) {
    return ApiError{
        .message =
            "a budget of reasoning (thinking.budget_tokens, thinking_token_budget) needs </think> as a "
            "token, and the tokenizer has none: leave it out"};
  }
  if (!reasoning_open) return std::nullopt;
  return ApiError{.message =
                      "an answer of a given form behind reasoning needs </think> as a token, and the "
                      "tokenizer has none: switch reasoning off with chat_template_kwargs"};
}

}  // namespace tandem
