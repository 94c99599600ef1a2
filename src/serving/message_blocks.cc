#include "serving/message_blocks.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "serving/tool_fields.h"

namespace tandem {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

void add_line(std::string& text, const std::string& more) {
  if (!text.empty()) text += '\n';
  text += more;
}

// One message, block by block.
class BlockReader {
 public:
  // `calls`: ids of the calls that tool results may answer.
  BlockReader(FieldReader& fields, const ChatFeatures& features, std::set<std::string>& calls)
      : fields_(fields), features_(features), calls_(calls) {}

  // Appends a user's message, its tool results before it.
  void read_user(const std::string& name, const json& content, ChatInput& out) {
    ChatMessage message{.role = "user"};
    bool has_text = false;
    each_block(name, content, [&](FieldReader& block, const std::string& type, size_t /*index*/) {
      if (type == "text") {
        add_line(message.content, text_of(block));
        has_text = true;
      } else if (type == "tool_result") {
        if (has_text)
          block.fail("type", name + ": blocks of the type tool_result come before text in a message");
        out.messages.push_back(tool_result(block, name));
      } else {
        unknown(block, name, type, "text and tool_result");
      }
    });
    // Turns of one speaker are one turn, as Anthropic has it.
    const bool goes_on =
        has_text && !out.messages.empty() && out.messages.back().role == "user" && fields_.ok();
    if (goes_on) {
      add_line(out.messages.back().content, message.content);
    } else if (has_text) {
      out.messages.push_back(std::move(message));
    }
    if (has_text) calls_.clear();
  }

  void read_assistant(const std::string& name, const json& content, const ordered_json& written,
                      ChatInput& out) {
    ChatMessage message{.role = "assistant", .has_content = false};
    each_block(name, content, [&](FieldReader& block, const std::string& type, size_t index) {
      if (type == "text") {
        add_line(message.content, text_of(block));
        message.has_content = true;
      } else if (type == "thinking") {
        add_line(message.reasoning_content, block.text("thinking").value_or(""));
        block.accept({"signature"});  // nothing here signs reasoning
      } else if (type == "tool_use") {
        const ordered_json* item = written.is_array() ? &written[index] : nullptr;
        message.tool_calls.push_back(tool_use(block, name, item));
      } else {
        unknown(block, name, type, "text, thinking and tool_use");
      }
    });
    calls_.clear();
    for (const ToolCall& call : message.tool_calls) calls_.insert(call.id);
    if (!message.tool_calls.empty() && !features_.tool_messages) {
      fields_.fail("messages", name +
                                   " has tool_use, and this model's chat template has no place for tool "
                                   "calls: send the text of the call");
    }
    const bool goes_on = !out.messages.empty() && out.messages.back().role == "assistant" &&
                         out.messages.back().tool_calls.empty() && fields_.ok();
    if (!goes_on) return out.messages.push_back(std::move(message));
    ChatMessage& last = out.messages.back();
    if (message.has_content) add_line(last.content, message.content);
    if (!message.reasoning_content.empty()) add_line(last.reasoning_content, message.reasoning_content);
    last.has_content = last.has_content || message.has_content;
    last.tool_calls = std::move(message.tool_calls);
  }

  // Text, or text blocks.
  std::string read_text(const std::string& name, const json& content) {
    std::string out;
    each_block(name, content, [&](FieldReader& block, const std::string& type, size_t /*index*/) {
      if (type == "text") {
        add_line(out, text_of(block));
      } else {
        unknown(block, name, type, "text");
      }
    });
    return out;
  }

 private:
  // `take(block, type, index)` reads the rest of each block. A string is one block of text.
  template <class Take>
  void each_block(const std::string& name, const json& content, const Take& take) {
    const json list = content.is_string()
                          ? json::array({{{"type", "text"}, {"text", content.get<std::string>()}}})
                          : content;
    if (!list.is_array()) {
      return fields_.fail("messages", fmt::format("{}.content is {}; it must be a string or a list of blocks",
                                                  name, shown(content)));
    }
    for (size_t i = 0; i < list.size() && fields_.ok(); ++i) {
      const std::string block_name = fmt::format("{}.content[{}]", name, i);
      if (!list[i].is_object()) {
        return fields_.fail("messages",
                            fmt::format("{} is {}; it must be an object", block_name, shown(list[i])));
      }
      FieldReader block(list[i], block_name + ".");
      const std::string type = block.text("type").value_or("");
      block.accept({"cache_control"});  // the prefix cache needs no marks
      take(block, type, i);
      fail_with(fields_, "messages", block);
    }
  }

