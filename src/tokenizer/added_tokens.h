// Finds added tokens (control tokens and others that no merge makes) in text: at each place the longest one,
// left to right. Immutable once built; const use from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // not between word characters
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = true;    // looked for in normalised text
  bool special = false;
  bool control = false;  // see Tokenizer::is_control
};

class AddedTokenFinder {
 public:
  struct Found {
    const AddedToken* token;
    size_t begin, end;  // with the white space it takes
  };
  // Whether the token may stand at [begin, end) (without white space). What is refused is searched again one
  // byte on.
  using Accept = std::function<bool(const AddedToken&, size_t begin, size_t end)>;

  AddedTokenFinder() = default;
  // `patterns` are what is looked for, beside the token found there; the tokens must outlive the finder.
  explicit AddedTokenFinder(const std::vector<std::pair<std::string, const AddedToken*>>& patterns);

  bool empty() const { return nodes_.size() <= 1; }
  std::vector<Found> find(std::string_view text, const Accept& accept) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;  // sorted by byte
    const AddedToken* token = nullptr;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;  // 0 when there is none
  const AddedToken* longest(std::string_view text, size_t begin, size_t& end) const;

  std::vector<Node> nodes_;  // [0] is the root
  bool starts_[256] = {};    // bytes that begin a pattern
};

}  // namespace tandem
