#include "grammar/token_trie.h"

#include <algorithm>

#include "grammar/grammar_expression.h"
#include "grammar/tool_call_grammar.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

Result<TokenTrie> TokenTrie::build(const Tokenizer& tokenizer) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  const int32_t vocab_size = tokenizer.vocab_size();
  bool has_text = false;
  for (int32_t id = 0; id < vocab_size; ++id) {
    auto bytes = tokenizer.token_bytes(id);
    if (!bytes) continue;  // ids may have holes
    if (tokenizer.is_control(id) && !is_call_marker(*bytes)) {
      tokens.emplace_back(kControlTokenByte + *bytes, id);
    } else if (bytes->find(kControlTokenByte) == std::string::npos) {
      has_text = true;
      tokens.emplace_back(std::move(*bytes), id);
    }
  }
  if (!has_text)
    return make_error(ErrorCode::invalid_argument, "the tokenizer has no token that stands for text");
  return build(std::move(tokens), static_cast<uint32_t>(vocab_size));
}

TokenTrie TokenTrie::build(std::vector<std::pair<std::string, int32_t>> tokens, uint32_t vocab_size) {
  // A tree of bytes deeper than this would not fit Node::depth; no vocabulary has such tokens.
  constexpr size_t kMaxTokenBytes = UINT16_MAX;
  std::erase_if(
      tokens, [&](const auto& token) { return token.first.empty() || token.first.size() > kMaxTokenBytes; });
  std::ranges::sort(tokens);

  TokenTrie trie;
  trie.vocab_size_ = vocab_size;
  trie.bytes_of_.resize(vocab_size);
  std::vector<uint32_t> path;  // the nodes of the last token's bytes
  std::string_view before;
  for (const auto& [bytes, id] : tokens) {
    const size_t shared = static_cast<size_t>(std::ranges::mismatch(before, bytes).in1 - before.begin());
    while (path.size() > shared) {
      trie.nodes_[path.back()].end = static_cast<uint32_t>(trie.nodes_.size());
      path.pop_back();
    }
    for (size_t i = shared; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(trie.nodes_.size()));
      trie.nodes_.push_back({.tokens_begin = static_cast<uint32_t>(trie.tokens_.size()),
                             .depth = static_cast<uint16_t>(i + 1),
                             .byte = static_cast<uint8_t>(bytes[i])});
    }
    trie.tokens_.push_back(id);
    trie.bytes_of_[static_cast<size_t>(id)] = {static_cast<uint32_t>(trie.pool_.size()),
                                               static_cast<uint32_t>(bytes.size())};
    trie.pool_ += bytes;
    before = bytes;
  }
  for (const uint32_t node : path) trie.nodes_[node].end = static_cast<uint32_t>(trie.nodes_.size());
  trie.nodes_.push_back({.tokens_begin = static_cast<uint32_t>(trie.tokens_.size())});
  return trie;
}

std::string_view TokenTrie::bytes(int32_t token) const {
  if (token < 0 || static_cast<uint32_t>(token) >= vocab_size_) return {};
  const auto [offset, count] = bytes_of_[static_cast<size_t>(token)];
  return std::string_view(pool_).substr(offset, count);
}

}  // namespace tandem
