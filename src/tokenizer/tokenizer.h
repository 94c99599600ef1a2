// Text to token ids and back, from a Hugging Face tokenizer.json: byte-level BPE (DeepSeek, Qwen, Llama 3,
// GPT-2) and character BPE with byte fallback (Mixtral, Llama 2). Ids equal those of the `tokenizers`
// package.
//
// A Tokenizer is immutable once loaded: every const member may be called from any number of threads. An
// IncrementalDecoder belongs to one thread and must not outlive its tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
};

struct EncodeOptions {
  // Put BOS (and whatever else the tokenizer says) around the text. A rendered chat template brings its own:
  // false there.
  bool add_special_tokens = true;
  // Control tokens written in the text become their ids. False: they are plain text, as a user's words must
  // be.
  bool parse_special = true;
  // With parse_special: parts of the text where control tokens are plain text all the same, ascending and
  // disjoint. For a rendered chat these are the parts that came from messages.
  std::span<const TextRange> plain_ranges = {};
  // Refuse (`out_of_range`) a text of more tokens; a text that is certainly too long is refused before it is
  // looked at.
  size_t max_tokens = SIZE_MAX;
};

class Tokenizer {
 public:
  // `path`: a model folder (tokenizer.json, and tokenizer_config.json for BOS and EOS when it is there), or a
  // file in the format of tokenizer.json. Errors name file and field: `not_found`, `data_loss` for what is
  // malformed, `unsupported` for a model type or step that is not implemented.
  static Result<Tokenizer> load(const std::string& path);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Errors: `invalid_argument` naming the offset of the first byte that is not UTF-8 (nothing is replaced
  // silently); `out_of_range` above max_tokens. Time is near-linear in the length of the text, whatever is in
  // it.
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Well-formed UTF-8: bytes that form no character become U+FFFD. Error: `out_of_range` naming an id that
  // has no token.
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes that the token stands for, which need not be whole characters. Error: `out_of_range`.
  Result<std::string> token_bytes(int32_t id) const;
  // The token as the vocabulary writes it ("Ġthe").
  Result<std::string> token_text(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view token) const;

  // Marked `special`; decode leaves these out when asked to. False for an id without a token.
  bool is_special(int32_t id) const;
  // A token that steers the model instead of standing for text: marked `special`, or an added token written
  // like markup,
  // <...> or [...] or with U+FF5C (DeepSeek's turn marks and <think> are not marked special). Text that is
  // not allowed to hold control tokens never encodes to one of these.
  bool is_control(int32_t id) const;

  int32_t vocab_size() const;  // one above the highest id; there may be holes
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

 private:
  friend class IncrementalDecoder;
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Decodes a stream of ids. The texts that push and flush return, joined, equal Tokenizer::decode of all ids;
// each is well-formed UTF-8.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special = false);

  // The text that is complete with this token; bytes that begin a character are kept back. Error:
  // `out_of_range`, the stream goes on as if the id had not come.
  Result<std::string> push(int32_t id);
  // What was kept back, U+FFFD for a character that never became complete. The decoder then starts over.
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string tail_;       // an unfinished character, at most 3 bytes
  size_t strip_left_ = 0;  // spaces to leave out at the start
};

}  // namespace tandem
