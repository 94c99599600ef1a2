#include "serving/chat_prompt.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tandem {

namespace {

// Unicode's noncharacters U+FDD0..U+FDEF never stand for anything in text that is exchanged: ours to use
// inside. In UTF-8 EF B7 90 .. EF B7 AF.
constexpr int kNoncharacters = 32;
constexpr size_t kMarkBytes = 3;
// Each group costs one rendering when a template reads control tokens in messages; a real conversation has a
// few.
constexpr size_t kMaxGroups = 64;

std::string noncharacter(int i) {
  return {'\xef', '\xb7', static_cast<char>(0x90 + i)};
}

size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// All marks of one token in one message.
struct Group {
  size_t message;
  std::string token;
  std::vector<size_t> offsets;
};

std::vector<Group> find_groups(const std::vector<ChatMessage>& messages, const ControlTokens& control) {
  std::vector<Group> groups;
  for (size_t i = 0; i < messages.size(); ++i) {
    std::map<std::string, std::vector<size_t>> by_token;
    for (ControlTokens::Mark& mark : control.find(messages[i].content)) {
      by_token[std::move(mark.token)].push_back(mark.offset);
    }
    for (auto& [token, offsets] : by_token) groups.push_back({i, token, std::move(offsets)});
  }
  return groups;
}

std::vector<ChatMessage> with_marks(std::vector<ChatMessage> messages,
                                    const std::vector<const Group*>& groups, const std::string& mark) {
  std::map<size_t, std::vector<size_t>> by_message;
  for (const Group* group : groups) {
    auto& offsets = by_message[group->message];
    offsets.insert(offsets.end(), group->offsets.begin(), group->offsets.end());
  }
  for (auto& [index, offsets] : by_message) {
    std::sort(offsets.begin(), offsets.end());
    offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
    const std::string content = std::move(messages[index].content);
    std::string& marked = messages[index].content;
    marked.clear();
    size_t at = 0;
    for (const size_t offset : offsets) {
      marked.append(content, at, offset - at).append(mark);
      at = offset;
    }
    marked.append(content, at);
  }
  return messages;
}

// Takes the marks out; each makes the character before it plain.
MarkedPrompt without_marks(const std::string& rendered, const std::string& mark) {
  MarkedPrompt prompt;
  size_t at = 0;
  for (size_t found; (found = rendered.find(mark, at)) != std::string::npos; at = found + kMarkBytes) {
    prompt.text.append(rendered, at, found - at);
    size_t begin = prompt.text.size();
    while (begin > 0 && is_continuation(prompt.text[begin - 1])) --begin;
    if (begin > 0) --begin;
    if (begin == prompt.text.size()) continue;
    if (!prompt.plain_ranges.empty() && prompt.plain_ranges.back().end > begin) continue;
    prompt.plain_ranges.push_back({begin, prompt.text.size()});
  }
  prompt.text.append(rendered, at);
  return prompt;
}

Result<std::string> pick_mark(const std::vector<ChatMessage>& messages, std::string_view template_source) {
  for (int i = 0; i < kNoncharacters; ++i) {
    const std::string mark = noncharacter(i);
    const bool used = template_source.find(mark) != std::string_view::npos ||
                      std::any_of(messages.begin(), messages.end(), [&](const ChatMessage& message) {
                        return message.content.find(mark) != std::string::npos;
                      });
    if (!used) return mark;
  }
  return make_error(ErrorCode::unsupported,
                    "messages: they use every noncharacter of U+FDD0..U+FDEF: remove one");
}

}  // namespace

void ControlTokens::Trie::add(std::string_view text) {
  uint32_t node = 0;
  for (const char c : text) {
    auto& children = nodes_[node].children;
    const auto found =
        std::find_if(children.begin(), children.end(), [c](const auto& child) { return child.first == c; });
    if (found != children.end()) {
      node = found->second;
      continue;
    }
    const auto next = static_cast<uint32_t>(nodes_.size());
    children.emplace_back(c, next);
    nodes_.emplace_back();
    node = next;
  }
  nodes_[node].is_end = true;
}

