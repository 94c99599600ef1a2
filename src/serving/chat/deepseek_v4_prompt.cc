#include "serving/chat/deepseek_v4_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "serving/chat/deepseek_v4_text.h"
#include "serving/chat/marked_text.h"
#include "serving/jinja/value.h"

namespace tandem {

namespace {

using nlohmann::json;

struct Variables {
  bool thinking = false;
  bool drop_thinking = true;
  std::string effort;  // "" for what the release does by itself
};

std::unexpected<Error> refuse(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

Result<Variables> read_variables(const std::string& kwargs_json) {
  const json kwargs = json::parse(kwargs_json, nullptr, false);
  if (!kwargs.is_object()) return refuse("chat_template_kwargs: it must be an object");
  Variables out;
  std::optional<bool> thinking;
  for (const auto& [name, value] : kwargs.items()) {
    if (value.is_null()) continue;
    const auto wrong = [&](const char* want) {
      return refuse(fmt::format("chat_template_kwargs.{} is {}; it must be {}", name,
                                value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 80),
                                want));
    };
    if (name == "thinking" || name == "enable_thinking") {
      if (!value.is_boolean()) return wrong("true or false");
      thinking = thinking.value_or(false) || value.get<bool>();
    } else if (name == "drop_thinking") {
      if (!value.is_boolean()) return wrong("true or false");
      out.drop_thinking = value.get<bool>();
    } else if (name == "reasoning_effort") {
      static constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
      if (!value.is_string() || std::find(std::begin(kEfforts), std::end(kEfforts),
                                          value.get_ref<const std::string&>()) == std::end(kEfforts)) {
        return wrong("none, minimal, low, medium, high, xhigh or max");
      }
      out.effort = value.get<std::string>();
    } else {
      return refuse(fmt::format(
          "chat_template_kwargs.{} is not a variable of DeepSeek-V4's prompt: remove it; known are "
          "thinking, enable_thinking, reasoning_effort and drop_thinking",
          name));
    }
  }
  out.thinking = out.effort == "none" ? false : thinking.value_or(!out.effort.empty());
  return out;
}

std::string_view effort_text(const Variables& variables, const DeepseekV4Style& style) {
  const std::string& effort = variables.effort;
  if (!style.three_efforts) {
    return effort == "xhigh" || effort == "max" ? kDeepseekV4HighEffort : std::string_view();
  }
  if (effort == "max") return kDeepseekV4MaxEffort;
  return effort == "high" || effort == "xhigh" ? kDeepseekV4HighEffort : std::string_view();
}

// A message, or several that become one turn: results of tools are part of the user's turn.
struct Turn {
  struct Part {
    bool is_result = false;
    std::string_view text;
    std::string_view id;
  };
  std::string_view role;
  const ChatMessage* message = nullptr;  // null: made up to hold the tools
  std::vector<Part> parts;               // of a user
  bool tools = false;                    // declared here

  bool asks() const { return role == "user" || role == "developer"; }
};

std::vector<Turn> make_turns(const ChatInput& input) {
  std::vector<Turn> turns;
  if (!input.tools_json.empty() && input.messages.front().role != "system" &&
      input.messages.front().role != "developer") {
    turns.push_back({.role = "system", .parts = {}, .tools = true});
  }
  for (const ChatMessage& message : input.messages) {
    const bool is_result = message.role == "tool";
    if (!is_result && message.role != "user") {
      turns.push_back({.role = message.role, .message = &message, .parts = {}});
      if (turns.size() == 1 && !input.tools_json.empty()) turns.back().tools = true;
      continue;
    }
    if (turns.empty() || turns.back().role != "user") {
      turns.push_back({.role = "user", .message = &message, .parts = {}});
    }
    turns.back().parts.push_back({is_result, message.content, message.tool_call_id});
  }
  return turns;
}

// Results in the order of the calls that they answer, whatever the client's.
void sort_results(std::vector<Turn>& turns) {
  std::map<std::string_view, size_t> order;
  for (Turn& turn : turns) {
    if (turn.role == "assistant" && !turn.message->tool_calls.empty()) {
      order.clear();
      for (const ToolCall& call : turn.message->tool_calls) order.emplace(call.id, order.size());
      continue;
    }
    std::vector<Turn::Part> results;
    for (const Turn::Part& part : turn.parts) {
      if (part.is_result) results.push_back(part);
    }
    const auto place = [&](const Turn::Part& part) {
      const auto found = order.find(part.id);
      return found == order.end() ? 0 : found->second;
    };
    std::stable_sort(results.begin(), results.end(),
                     [&](const Turn::Part& a, const Turn::Part& b) { return place(a) < place(b); });
    auto next = results.begin();
    for (Turn::Part& part : turn.parts) {
      if (part.is_result) part = *next++;
    }
  }
}

size_t last_question(const std::vector<Turn>& turns) {
  size_t at = turns.size();
  while (at > 0 && !turns[at - 1].asks()) --at;
  return at;  // one behind it; 0 for none
}

Status check_turns(const ChatInput& input, const std::vector<Turn>& turns) {
  for (size_t i = 0; i < input.messages.size(); ++i) {
    if (input.messages[i].role == "developer" && input.messages[i].content.empty()) {
      return refuse(fmt::format("messages[{}].content is empty: a developer message needs text", i));
    }
  }
  if (!input.add_generation_prompt || turns.back().asks()) return {};
  return refuse(fmt::format(
      "messages[{}] has the role {}: DeepSeek-V4 answers a user, tool or developer message; add one, or set "
      "add_generation_prompt to false",
      input.messages.size() - 1, input.messages.back().role));
}

class Writer {
 public:
  Writer(const ChatInput& input, const Variables& variables) : input_(input), variables_(variables) {}

