// Files that are not what they should be: refused, naming file and field.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/file.h"
#include "tokenizer/tokenizer.h"

namespace tandem {
namespace {

using nlohmann::json;

class TokenizerFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "tandem_tokenizer_file_test";
    std::filesystem::create_directories(folder_);
    base_ = json::parse(read_file("tests/fixtures/tokenizer/llama3/tokenizer.json", 1 << 20).value());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  // The error of loading `base_` with the value at `pointer` replaced.
  Error refusal(const std::string& pointer, const json& value) {
    json changed = base_;
    changed[json::json_pointer(pointer)] = value;
    write("tokenizer.json", changed.dump());
    auto tokenizer = Tokenizer::load(folder_);
    return tokenizer ? Error{ErrorCode::internal, "accepted"} : tokenizer.error();
  }
  void expect_named(const std::string& pointer, const json& value, ErrorCode code, const std::string& named) {
    const Error error = refusal(pointer, value);
    EXPECT_EQ(error.code, code) << pointer << ": " << error.message;
    EXPECT_NE(error.message.find(named), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("tokenizer.json"), std::string::npos) << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos);
  }

  std::string folder_;
  json base_;
};

TEST_F(TokenizerFileTest, RefusesWhatIsNotImplemented) {
  const auto unsupported = [&](const std::string& pointer, const json& value, const std::string& named) {
    expect_named(pointer, value, ErrorCode::unsupported, named);
  };
  unsupported("/model/type", "Unigram", "Unigram");
  unsupported("/model/type", "WordPiece", "WordPiece");
  unsupported("/model/dropout", 0.1, "model.dropout");
  unsupported("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix");
  unsupported("/normalizer", json{{"type", "NFKC"}}, "NFKC");
  unsupported("/normalizer", json{{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}},
              "normalizers[0]");
  unsupported("/pre_tokenizer", json{{"type", "BertPreTokenizer"}}, "BertPreTokenizer");
  unsupported("/pre_tokenizer/pretokenizers/0/pattern", json{{"Regex", "(?<=a)b"}}, "lookbehind");
  unsupported("/pre_tokenizer/pretokenizers/0/behavior", "Sideways", "Sideways");
  unsupported("/decoder", json{{"type", "WordPiece"}}, "WordPiece");
  unsupported("/decoder", nullptr, "decoder");
  unsupported("/decoder", json{{"type", "Fuse"}}, "ByteLevel");
  unsupported("/pre_tokenizer", nullptr, "ByteLevel");
  unsupported("/post_processor", json{{"type", "BertProcessing"}}, "BertProcessing");
}

TEST_F(TokenizerFileTest, RefusesWhatIsMalformed) {
  const auto malformed = [&](const std::string& pointer, const json& value, const std::string& named) {
    expect_named(pointer, value, ErrorCode::data_loss, named);
  };
  malformed("/model", nullptr, "model: missing");
  malformed("/model/vocab", json::array(), "model.vocab");
  malformed("/model/vocab", json::object(), "model.vocab");
  malformed("/model/vocab/a", -1, "\"a\"");
  malformed("/model/vocab/a", 1.5, "\"a\"");
  malformed("/model/vocab/a", uint64_t{1} << 63, "\"a\"");
  malformed("/model/vocab/a", base_["model"]["vocab"]["b"], "two tokens have the id");
  malformed("/model/merges", 7, "model.merges");
  malformed("/model/merges/3", "one", "model.merges[3]");
  malformed("/model/merges/3", "a b c", "model.merges[3]");
  malformed("/model/merges/3", json{"no", "such"}, "model.merges[3]");
  malformed("/model/merges/3", json{1, 2}, "model.merges[3]");
  malformed("/model/unk_token", "<none>", "model.unk_token");
  malformed("/model/ignore_merges", "yes", "model.ignore_merges");
  malformed("/added_tokens", json::object(), "added_tokens");
  malformed("/added_tokens/0/id", "x", "added_tokens[0].id");
  malformed("/added_tokens/0/id", 3, "contradicts");
  malformed("/added_tokens/0/content", "", "added_tokens[0].content");
  malformed("/added_tokens/0/lstrip", 1, "added_tokens[0].lstrip");
  malformed("/post_processor/processors/1/single", json::array(), "single");
  malformed("/post_processor/processors/1/special_tokens", json::object(), "special_tokens");
  malformed("/normalizer", "NFC", "normalizer");
}

