#include "serving/response_items.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "serving/tool_fields.h"

namespace tandem {

using nlohmann::json;

namespace {

void add_line(std::string& text, const std::string& more) {
  if (!text.empty()) text += '\n';
  text += more;
}

class ItemReader {
 public:
  ItemReader(FieldReader& fields, const ChatFeatures& features, ChatInput& out)
      : fields_(fields), features_(features), out_(out) {}

  void read(const json& list) {
    for (size_t i = 0; i < list.size() && fields_.ok(); ++i) {
      const std::string name = fmt::format("input[{}]", i);
      if (!list[i].is_object())
        return fields_.fail("input", fmt::format("{} is {}; it must be an object", name, shown(list[i])));
      FieldReader item(list[i], name + ".");
      read_item(item, name);
      fail_with(fields_, "input", item);
    }
  }

 private:
  void read_item(FieldReader& item, const std::string& name) {
    const std::string type = item.text("type").value_or("message");
    item.accept({"id", "status"});  // of a reply that comes back
    if (type == "message") {
      read_message(item, name);
    } else if (type == "function_call") {
      read_call(item, name);
    } else if (type == "function_call_output") {
      read_output(item, name);
    } else if (type == "reasoning") {
      read_reasoning(item, name);
    } else if (type == "item_reference") {
      item.fail("type",
                name + ".type is \"item_reference\", and nothing is stored here: send the item itself");
    } else {
      item.fail("type", fmt::format("{}.type is {}; supported are message, function_call, "
                                    "function_call_output and reasoning",
                                    name, shown(json(type))));
    }
  }

  void read_message(FieldReader& item, const std::string& name) {
    const std::string role = item.text("role").value_or("");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
      return item.fail("role", fmt::format("{}.role is {}; it must be user, assistant, system or developer",
                                           name, role.empty() ? "missing" : shown(json(role))));
    }
    item.accept({"phase"});
    std::string text = read_text(item, "content", name);
    if (role != "assistant") {
      out_.messages.push_back({.role = role, .content = std::move(text)});
      return;
    }
    ChatMessage& message = assistant_turn(/*with_content=*/true);
    message.content = std::move(text);
    message.has_content = true;
  }

  void read_call(FieldReader& item, const std::string& name) {
    if (!features_.tool_messages) {
      item.fail("type", name +
                            ".type is \"function_call\", and this model's chat template has no place for "
                            "tool calls: send the text of the call");
    }
    ToolCall call;
    call.id = item.text("call_id").value_or("");
    if (call.id.empty()) item.fail("call_id", name + ".call_id is missing");
    const json* tool = item.take("name");
    if (tool == nullptr || !is_tool_name(*tool)) {
      item.fail("name", fmt::format("{}.name is {}; it must be a function's name", name,
                                    tool == nullptr ? "missing" : shown(*tool)));
    } else {
      call.name = tool->get<std::string>();
    }
    call.arguments = item.text("arguments").value_or("{}");
    if (!json::parse(call.arguments, nullptr, false).is_object()) {
      item.fail("arguments", fmt::format("{}.arguments is {}; it must be the JSON text of an object", name,
                                         shown(json(call.arguments))));
    }
    calls_.insert(call.id);
    assistant_turn(/*with_content=*/false).tool_calls.push_back(std::move(call));
  }

  void read_output(FieldReader& item, const std::string& name) {
    ChatMessage message{.role = "tool"};
    message.tool_call_id = item.text("call_id").value_or("");
    if (calls_.erase(message.tool_call_id) == 0) {
      item.fail("call_id", fmt::format("{}.call_id {} is no function_call before that waits for its output",
                                       name, shown(json(message.tool_call_id))));
    }
    item.accept({"name"});
    message.content = read_text(item, "output", name);
    out_.messages.push_back(std::move(message));
  }

  void read_reasoning(FieldReader& item, const std::string& name) {
    item.refuse("encrypted_content", "nothing is encrypted here: send the item with its content");
    std::string text;
    for (const auto& [field, part_type] :
         {std::pair("summary", "summary_text"), std::pair("content", "reasoning_text")}) {
      const json* list = item.take(field);
      if (list == nullptr) continue;
      for (const json& part : list->is_array() ? *list : json::array({*list})) {
        const bool good = part.is_object() && part.value("type", json()) == part_type &&
                          part.value("text", json()).is_string();
        if (!good) {
          return item.fail(field, fmt::format("{}.{} holds {}; it must hold texts of the type {}", name,
                                              field, shown(part), part_type));
        }
        if (std::string_view(field) == "content") add_line(text, part["text"].get<std::string>());
      }
    }
    if (!text.empty()) add_line(assistant_turn(/*with_content=*/false).reasoning_content, text);
  }

  // The message that an item of the assistant belongs to: reasoning, text and calls that follow each other
  // are one turn.
  ChatMessage& assistant_turn(bool with_content) {
    const bool goes_on =
        !out_.messages.empty() && out_.messages.back().role == "assistant" &&
        !(with_content && (out_.messages.back().has_content || !out_.messages.back().tool_calls.empty()));
    if (!goes_on) out_.messages.push_back({.role = "assistant", .has_content = false});
    return out_.messages.back();
  }

  // Text, or parts of it.
  static std::string read_text(FieldReader& item, const char* field, const std::string& name) {
    const json* value = item.take(field);
    if (value != nullptr && value->is_string()) return value->get<std::string>();
    std::string out;
    if (value == nullptr || !value->is_array()) {
      item.fail(field, fmt::format("{}.{} is {}; it must be a string or a list of text parts", name, field,
                                   value == nullptr ? "missing" : shown(*value)));
      return out;
    }
    for (const json& part : *value) {
      const json type = part.is_object() ? part.value("type", json()) : json();
      if (type != json("input_text") && type != json("output_text") && type != json("text")) {
        item.fail(field, fmt::format("{}.{} holds a part of the type {}; supported are input_text and "
                                     "output_text",
                                     name, field, shown(type)));
      } else if (!part.value("text", json()).is_string()) {
        item.fail(field, fmt::format("{}.{}: the text of a part is {}; it must be a string", name, field,
                                     shown(part.value("text", json()))));
      } else {
        add_line(out, part["text"].get<std::string>());
      }
    }
    return out;
  }

  FieldReader& fields_;
  const ChatFeatures& features_;
  ChatInput& out_;
  std::set<std::string> calls_;  // that have no output yet
};

}  // namespace

void read_input(FieldReader& fields, const ChatFeatures& features, ChatInput& out) {
  if (auto instructions = fields.text("instructions"); instructions && !instructions->empty())
    out.messages.push_back({.role = "system", .content = std::move(*instructions)});
  const json* input = fields.take("input");
  if (input != nullptr && input->is_string()) {
    out.messages.push_back({.role = "user", .content = input->get<std::string>()});
  } else if (input != nullptr && input->is_array() && !input->empty()) {
    ItemReader(fields, features, out).read(*input);
  } else {
    fields.fail("input", fmt::format("input is {}; it must be a string or a list of at least one item",
                                     input == nullptr ? "missing" : shown(*input)));
  }
}

}  // namespace tandem
