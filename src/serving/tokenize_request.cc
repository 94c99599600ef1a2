#include "serving/tokenize_request.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "serving/request_fields.h"

namespace tandem {

using nlohmann::json;

ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body, const RequestContext& context) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  TokenizeRequest out;
  out.is_chat = parsed->contains("messages");
  if (out.is_chat) {
    nlohmann::ordered_json rest = nlohmann::ordered_json::parse(body);
    rest.erase("return_token_strs");
    auto chat = parse_chat_request(rest.dump(), context);
    if (!chat) return std::unexpected(std::move(chat.error()));
    out.chat = std::move(chat->input);
    FieldReader flag(*parsed);
    out.return_token_strs = flag.boolean("return_token_strs").value_or(false);
    if (!flag.ok()) return std::unexpected(flag.take_error());
    return out;
  }
  FieldReader fields(*parsed);
  if (auto error = check_model(fields, context)) return std::unexpected(std::move(*error));
  if (auto prompt = fields.text("prompt")) {
    out.prompt = std::move(*prompt);
  } else {
    fields.fail("prompt", "prompt is missing: give a string, or messages");
  }
  out.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  out.parse_special_tokens = fields.boolean("parse_special_tokens").value_or(false);
  out.return_token_strs = fields.boolean("return_token_strs").value_or(false);
  if (!fields.finish()) return std::unexpected(fields.take_error());
  return out;
}

ApiResult<std::vector<int32_t>> parse_detokenize_request(std::string_view body,
                                                         const RequestContext& context) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  FieldReader fields(*parsed);
  if (auto error = check_model(fields, context)) return std::unexpected(std::move(*error));
  std::vector<int32_t> out;
  const json* tokens = fields.take("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    fields.fail("tokens", fmt::format("tokens is {}; it must be a list of token ids",
                                      tokens == nullptr ? "missing" : shown(*tokens)));
  } else {
    for (const json& item : *tokens) {
      const auto id = read_token_id(fields, "tokens", item, context);
      if (!id) break;
      out.push_back(*id);
    }
  }
  if (!fields.finish()) return std::unexpected(fields.take_error());
  return out;
}

}  // namespace tandem
