#include "serving/model_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tandem {
namespace {

class ModelFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = (std::filesystem::temp_directory_path() / (std::string("tandem_model_files_") + info->name()))
                  .string();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }

  std::string folder_;
};

TEST_F(ModelFilesTest, AbsentFilesLeaveTheDefaults) {
  const auto defaults = read_generation_defaults(folder_);
  ASSERT_TRUE(defaults);
  EXPECT_EQ(defaults->sampling.temperature, 1.0f);
  EXPECT_TRUE(defaults->eos_token_ids.empty());
  EXPECT_EQ(read_chat_template(folder_)->text, "");
}

TEST_F(ModelFilesTest, GenerationConfigIsRead) {
  write("generation_config.json",
        R"({"temperature":0.6,"top_p":0.95,"top_k":20,"repetition_penalty":1.05,"min_p":null,
    "do_sample":true,"eos_token_id":[1,2],"transformers_version":"4"})");
  write("config.json", R"({"eos_token_id":9})");
  const auto defaults = read_generation_defaults(folder_);
  ASSERT_TRUE(defaults) << defaults.error().message;
  EXPECT_EQ(defaults->sampling.temperature, 0.6f);
  EXPECT_EQ(defaults->sampling.top_p, 0.95f);
  EXPECT_EQ(defaults->sampling.top_k, 20);
  EXPECT_EQ(defaults->sampling.repetition_penalty, 1.05f);
  EXPECT_EQ(defaults->eos_token_ids, (std::vector<int32_t>{1, 2}));
}

TEST_F(ModelFilesTest, NoSamplingMeansGreedyAndConfigHasTheEnd) {
  write("generation_config.json", R"({"temperature":0.6,"do_sample":false})");
  write("config.json", R"({"eos_token_id":9})");
  const auto defaults = read_generation_defaults(folder_);
  ASSERT_TRUE(defaults);
  EXPECT_EQ(defaults->sampling.temperature, 0.0f);
  EXPECT_EQ(defaults->eos_token_ids, std::vector<int32_t>{9});
}

TEST_F(ModelFilesTest, WrongValuesAreNamed) {
  const std::pair<const char*, const char*> table[] = {{R"({"temperature":"x"})", "temperature is \"x\""},
                                                       {R"({"top_p":1.5})", "top_p is 1.5"},
                                                       {R"({"top_k":-7})", "top_k is -7"},
                                                       {R"({"eos_token_id":-1})", "eos_token_id is -1"},
                                                       {R"({"eos_token_id":[1,"a"]})", "eos_token_id is"},
                                                       {R"([1])", "not a JSON object"},
                                                       {"{", "not a JSON object"}};
  for (const auto& [text, part] : table) {
    write("generation_config.json", text);
    const auto defaults = read_generation_defaults(folder_);
    ASSERT_FALSE(defaults) << text;
    EXPECT_NE(defaults.error().message.find(part), std::string::npos) << defaults.error().message;
    EXPECT_NE(defaults.error().message.find("generation_config.json"), std::string::npos);
  }
}

TEST_F(ModelFilesTest, TemplatesComeAsAStringAListOrAFile) {
  write("tokenizer_config.json",
        R"({"chat_template":"one","bos_token":"<s>","eos_token":{"content":"</s>","lstrip":false},
    "pad_token":null})");
  auto source = read_chat_template(folder_);
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ(source->text, "one");
  EXPECT_EQ(source->bos_token, "<s>");
  EXPECT_EQ(source->eos_token, "</s>");

  write("tokenizer_config.json",
        R"({"chat_template":[{"name":"tool_use","template":"two"},{"name":"default","template":"three"}]})");
  EXPECT_EQ(read_chat_template(folder_)->text, "three");

  write("chat_template.jinja", "four");
  source = read_chat_template(folder_);
  EXPECT_EQ(source->text, "four");
  EXPECT_TRUE(source->file.ends_with("chat_template.jinja"));
}

TEST_F(ModelFilesTest, TemplatesThatAreNoneAreNamed) {
  const std::pair<const char*, const char*> table[] = {
      {R"({"chat_template":7})", "chat_template is 7"},
      {R"({"chat_template":[{"name":"rag","template":"x"}]})", "rag"},
      {R"({"chat_template":[{"name":"default"}]})", "name and template"},
      {R"({"bos_token":7})", "bos_token is 7"},
      {R"({"eos_token":{"text":"x"}})", "eos_token is"}};
  for (const auto& [text, part] : table) {
    write("tokenizer_config.json", text);
    const auto source = read_chat_template(folder_);
    ASSERT_FALSE(source) << text;
    EXPECT_NE(source.error().message.find(part), std::string::npos) << source.error().message;
  }
}

}  // namespace
}  // namespace tandem
