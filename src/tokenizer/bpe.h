// Byte pair encoding of one piece: symbols are joined by the merge of lowest rank, leftmost first, until none
// applies. Near-linear in the length of the piece. Immutable once built; const use from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tandem {

// The GPT-2 alphabet: every byte is written as one printable character.
std::string byte_to_alphabet(std::string_view bytes);
// The inverse; nothing when a character is not of the alphabet.
std::optional<std::string> alphabet_to_bytes(std::string_view text);

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

struct BpeOptions {
  bool byte_level = true;      // symbols are bytes in the GPT-2 alphabet; else characters
  bool ignore_merges = false;  // a piece that is a token as a whole is that token
  bool byte_fallback = false;  // characters: an unknown one becomes its bytes, <0x00> to <0xFF>
  bool fuse_unknown = false;   // adjacent unknown characters become one unknown token
  std::string unknown;         // the token for what is unknown; empty: none
};

class Bpe {
 public:
  // Errors name the merge, byte or token that is not in the vocabulary.
  static Result<Bpe> build(Vocabulary vocabulary,
                           const std::vector<std::pair<std::string, std::string>>& merges,
                           BpeOptions options);

  // Appends the tokens of `piece` (well-formed UTF-8, not empty).
  void encode(std::string_view piece, std::vector<int32_t>& out) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t result;
  };
  // Open addressing on (left << 32 | right): the one look-up that is done for every pair of neighbours.
  class MergeTable {
   public:
    void reserve(size_t count);
    void put(int32_t left, int32_t right, Merge merge);
    const Merge* find(int32_t left, int32_t right) const;

   private:
    struct Slot {
      uint64_t key = UINT64_MAX;
      Merge merge{};
    };
    size_t index(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> shift_; }
    std::vector<Slot> slots_;
    int shift_ = 0;
  };

  void start_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  std::array<int32_t, 256> byte_ids_{};  // byte level: the byte's token; else <0xXX>
  int32_t unknown_id_ = -1;
};

}  // namespace tandem
