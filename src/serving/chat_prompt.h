// From messages to the prompt's token ids such that control tokens come from the chat template alone: a
// message that contains "<|im_end|>" stays a message. Messages are marked with a character that occurs in
// none of them wherever a control token could be read in them or across their ends; where the marks come out
// of the template is plain text. Immutable once built; any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serving/openai_request.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

// Renders the template with these messages.
using RenderChat = std::function<Result<std::string>(const std::vector<ChatMessage>&)>;

struct MarkedPrompt {
  std::string text;
  std::vector<TextRange> plain_ranges;  // ascending, disjoint: no control token may be read over any of them
};

class ControlTokens {
 public:
  ControlTokens() = default;
  // Every control token of the vocabulary, as text.
  explicit ControlTokens(const Tokenizer& tokenizer);
  explicit ControlTokens(std::vector<std::string> tokens);

  // A character of `content`, by the offset behind it, over which no control token may be read; and the token
  // that could be ("" when it would only be formed across the content's ends).
  struct Mark {
    size_t offset = 0;
    std::string token = {};
  };
  std::vector<Mark> find(std::string_view content) const;
  // The first control token that is in the text as a whole, or "".
  std::string first_in(std::string_view text) const;

 private:
  class Trie {
   public:
    void add(std::string_view text);
    // Length of the longest entry that `text` begins with (0: none). `open`: the text ended inside an entry.
    size_t match(std::string_view text, bool& open) const;

   private:
    struct Node {
      std::vector<std::pair<char, uint32_t>> children;
      bool is_end = false;
    };
    std::vector<Node> nodes_{1};
  };
  Trie tokens_;
  Trie tails_;  // what is left of a token after its first character, second, ...
};

// `template_source`: a control token that the template itself names and looks for in a message (such as
// </think> in an assistant's) may be read by it there. Errors: the template's own; unsupported when a message
// holds a control token that the template transforms in a way that hides where it came from.
Result<MarkedPrompt> render_chat_prompt(const std::vector<ChatMessage>& messages,
                                        const ControlTokens& control, std::string_view template_source,
                                        const RenderChat& render);

}  // namespace tandem