  Status write(const std::vector<Turn>& turns, std::string_view effort) {
    text_.format("<｜begin▁of▁sentence｜>");
    if (variables_.thinking) text_.format(effort);
    const size_t questions_end = last_question(turns);
    for (size_t i = 0; i < turns.size(); ++i) {
      const bool current = i + 1 >= questions_end;  // the last question, or behind it
      TANDEM_TRY(write_turn(turns[i], !variables_.drop_thinking || i >= questions_end));
      const bool last = i + 1 == turns.size();
      if (!turns[i].asks() || (last && !input_.add_generation_prompt)) continue;
      if (!last && turns[i + 1].role != "assistant" && turns[i + 1].role != "latest_reminder") continue;
      text_.format("<｜Assistant｜>");
      text_.format(variables_.thinking && (!variables_.drop_thinking || current) ? "<think>" : "</think>");
    }
    return {};
  }

  ChatPrompt take() { return text_.take(); }

 private:
  Status write_turn(const Turn& turn, bool with_reasoning) {
    if (turn.role == "assistant") return write_assistant(*turn.message, with_reasoning);
    if (turn.role == "user") {
      text_.format("<｜User｜>");
      for (size_t i = 0; i < turn.parts.size(); ++i) {
        const Turn::Part& part = turn.parts[i];
        if (i != 0) text_.format("\n\n");
        if (part.is_result) text_.format("<tool_result>");
        text_.request(part.text);
        if (part.is_result) text_.format("</tool_result>");
      }
      return {};
    }
    if (turn.role == "developer") text_.format("<｜User｜>");
    if (turn.role == "latest_reminder") text_.format("<｜latest_reminder｜>");
    if (turn.message != nullptr) text_.request(turn.message->content);
    return turn.tools ? write_tools() : Status();
  }

  Status write_assistant(const ChatMessage& message, bool with_reasoning) {
    if (variables_.thinking && with_reasoning) {
      text_.request(message.reasoning_content);
      text_.format("</think>");
    }
    text_.request(message.content);
    if (!message.tool_calls.empty()) {
      text_.format("\n\n<｜DSML｜tool_calls>\n");
      for (const ToolCall& call : message.tool_calls) TANDEM_TRY(write_call(call));
      text_.format("</｜DSML｜tool_calls>");
    }
    text_.format("<｜end▁of▁sentence｜>");
    return {};
  }

  Status write_call(const ToolCall& call) {
    text_.format("<｜DSML｜invoke name=\"");
    text_.request(call.name);
    text_.format("\">\n");
    TANDEM_ASSIGN(const jinja::Value arguments, jinja::from_json(call.arguments));
    if (arguments.map() == nullptr)
      return refuse("tool_calls: the arguments of " + call.name + " must be an object");
    bool first = true;
    for (const auto& [key, value] : arguments.map()->entries) {
      text_.format(first ? "<｜DSML｜parameter name=\"" : "\n<｜DSML｜parameter name=\"");
      first = false;
      text_.request(key.text()->bytes);
      const bool is_text = value.text() != nullptr;
      text_.format(is_text ? "\" string=\"true\">" : "\" string=\"false\">");
      if (is_text) {
        text_.request(value.text()->bytes);
      } else {
        TANDEM_ASSIGN(const jinja::Text written, jinja::to_json(value, {}));
        text_.request(written.bytes);
      }
      text_.format("</｜DSML｜parameter>");
    }
    text_.format("\n</｜DSML｜invoke>\n");
    return {};
  }

  Status write_tools() {
    text_.format("\n\n");
    text_.format(kDeepseekV4ToolsHead);
    TANDEM_ASSIGN(const jinja::Value tools, jinja::from_json(input_.tools_json));
    if (tools.list() == nullptr) return refuse("tools: it must be an array");
    bool first = true;
    for (const jinja::Value& tool : tools.list()->items) {
      const jinja::Value* function = tool.find("function");
      if (function == nullptr) return refuse("tools: an entry has no function");
      TANDEM_ASSIGN(const jinja::Text written, jinja::to_json(*function, {}));
      if (!first) text_.format("\n");
      first = false;
      text_.request(written.bytes);
    }
    text_.format(kDeepseekV4ToolsTail);
    return {};
  }

  const ChatInput& input_;
  const Variables& variables_;
  MarkedText text_;
};

}  // namespace

Result<ChatPrompt> render_deepseek_v4(const ChatInput& input, const DeepseekV4Style& style) {
  TANDEM_ASSIGN(Variables variables, read_variables(input.kwargs_json));
  if (input.messages.empty()) return refuse("messages: there are none");
  std::vector<Turn> turns = make_turns(input);
  TANDEM_TRY(check_turns(input, turns));
  sort_results(turns);
  if (!input.tools_json.empty()) variables.drop_thinking = false;
  if (variables.thinking && variables.drop_thinking) {
    const size_t end = last_question(turns);
    size_t at = 0;
    std::erase_if(turns, [&](const Turn& turn) { return ++at < end && turn.role == "developer"; });
  }
  Writer writer(input, variables);
  TANDEM_TRY(writer.write(turns, effort_text(variables, style)));
  return writer.take();
}

}  // namespace tandem
