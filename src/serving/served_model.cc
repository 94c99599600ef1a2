#include "serving/served_model.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/file.h"
#include "serving/chat_format.h"

namespace tandem {

namespace {

// Whether the format, not a message, ends the prompt with an open <think>.
bool ends_in_reasoning(const ChatPrompt& prompt) {
  constexpr std::string_view kOpen = "<think>";
  const std::string_view text = prompt.text;
  const size_t end = text.find_last_not_of('\n') + 1;
  if (!text.substr(0, end).ends_with(kOpen)) return false;
  return prompt.plain_ranges.empty() || prompt.plain_ranges.back().end <= end - kOpen.size();
}

std::vector<int32_t> eos_of(const Tokenizer& tokenizer) {
  const auto eos = tokenizer.eos_id();
  return eos ? std::vector{*eos} : std::vector<int32_t>();
}

}  // namespace

Result<std::vector<int32_t>> read_eos_token_ids(const std::string& folder) {
  TANDEM_ASSIGN(const GenerationDefaults defaults, read_generation_defaults(folder));
  if (!defaults.eos_token_ids.empty() || !file_exists(folder + "/tokenizer.json"))
    return defaults.eos_token_ids;
  TANDEM_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(folder));
  return eos_of(tokenizer);
}

Result<ServedModel> read_served_model(const std::string& folder, std::string id, const OutputChoice& choice) {
  ServedModel model;
  model.id = std::move(id);
  model.created = std::time(nullptr);
  TANDEM_ASSIGN(Tokenizer tokenizer, Tokenizer::load(folder));
  model.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  TANDEM_ASSIGN(model.defaults, read_generation_defaults(folder));
  if (model.defaults.eos_token_ids.empty()) model.defaults.eos_token_ids = eos_of(*model.tokenizer);
  TANDEM_ASSIGN(const ChatTemplateSource source, read_chat_template(folder));
  TANDEM_ASSIGN(ChatFormat format, make_chat_format(source, choice));
  model.render_chat = std::move(format.render);
  model.chat_features = format.features;
  model.output_format = format.output;
  for (const std::string& text : marker_tokens(format.output)) {
    if (const auto token = model.tokenizer->id_of(text)) model.marker_tokens.push_back(*token);
  }
  return model;
}

Result<EncodedChat> encode_chat(const ServedModel& model, const ChatInput& input, size_t max_tokens) {
  if (!model.render_chat) {
    return make_error(ErrorCode::unsupported,
                      "the model " + model.id +
                          " has no chat template: give plain text (/v1/completions), or put a "
                          "chat_template.jinja into its folder");
  }
  auto prompt = model.render_chat(input);
  if (!prompt) return make_error(ErrorCode::invalid_argument, std::move(prompt.error().message));
  EncodedChat out;
  TANDEM_ASSIGN(out.tokens, model.tokenizer->encode(prompt->text, {.add_special_tokens = false,
                                                                   .parse_special = true,
                                                                   .plain_ranges = prompt->plain_ranges,
                                                                   .max_tokens = max_tokens}));
  out.reasoning_open = input.add_generation_prompt && ends_in_reasoning(*prompt);
  return out;
}

void attach_engine(ServedModel& model, Engine& engine) {
  model.engine = &engine;
  const auto size =
      std::min<size_t>(static_cast<size_t>(model.tokenizer->vocab_size()), engine.limits().vocab_size);
  model.known_tokens.assign(size, false);
  for (size_t id = 0; id < size; ++id) {
    model.known_tokens[id] = model.tokenizer->token_text(static_cast<int32_t>(id)).has_value();
  }
}

}  // namespace tandem
