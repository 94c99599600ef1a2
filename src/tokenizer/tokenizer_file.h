// tokenizer.json as read: checked, and free of JSON. Private to src/tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace tandem {

struct DecoderSpec {
  bool byte_level = true;
  // Otherwise, per token and in this order:
  std::vector<std::pair<std::string, std::string>> replace;
  bool byte_fallback = false;
  size_t strip_start = 0;  // spaces left out at the start of the whole text
};

struct TokenizerFile {
  Vocabulary vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  BpeOptions bpe;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  DecoderSpec decoder;
  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> prefix, suffix;  // what the post-processor puts around one sequence
};

// What tokenizer_config.json adds; all optional.
struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token;
  std::optional<bool> add_bos_token, add_eos_token;
  std::string tokenizer_class;
};

// `path` only names the file in errors.
Result<TokenizerFile> parse_tokenizer_file(const std::string& text, const std::string& path);
Result<TokenizerConfig> parse_tokenizer_config(const std::string& text, const std::string& path);

}  // namespace tandem
