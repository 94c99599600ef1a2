// A small byte-level tokenizer for tests: ids 0..255 are the bytes, 256 "AB", 257 "CD", then <s> 260, </s>
// 261,
// <|im_start|> 262, <|im_end|> 263 and </think> 290. The ids between are holes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace tandem {

inline constexpr int32_t kBosId = 260, kEosId = 261, kImStartId = 262, kImEndId = 263, kThinkEndId = 290;

// Writes tokenizer.json and tokenizer_config.json (with a ChatML template that begins with <s>) into the
// folder.
void write_test_model_folder(const std::string& folder);
// The same bytes with DeepSeek-V4's control tokens from 260 on, and a config.json of that type: no template.
void write_deepseek_v4_test_folder(const std::string& folder);
// The same bytes with harmony's control tokens from 260 on, and a template that writes them; or
// the template alone.
void write_harmony_test_folder(const std::string& folder);
void write_harmony_test_folder_without_marks(const std::string& folder);
std::shared_ptr<const Tokenizer> load_test_tokenizer();
// One id a byte.
std::vector<int32_t> byte_ids(std::string_view text);

}  // namespace tandem