TEST_F(TokenizerFileTest, RefusesAVocabularyThatCannotSpellEveryText) {
  base_["model"]["merges"] = json::array();
  json vocab = base_["model"]["vocab"];
  vocab.erase("z");
  expect_named("/model/vocab", vocab, ErrorCode::data_loss, "0x7A");
}

TEST_F(TokenizerFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(Tokenizer::load(folder_).error().code, ErrorCode::not_found);
  for (const char* text : {"", "{", "[]", "null", "{\"model\": 1}", "\xFF\xFE"}) {
    write("tokenizer.json", text);
    const auto tokenizer = Tokenizer::load(folder_);
    ASSERT_FALSE(tokenizer.has_value()) << text;
    EXPECT_EQ(tokenizer.error().code, ErrorCode::data_loss) << text;
    EXPECT_NE(tokenizer.error().message.find("tokenizer.json"), std::string::npos);
  }
  write("tokenizer.json", std::string(100'000, '['));
  EXPECT_FALSE(Tokenizer::load(folder_).has_value());
}

TEST_F(TokenizerFileTest, ReadsBosAndEosFromTheConfig) {
  base_.erase("post_processor");
  write("tokenizer.json", base_.dump());
  EXPECT_FALSE(Tokenizer::load(folder_)->bos_id().has_value());
  write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<|begin_of_text|>"}, "eos_token": "<|eot_id|>", "add_bos_token": true})");
  const auto tokenizer = Tokenizer::load(folder_);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->bos_id(), tokenizer->id_of("<|begin_of_text|>"));
  EXPECT_EQ(tokenizer->eos_id(), tokenizer->id_of("<|eot_id|>"));
  EXPECT_EQ(tokenizer->encode("a")->front(), tokenizer->bos_id().value());
  write("tokenizer_config.json", R"({"bos_token": "<nowhere>"})");
  EXPECT_NE(Tokenizer::load(folder_).error().message.find("bos_token"), std::string::npos);
  write("tokenizer_config.json", R"({"add_bos_token": 3})");
  EXPECT_NE(Tokenizer::load(folder_).error().message.find("add_bos_token"), std::string::npos);
}

TEST_F(TokenizerFileTest, SurvivesMutations) {
  std::mt19937 random(5);
  const std::string text = base_.dump();
  const size_t settings = text.find("\"model\"");
  int loaded = 0;
  for (int round = 0; round < 300; ++round) {
    std::string changed = text;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      // Half of the edits hit the settings rather than the long vocabulary.
      const size_t at = random() % (round % 2 == 0 ? changed.size() : std::min(settings, changed.size()));
      switch (random() % 3) {
        case 0:
          changed[at] = static_cast<char>(random());
          break;
        case 1:
          changed.erase(at, random() % 40);
          break;
        default:
          changed.insert(at, changed.substr(random() % changed.size(), random() % 40));
          break;
      }
      if (changed.empty()) changed.push_back('{');
    }
    write("tokenizer.json", changed);
    const auto tokenizer = Tokenizer::load(folder_);
    if (!tokenizer) continue;
    ++loaded;
    const auto ids = tokenizer->encode("It's 123 <|eot_id|> 今天 zz\n");
    if (ids) {
      EXPECT_TRUE(tokenizer->decode(*ids).has_value());
    }
  }
  EXPECT_GT(loaded, 0);
}

}  // namespace
}  // namespace tandem