size_t ControlTokens::Trie::match(std::string_view text, bool& open) const {
  uint32_t node = 0;
  size_t longest = 0;
  open = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto& children = nodes_[node].children;
    const auto found = std::find_if(children.begin(), children.end(),
                                    [&](const auto& child) { return child.first == text[i]; });
    if (found == children.end()) return longest;
    node = found->second;
    if (nodes_[node].is_end) longest = i + 1;
  }
  open = node != 0 && !nodes_[node].children.empty();
  return longest;
}

ControlTokens::ControlTokens(const Tokenizer& tokenizer)
    : ControlTokens([&] {
        std::vector<std::string> tokens;
        for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
          if (!tokenizer.is_control(id)) continue;
          if (auto text = tokenizer.token_text(id)) tokens.push_back(std::move(*text));
        }
        return tokens;
      }()) {}

ControlTokens::ControlTokens(std::vector<std::string> tokens) {
  for (const std::string& token : tokens) {
    if (token.empty()) continue;
    tokens_.add(token);
    for (size_t at = character_bytes(token[0]); at < token.size(); at += character_bytes(token[at])) {
      tails_.add(std::string_view(token).substr(at));
    }
  }
}

std::vector<ControlTokens::Mark> ControlTokens::find(std::string_view content) const {
  std::vector<Mark> marks;
  if (content.empty()) return marks;
  bool open = false;
  if (tails_.match(content, open) != 0 || open) marks.push_back({.offset = character_bytes(content[0])});
  for (size_t at = 0; at < content.size(); ++at) {
    if (is_continuation(content[at])) continue;
    const size_t length = tokens_.match(content.substr(at), open);
    if (length == 0 && !open) continue;
    marks.push_back({at + character_bytes(content[at]), std::string(content.substr(at, length))});
  }
  return marks;
}

std::string ControlTokens::first_in(std::string_view text) const {
  bool open = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (const size_t length = tokens_.match(text.substr(at), open))
      return std::string(text.substr(at, length));
  }
  return {};
}

Result<MarkedPrompt> render_chat_prompt(const std::vector<ChatMessage>& messages,
                                        const ControlTokens& control, std::string_view template_source,
                                        const RenderChat& render) {
  TANDEM_ASSIGN(std::string plain, render(messages));
  const std::vector<Group> groups = find_groups(messages, control);
  if (groups.empty()) return MarkedPrompt{std::move(plain), {}};
  TANDEM_ASSIGN(const std::string mark, pick_mark(messages, template_source));

  // Marks must not change what the template writes; if they do, it looks at what they mark.
  const auto try_marks = [&](const std::vector<const Group*>& chosen) -> Result<MarkedPrompt> {
    TANDEM_ASSIGN(const std::string rendered, render(with_marks(messages, chosen, mark)));
    return without_marks(rendered, mark);
  };
  std::vector<const Group*> chosen;
  for (const Group& group : groups) chosen.push_back(&group);
  TANDEM_ASSIGN(MarkedPrompt prompt, try_marks(chosen));
  if (prompt.text == plain) return prompt;

  const auto refusal = [](const std::string& what) {
    return make_error(ErrorCode::unsupported,
                      "messages: " + what + ": remove the control tokens from the messages");
  };
  if (groups.size() > kMaxGroups) return refusal("too many control tokens are written in them");
  chosen.clear();
  for (const Group& group : groups) {
    TANDEM_ASSIGN(const MarkedPrompt alone, try_marks({&group}));
    if (alone.text == plain) {
      chosen.push_back(&group);
      continue;
    }
    const bool template_reads_it =
        !group.token.empty() && template_source.find(group.token) != std::string_view::npos;
    if (!template_reads_it) {
      return refusal("messages[" + std::to_string(group.message) + "] holds \"" + group.token +
                     "\" and the chat template changes the text around it");
    }
  }
  TANDEM_ASSIGN(prompt, try_marks(chosen));
  if (prompt.text != plain) return refusal("the chat template mixes their control tokens");
  return prompt;
}

}  // namespace tandem
