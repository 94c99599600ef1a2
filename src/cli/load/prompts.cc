#include "cli/load/prompts.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

namespace tandem {
namespace {

using Json = nlohmann::json;

// Streams of random numbers: nothing that one draws moves the others.
enum Stream : uint64_t { kLengths, kBody, kPrefix, kWarmup };

std::mt19937_64 generator(uint64_t seed, uint64_t stream, uint64_t index) {
  std::seed_seq sequence{seed & 0xffffffff, seed >> 32, stream, index & 0xffffffff, index >> 32};
  return std::mt19937_64(sequence);
}

// Words that most vocabularies have as one token with the space before.
constexpr const char* kWords[] = {
    "the",  "of",    "and",   "to",    "in",    "is",    "that",  "for",  "it",   "as",     "was",
    "with", "be",    "by",    "on",    "not",   "he",    "his",   "but",  "at",   "are",    "this",
    "have", "from",  "or",    "had",   "an",    "they",  "which", "one",  "you",  "were",   "all",
    "her",  "she",   "there", "would", "their", "we",    "him",   "been", "has",  "when",   "who",
    "will", "no",    "more",  "if",    "out",   "so",    "up",    "said", "what", "its",    "about",
    "than", "into",  "them",  "can",   "only",  "other", "time",  "new",  "some", "could",  "two",
    "may",  "first", "then",  "do",    "any",   "like",  "my",    "now",  "over", "such",   "our",
    "man",  "me",    "even",  "most",  "made",  "after", "also",  "did",  "many", "off",    "before",
    "must", "well",  "back",  "years", "much",  "where", "your",  "way",  "down", "should", "because",
    "long", "each"};

Json user_message(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", text}}});
}

}  // namespace

Result<PromptSource> PromptSource::create(PromptOptions options, std::shared_ptr<const Tokenizer> tokenizer) {
  PromptSource source(std::move(options), std::move(tokenizer));
  if (!source.options_.dataset_path.empty()) {
    TANDEM_TRY(source.read_lines());
  } else if (source.tokenizer_) {
    for (int32_t id = 0; id < source.tokenizer_->vocab_size(); ++id) {
      if (source.tokenizer_->token_text(id) && !source.tokenizer_->is_control(id)) source.ids_.push_back(id);
    }
    if (source.ids_.empty())
      return make_error(ErrorCode::invalid_argument,
                        "the tokenizer has no tokens of text to draw prompts from");
  } else {
    for (size_t word = 0; word < std::size(kWords); ++word) source.ids_.push_back(static_cast<int32_t>(word));
  }
  return source;
}

Status PromptSource::read_lines() {
  const std::string& path = options_.dataset_path;
  std::ifstream file(path);
  if (!file) return make_error(ErrorCode::not_found, "load.dataset_path: cannot read " + path);
  size_t number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto refuse = [&](const std::string& why) {
      return make_error(ErrorCode::invalid_argument, path + " line " + std::to_string(number) + ": " + why);
    };
    const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) return refuse("not a JSON object");
    Line line;
    const char* const names[] = {"messages", "prompt_ids", "prompt", "question"};
    const auto* const name = std::find_if(std::begin(names), std::end(names),
                                          [&](const char* key) { return object.contains(key); });
    if (name == std::end(names)) return refuse("none of prompt, prompt_ids, messages and question");
    const Json& value = object[*name];
    if (std::string_view(*name) == "messages") {
      if (!options_.is_chat) return refuse("messages need --endpoint /v1/chat/completions");
      if (!value.is_array() || value.empty()) return refuse("messages is not a list of messages");
      line.json = value.dump();
    } else if (std::string_view(*name) == "prompt_ids") {
      std::vector<int32_t> ids;
      for (const Json& id : value) {
        if (!id.is_number_integer()) return refuse("prompt_ids is not a list of token ids");
        ids.push_back(id.get<int32_t>());
      }
      if (ids.empty()) return refuse("prompt_ids is empty");
      if (options_.is_chat && !tokenizer_) return refuse("prompt_ids in a chat need --tokenizer");
      line.json = Json(ids).dump();
      if (options_.is_chat) {
        TANDEM_ASSIGN(line.json, to_json(ids));
      }
      line.input_units = ids.size();
    } else {
      if (!value.is_string() || value.get_ref<const std::string&>().empty())
        return refuse(std::string(*name) + " is not a text");
      line.json = options_.is_chat ? user_message(value.get<std::string>()).dump() : value.dump();
    }
    for (const char* key : {"output_tokens", "max_tokens"}) {
      if (!object.contains(key)) continue;
      const Json& length = object[key];
      if (!length.is_number_integer() || length.get<int64_t>() < 1 ||
          length.get<int64_t>() > LengthDistribution::kMost)
        return refuse(std::string(key) + " is not a number of tokens");
      line.output_tokens = length.get<uint32_t>();
    }
    lines_.push_back(std::move(line));
  }
  if (lines_.empty())
    return make_error(ErrorCode::invalid_argument, "load.dataset_path: " + path + " has no line");
  return {};
}

void PromptSource::append_random(uint64_t stream, uint64_t index, uint32_t count,
                                 std::vector<int32_t>& units) const {
  std::mt19937_64 random = generator(options_.seed, stream, index);
  std::uniform_int_distribution<size_t> pick(0, ids_.size() - 1);
  for (uint32_t i = 0; i < count; ++i) units.push_back(ids_[pick(random)]);
}

Result<std::string> PromptSource::to_json(const std::vector<int32_t>& units) const {
  std::string text;
  if (!tokenizer_) {
    for (const int32_t word : units) {
      if (!text.empty()) text += ' ';
      text += kWords[word];
    }
  } else if (options_.is_chat) {
    TANDEM_ASSIGN(text, tokenizer_->decode(units));
  } else {
    return Json(units).dump();
  }
  return options_.is_chat ? user_message(text).dump() : Json(text).dump();
}

Result<LoadPrompt> PromptSource::make(uint64_t index, bool warmup) const {
  LoadPrompt prompt;
  std::mt19937_64 lengths = generator(options_.seed, warmup ? kWarmup : kLengths, index);
  const uint32_t input = options_.input.sample(lengths);
  prompt.output_tokens = options_.output.sample(lengths);
  if (!lines_.empty()) {
    const Line& line = lines_[index % lines_.size()];
    prompt.json = line.json;
    prompt.input_units = line.input_units;
    if (line.output_tokens > 0) prompt.output_tokens = line.output_tokens;
    return prompt;
  }
  std::vector<int32_t> units;
  if (options_.prefix_tokens > 0 && !warmup)
    append_random(kPrefix, index % options_.num_prefixes, options_.prefix_tokens, units);
  append_random(warmup ? kWarmup + 1 : kBody, index, input + (warmup ? options_.prefix_tokens : 0), units);
  prompt.input_units = units.size();
  TANDEM_ASSIGN(prompt.json, to_json(units));
  return prompt;
}

}  // namespace tandem
