// What a server reads of a model folder beside the weights and the tokenizer: generation_config.json,
// tokenizer_config.json, chat_template.jinja. Errors name the file and the field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "base/result.h"

namespace tandem {

struct GenerationDefaults {
  SamplingParams sampling;             // what a request that says nothing gets
  std::vector<int32_t> eos_token_ids;  // from generation_config.json, else config.json; empty: none is known
};

// `folder`: a model folder. Absent files and keys leave the defaults of OpenAI's API (temperature 1, all else
// off); `do_sample: false` means greedy.
Result<GenerationDefaults> read_generation_defaults(const std::string& folder);

struct ChatTemplateSource {
  std::string text = {};                       // "" when the checkpoint has none
  std::string file = {};                       // where it came from
  std::string bos_token = {}, eos_token = {};  // texts, as templates use them; "" for none
  bool is_deepseek_v4 = false;                 // by config.json: it has a prompt format without a template
  bool has_dspark = false;                     // its later releases, by their dspark_* keys
};

// chat_template.jinja wins over tokenizer_config.json, whose "chat_template" is a string or a list of named
// templates, of which "default" is taken. What config.json says of a format without a template comes with it.
Result<ChatTemplateSource> read_chat_template(const std::string& folder);

}  // namespace tandem
