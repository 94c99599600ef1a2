#include "cli/prompt_lines.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

std::unexpected<Error> misfit(const std::string& message) {
  return make_error(ErrorCode::invalid_argument, message);
}

GenerationRequest request_with(const Settings& settings, std::vector<int32_t> prompt) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = static_cast<float>(settings.generate.temperature);
  request.sampling.seed = static_cast<uint64_t>(settings.generate.seed);
  request.sampling.max_tokens = static_cast<uint32_t>(settings.generate.max_tokens);
  request.sampling.ignore_eos = settings.generate.ignore_eos;
  request.hash_logits = settings.json;
  return request;
}

Result<std::vector<int32_t>> token_ids(const Json& list, const std::string& place) {
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < INT32_MIN || id.get<int64_t>() > INT32_MAX)
      return misfit(place + ": " + id.dump() + " is not a token id");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

Result<PromptReader> PromptReader::open(const Settings& settings) {
  PromptReader reader(settings);
  if (file_exists(settings.model + "/tokenizer.json")) {
    auto text = TextModel::load(settings.model);
    if (!text) return std::unexpected(text.error());
    reader.text_ = std::move(*text);
  }
  return reader;
}

Result<GenerationRequest> PromptReader::text_request(const std::string& text) const {
  const TextModel& model = *text_;  // both callers have looked: NOLINT(bugprone-unchecked-optional-access)
  auto ids = settings_->generate.chat ? model.encode_question(text) : model.encode_text(text);
  if (!ids) return std::unexpected(ids.error());
  return request_with(*settings_, std::move(*ids));
}

Result<std::vector<GenerationRequest>> PromptReader::line(const std::string& line,
                                                          const std::string& place) const {
  const Json json = Json::parse(line, nullptr, false);
  std::vector<GenerationRequest> requests;
  for (const Json& prompt : json.is_array() ? json : Json::array({json})) {
    if (prompt.is_object() && prompt.contains("prompt") && prompt["prompt"].is_string()) {
      if (!text_)
        return misfit(place + ": text, and " + settings_->model + " has no tokenizer.json; give prompt_ids");
      TANDEM_ASSIGN(GenerationRequest request, text_request(prompt["prompt"].get<std::string>()));
      requests.push_back(std::move(request));
    } else if (prompt.is_object() && prompt.contains("prompt_ids") && prompt["prompt_ids"].is_array()) {
      TANDEM_ASSIGN(std::vector<int32_t> ids, token_ids(prompt["prompt_ids"], place));
      requests.push_back(request_with(*settings_, std::move(ids)));
    } else {
      return misfit(place + ": not an object with prompt or prompt_ids, and no list of such objects");
    }
    if (!prompt.contains("max_tokens")) continue;
    const Json& max_tokens = prompt["max_tokens"];
    if (!max_tokens.is_number_integer() || max_tokens.get<int64_t>() < 1 ||
        max_tokens.get<int64_t>() > INT32_MAX)
      return misfit(place + ": max_tokens " + max_tokens.dump() + " is not a positive whole number");
    requests.back().sampling.max_tokens = max_tokens.get<uint32_t>();
  }
  if (requests.empty()) return misfit(place + ": a list without prompts");
  return requests;
}

Result<std::vector<GenerationRequest>> PromptReader::all() const {
  const GenerateSettings& generate = settings_->generate;
  std::vector<GenerationRequest> requests;
  if (!generate.prompt.empty()) {
    if (!text_)
      return misfit(settings_->model + " has no tokenizer.json; give token ids with --prompts-file");
    std::string text = generate.prompt;
    if (text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
    TANDEM_ASSIGN(GenerationRequest request, text_request(text));
    requests.push_back(std::move(request));
    return requests;
  }
  std::ifstream file(generate.prompts_file);
  if (!file)
    return make_error(ErrorCode::not_found, "generate.prompts_file: cannot open " + generate.prompts_file);
  std::string text;
  for (size_t number = 1; std::getline(file, text); ++number) {
    if (text.empty()) continue;
    TANDEM_ASSIGN(std::vector<GenerationRequest> more,
                  line(text, generate.prompts_file + " line " + std::to_string(number)));
    std::move(more.begin(), more.end(), std::back_inserter(requests));
  }
  if (requests.empty()) return misfit(generate.prompts_file + " has no prompts");
  return requests;
}

}  // namespace tandem
