#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace tandem {

AddedTokenFinder::AddedTokenFinder(const std::vector<std::pair<std::string, const AddedToken*>>& patterns) {
  nodes_.emplace_back();
  for (const auto& [pattern, token] : patterns) {
    if (pattern.empty()) continue;
    starts_[static_cast<uint8_t>(pattern[0])] = true;
    uint32_t node = 0;
    for (char raw : pattern) {
      const auto byte = static_cast<uint8_t>(raw);
      uint32_t next = child(node, byte);
      if (next == 0) {
        next = static_cast<uint32_t>(nodes_.size());
        nodes_.emplace_back();
        auto& children = nodes_[node].children;
        const std::pair<uint8_t, uint32_t> entry{byte, next};
        children.insert(std::lower_bound(children.begin(), children.end(), entry), entry);
      }
      node = next;
    }
    if (nodes_[node].token == nullptr) nodes_[node].token = token;
  }
}

uint32_t AddedTokenFinder::child(uint32_t node, uint8_t byte) const {
  const auto& children = nodes_[node].children;
  const auto found =
      std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>{byte, 0});
  return found != children.end() && found->first == byte ? found->second : 0;
}

const AddedToken* AddedTokenFinder::longest(std::string_view text, size_t begin, size_t& end) const {
  const AddedToken* best = nullptr;
  uint32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    node = child(node, static_cast<uint8_t>(text[i]));
    if (node == 0) break;
    if (nodes_[node].token != nullptr) {
      best = nodes_[node].token;
      end = i + 1;
    }
  }
  return best;
}

std::vector<AddedTokenFinder::Found> AddedTokenFinder::find(std::string_view text,
                                                            const Accept& accept) const {
  std::vector<Found> found;
  if (empty()) return found;
  size_t done = 0;  // end of the last token, with its white space
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    const AddedToken* token = starts_[static_cast<uint8_t>(text[at])] ? longest(text, at, end) : nullptr;
    if (token == nullptr || !accept(*token, at, end)) {
      ++at;
      continue;
    }
    if (token->single_word) {
      size_t before = at;
      size_t behind = end;
      if ((at > 0 && is_word(previous_codepoint(text, before))) ||
          (end < text.size() && is_word(next_codepoint(text, behind)))) {
        at = end;
        continue;
      }
    }
    size_t begin = at;
    at = end;  // the search itself goes on behind the token's own text, as in the reference
    if (token->lstrip) {
      while (begin > done) {
        size_t before = begin;
        if (!is_white_space(previous_codepoint(text, before))) break;
        begin = before;
      }
      begin = std::max(begin, done);
    }
    if (token->rstrip) {
      while (end < text.size()) {
        size_t behind = end;
        if (!is_white_space(next_codepoint(text, behind))) break;
        end = behind;
      }
    }
    found.push_back({token, begin, end});
    done = end;
  }
  return found;
}

}  // namespace tandem
