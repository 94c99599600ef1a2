// PromptSource: the requests of a load, the same for the same seed whatever the server does: random token
// ids, random words where no tokenizer is known, or the lines of a file. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/load/lengths.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

struct LoadPrompt {
  std::string json;          // the value of "prompt", or of "messages" in a chat
  uint64_t input_units = 0;  // token ids, or words; 0: not known before the server says it
  uint32_t output_tokens = 0;
};

struct PromptOptions {
  bool is_chat = false;
  std::string dataset_path;  // JSONL; empty: synthetic
  LengthDistribution input, output;
  uint32_t prefix_tokens = 0;  // before each prompt, in addition to its own length
  uint32_t num_prefixes = 1;   // groups: request i has prefix i mod num_prefixes
  uint64_t seed = 0;
};

class PromptSource {
 public:
  // `tokenizer`: null: words instead of token ids. Of a file each line is an object with one of prompt
  // (text), prompt_ids, messages, or question; output_tokens or max_tokens may stand beside it and wins over
  // options.output. Errors name file and line; a chat out of prompt_ids needs the tokenizer.
  static Result<PromptSource> create(PromptOptions options, std::shared_ptr<const Tokenizer> tokenizer);

  // Of request `index`; a file begins again after its last line. `warmup`: of a stream of its own, so that no
  // measured prompt has been seen before.
  Result<LoadPrompt> make(uint64_t index, bool warmup = false) const;

  uint64_t lines() const { return lines_.size(); }  // of a file; 0: synthetic

 private:
  struct Line {
    std::string json;
    uint64_t input_units = 0;
    uint32_t output_tokens = 0;  // 0: not said
  };
  PromptSource(PromptOptions options, std::shared_ptr<const Tokenizer> tokenizer)
      : options_(std::move(options)), tokenizer_(std::move(tokenizer)) {}
  Status read_lines();
  Result<std::string> to_json(const std::vector<int32_t>& units) const;
  void append_random(uint64_t stream, uint64_t index, uint32_t count, std::vector<int32_t>& units) const;

  PromptOptions options_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<int32_t> ids_;  // that random prompts draw from: no control tokens, no holes
  std::vector<Line> lines_;
};

}  // namespace tandem