  static void unknown(FieldReader& block, const std::string& name, const std::string& type,
                      std::string_view known) {
    block.fail("type", fmt::format("{}: a block has the type {}; supported are {}", name,
                                   type.empty() ? "missing" : shown(json(type)), known));
  }

  static std::string text_of(FieldReader& block) {
    const auto text = block.text("text");
    if (!text) block.fail("text", "a block of the type text has no text");
    block.refuse("citations", "put what is cited into the text");
    return text.value_or("");
  }

  ChatMessage tool_result(FieldReader& block, const std::string& name) {
    ChatMessage out{.role = "tool"};
    if (!features_.tool_messages) {
      block.fail("type", name +
                             " has a tool_result, and this model's chat template has no place for results "
                             "of tools: send the text");
    }
    out.tool_call_id = block.text("tool_use_id").value_or("");
    if (calls_.erase(out.tool_call_id) == 0) {
      block.fail("tool_use_id",
                 fmt::format("{}: tool_use_id {} is no tool_use of the message before that waits for a "
                             "result",
                             name, shown(json(out.tool_call_id))));
    }
    // The content says it as well; prompts have no place for it.
    (void)block.boolean("is_error");
    if (const json* content = block.take("content")) out.content = read_text(name + ".tool_result", *content);
    return out;
  }

  static ToolCall tool_use(FieldReader& block, const std::string& name, const ordered_json* written) {
    ToolCall out;
    out.id = block.text("id").value_or("");
    if (out.id.empty()) block.fail("id", name + ": a tool_use has no id");
    const json* tool = block.take("name");
    if (tool == nullptr || !is_tool_name(*tool)) {
      block.fail("name", fmt::format("{}: the name of a tool_use is {}; it must be a tool's name", name,
                                     tool == nullptr ? "missing" : shown(*tool)));
    } else {
      out.name = tool->get<std::string>();
    }
    const json* input = block.take("input");
    if (input == nullptr || !input->is_object() || written == nullptr) {
      block.fail("input", fmt::format("{}: the input of a tool_use is {}; it must be an object", name,
                                      input == nullptr ? "missing" : shown(*input)));
    } else {
      out.arguments = written->at("input").dump();
    }
    block.only("caller", {R"({"type":"direct"})"}, "only the client calls for tools here");
    return out;
  }

  FieldReader& fields_;
  const ChatFeatures& features_;
  std::set<std::string>& calls_;
};

}  // namespace

void read_system(FieldReader& fields, ChatInput& out) {
  const json* value = fields.take("system");
  if (value == nullptr) return;
  std::set<std::string> none;
  const ChatFeatures no_calls;
  std::string text = BlockReader(fields, no_calls, none).read_text("system", *value);
  if (!text.empty()) out.messages.push_back({.role = "system", .content = std::move(text)});
}

void read_blocks(FieldReader& fields, const ordered_json& written, const ChatFeatures& features,
                 ChatInput& out) {
  const json* list = fields.take("messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    return fields.fail("messages", fmt::format("messages is {}; it must be a list of at least one message",
                                               list == nullptr ? "missing" : shown(*list)));
  }
  std::set<std::string> calls;
  BlockReader reader(fields, features, calls);
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    const std::string name = fmt::format("messages[{}]", i);
    const json& item = (*list)[i];
    if (!item.is_object())
      return fields.fail("messages", fmt::format("{} is {}; it must be an object", name, shown(item)));
    FieldReader message(item, name + ".");
    const std::string role = message.text("role").value_or("");
    const json* content = message.take("content");
    if (content == nullptr) {
      message.fail("content", name + ".content is missing; give a string or a list of blocks");
    } else if (role == "user") {
      reader.read_user(name, *content, out);
    } else if (role == "assistant") {
      reader.read_assistant(name, *content, written["messages"][i]["content"], out);
    } else if (role == "system") {
      out.messages.push_back({.role = "system", .content = reader.read_text(name, *content)});
    } else {
      message.fail("role", fmt::format("{}.role is {}; it must be user, assistant or system", name,
                                       role.empty() ? "missing" : shown(json(role))));
    }
    fail_with(fields, "messages", message);
  }
  if (fields.ok() && (out.messages.empty() || out.messages.back().role == "assistant")) {
    fields.fail("messages",
                "messages ends with an assistant's, and answers do not go on from there: end with a user's");
  }
}

}  // namespace tandem
