#include "serving/test_tokenizer.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tandem {

using nlohmann::json;

namespace {

void append_utf8(std::string& out, uint32_t codepoint) {
  if (codepoint < 0x80) {
    out.push_back(static_cast<char>(codepoint));
  } else {
    out.push_back(static_cast<char>(0xc0 | (codepoint >> 6)));
    out.push_back(static_cast<char>(0x80 | (codepoint & 0x3f)));
  }
}

// How GPT-2's byte-level vocabulary writes a byte: itself where it is printable, otherwise 256 and up in
// order.
std::string byte_letter(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  std::string text;
  if (printable(byte)) {
    append_utf8(text, static_cast<uint32_t>(byte));
    return text;
  }
  uint32_t next = 256;
  for (int b = 0; b < byte; ++b) next += printable(b) ? 0 : 1;
  append_utf8(text, next);
  return text;
}

json added_token(int32_t id, const char* content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// Byte-level BPE of the bytes, two merges and these tokens.
json tokenizer_json(json added_tokens) {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_letter(byte)] = byte;
  vocab["AB"] = 256;
  vocab["CD"] = 257;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added_tokens)},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", json::array({"A B", "C D"})}}}};
}

}  // namespace

void write_test_model_folder(const std::string& folder) {
  json tokenizer = tokenizer_json(
      json::array({added_token(kBosId, "<s>", true), added_token(kEosId, "</s>", true),
                   added_token(kImStartId, "<|im_start|>", true), added_token(kImEndId, "<|im_end|>", true),
                   added_token(kThinkEndId, "</think>", false)}));
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
      {"pair", json::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                            {{"Sequence", {{"id", "B"}, {"type_id", 0}}}}})},
      {"special_tokens",
       {{"<s>", {{"id", "<s>"}, {"ids", json::array({kBosId})}, {"tokens", json::array({"<s>"})}}}}}};
  const json config = {{"bos_token", "<s>"},
                       {"eos_token", "</s>"},
                       {"chat_template",
                        "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ "
                        "message['content'] }}<|im_end|>\n"
                        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"}};
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.json") << tokenizer.dump();
  std::ofstream(folder + "/tokenizer_config.json") << config.dump();
  std::ofstream(folder + "/generation_config.json")
      << json{{"eos_token_id", kEosId}, {"temperature", 0.5}, {"top_p", 0.9}}.dump();
}

void write_deepseek_v4_test_folder(const std::string& folder) {
  json added = json::array({added_token(kBosId, "<｜begin▁of▁sentence｜>", true),
                            added_token(kEosId, "<｜end▁of▁sentence｜>", true)});
  int32_t id = kEosId;
  for (const char* text :
       {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>"}) {
    // The model's own are not marked special; that a parser's are kept all the same is tested with one that
    // is.
    added.push_back(added_token(++id, text, std::string_view(text) == "｜DSML｜"));
  }
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.json") << tokenizer_json(std::move(added)).dump();
  std::ofstream(folder + "/tokenizer_config.json")
      << json{{"bos_token", "<｜begin▁of▁sentence｜>"}, {"eos_token", "<｜end▁of▁sentence｜>"}}.dump();
  std::ofstream(folder + "/config.json") << json{{"model_type", "deepseek_v4"}}.dump();
  std::ofstream(folder + "/generation_config.json") << json{{"eos_token_id", kEosId}}.dump();
}

namespace {

void write_harmony(const std::string& folder, const std::vector<const char*>& marks) {
  json added =
      json::array({added_token(kBosId, "<|startoftext|>", true), added_token(kEosId, "<|return|>", true)});
  int32_t id = kEosId;
  for (const char* mark : marks) added.push_back(added_token(++id, mark, true));
  const json config = {{"eos_token", "<|return|>"},
                       {"chat_template",
                        "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% for message in "
                        "messages %}<|start|>"
                        "{{ message.role }}<|channel|>final<|message|>{{ message.content }}{% for call in "
                        "message.tool_calls or [] %}"
                        "{{ call.function.name }}{% endfor %}<|end|>{% endfor %}<|start|>assistant"}};
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.json") << tokenizer_json(std::move(added)).dump();
  std::ofstream(folder + "/tokenizer_config.json") << config.dump();
  std::ofstream(folder + "/generation_config.json") << json{{"eos_token_id", kEosId}}.dump();
}

}  // namespace

void write_harmony_test_folder(const std::string& folder) {
  write_harmony(folder, {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>"});
}

void write_harmony_test_folder_without_marks(const std::string& folder) {
  write_harmony(folder, {"<|start|>"});
}

std::shared_ptr<const Tokenizer> load_test_tokenizer() {
  const auto folder =
      std::filesystem::temp_directory_path() / ("tandem_test_tokenizer_" + std::to_string(getpid()));
  write_test_model_folder(folder.string());
  auto tokenizer = Tokenizer::load(folder.string());
  std::filesystem::remove_all(folder);
  if (!tokenizer) return nullptr;
  return std::make_shared<const Tokenizer>(std::move(*tokenizer));
}

std::vector<int32_t> byte_ids(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

}  // namespace tandem
