// TokenTrie: the bytes of a vocabulary's tokens as a tree in depth-first order, so that a grammar looks at
// each common prefix once. Control tokens are behind kControlTokenByte in it, but for those that tool calls
// are written with, which are text to grammars. Tokens without bytes, or with that byte, are not in it: no
// grammar produces them. Immutable once built; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tandem {

class Tokenizer;

class TokenTrie {
 public:
  // A byte below its parent. The nodes below node i are i + 1 .. end - 1, its first child is i + 1.
  struct Node {
    uint32_t end = 0;
    uint32_t tokens_begin = 0;  // index into tokens(); those of node i end where node i + 1's begin
    uint16_t depth = 0;         // bytes up to and with this one
    uint8_t byte = 0;
  };

  static Result<TokenTrie> build(const Tokenizer& tokenizer);
  // From pairs of token id and bytes, for a vocabulary of `vocab_size` ids.
  static TokenTrie build(std::vector<std::pair<std::string, int32_t>> tokens, uint32_t vocab_size);

  size_t size() const { return nodes_.size() - 1; }
  std::span<const Node> nodes() const { return std::span(nodes_).first(size()); }
  // Tokens whose bytes end at node i.
  std::span<const int32_t> tokens(size_t i) const {
    return std::span(tokens_).subspan(nodes_[i].tokens_begin,
                                      nodes_[i + 1].tokens_begin - nodes_[i].tokens_begin);
  }
  // The bytes of a token; none for one that is not in the tree.
  std::string_view bytes(int32_t token) const;

  uint32_t vocab_size() const { return vocab_size_; }
  // 64-bit words of a bit mask over the vocabulary.
  size_t mask_words() const { return (size_t{vocab_size_} + 63) / 64; }

 private:
  std::vector<Node> nodes_;  // one more at the end
  std::vector<int32_t> tokens_;
  std::string pool_;
  std::vector<std::pair<uint32_t, uint32_t>> bytes_of_;  // [vocab_size] offset and count in pool_
  uint32_t vocab_size_ = 0;
};

}  // namespace tandem
