#include "serving/tokenize_format.h"

#include <nlohmann/json.hpp>

namespace tandem {

using Json = nlohmann::ordered_json;

std::string tokenize_json(const ServedModel& model, const std::vector<int32_t>& tokens, bool with_strings) {
  Json out = {{"count", tokens.size()},
              {"max_model_len", model.engine->limits().max_context_tokens},
              {"tokens", tokens},
              {"token_strs", nullptr}};
  if (with_strings) {
    out["token_strs"] = Json::array();
    for (const int32_t token : tokens)
      out["token_strs"].push_back(model.tokenizer->token_text(token).value_or(""));
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string detokenize_json(const std::string& text) {
  return Json{{"prompt", text}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem
