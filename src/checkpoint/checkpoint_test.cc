#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/matrix_reader.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tandem_checkpoint_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void shard(const std::string& file, const std::vector<std::pair<std::string, float>>& tensors) {
    SafetensorsWriter writer;
    for (const auto& [name, value] : tensors) writer.add_f32(name, {1}, std::vector<float>{value});
    ASSERT_TRUE(writer.write(folder_ / file));
  }
  void index(const std::string& text) {
    ASSERT_TRUE(write_text_file(folder_ / "model.safetensors.index.json", text));
  }

  void expect_refused(ErrorCode code, const std::string& word) {
    const auto opened = Checkpoint::open(folder_);
    ASSERT_FALSE(opened.has_value()) << word;
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    EXPECT_NE(opened.error().message.find(word), std::string::npos) << opened.error().message;
  }
  float value(const Checkpoint& checkpoint, const std::string& name) {
    float out = -1;
    MatrixReader::create(*checkpoint.find(name))->read_f32(0, 1, &out);
    return out;
  }

  std::filesystem::path folder_;
};

TEST_F(CheckpointTest, SingleFileAndSeveralWithoutIndex) {
  shard("model.safetensors", {{"a", 1}, {"b", 2}});
  shard("model-2.safetensors", {{"c", 3}});
  shard("parity.safetensors", {{"logits", 3}});  // not the model's: ignored
  const auto checkpoint = Checkpoint::open(folder_);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(value(*checkpoint, "c"), 3.0f);
  EXPECT_EQ(checkpoint->total_bytes(), 12u);
  EXPECT_EQ(checkpoint->find("d"), nullptr);
}

TEST_F(CheckpointTest, NameInTwoFilesWithoutIndex) {
  shard("model.safetensors", {{"a", 1}, {"b", 2}});
  for (const char* stray : {"aaa.safetensors", "zzz.safetensors"}) {
    shard(stray, {{"b", 9}});
    expect_refused(ErrorCode::data_loss, "tensor 'b' is in ");
    std::filesystem::remove(folder_ / stray);
  }
}

TEST_F(CheckpointTest, IndexIsTheAuthority) {
  shard("m1.safetensors", {{"a", 1}});
  shard("m2.safetensors", {{"b", 2}, {"a", 8}, {"unlisted", 7}});
  index(R"({"metadata":{},"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}})");
  for (const char* stray : {"aaa.safetensors", "zzz.safetensors"}) {
    shard(stray, {{"b", 9}});
    testing::internal::CaptureStderr();
    const auto checkpoint = Checkpoint::open(folder_);
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->tensors().size(), 2u);
    EXPECT_EQ(value(*checkpoint, "a"), 1.0f);
    EXPECT_EQ(value(*checkpoint, "b"), 2.0f);
    EXPECT_NE(log.find(stray), std::string::npos) << log;
    EXPECT_NE(log.find("ignored 2 tensor(s)"), std::string::npos) << log;
    std::filesystem::remove(folder_ / stray);
  }
}

TEST_F(CheckpointTest, IndexThatPromisesTooMuch) {
  shard("m1.safetensors", {{"a", 1}});
  index(R"({"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}})");
  expect_refused(ErrorCode::not_found, "m2.safetensors for tensor 'b'");
  index(R"({"weight_map":{"a":"m1.safetensors","b":"m1.safetensors"}})");
  expect_refused(ErrorCode::not_found, "holds tensor 'b'");
  index(R"({"weight_map":{"a":"m1.safetensors","a":"m1.safetensors"}})");
  expect_refused(ErrorCode::data_loss, "'a' twice");
  index(R"({"weight_map":{"a":"../m1.safetensors"}})");
  expect_refused(ErrorCode::data_loss, "plain file name");
  index(R"({"weight_map":{"a":1}})");
  expect_refused(ErrorCode::data_loss, "'a'");
  index(R"({"weight_map":{}})");
  expect_refused(ErrorCode::data_loss, "empty");
  index(R"([])");
  expect_refused(ErrorCode::data_loss, "weight_map");
  index("{");
  expect_refused(ErrorCode::data_loss, "JSON");
}

TEST_F(CheckpointTest, NotAModelFolder) {
  expect_refused(ErrorCode::invalid_argument, "no *.safetensors");
  ASSERT_TRUE(write_text_file(folder_ / "pytorch_model.bin", "x"));
  expect_refused(ErrorCode::invalid_argument, "pytorch_model.bin");
  EXPECT_EQ(Checkpoint::open(folder_ / "pytorch_model.bin").error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(Checkpoint::open("/nowhere/at/all").error().code, ErrorCode::invalid_argument);
  EXPECT_NE(read_config_json(folder_).error().message.find("config.json"), std::string::npos);
  ASSERT_TRUE(write_text_file(folder_ / "model.safetensors", "garbage"));
  expect_refused(ErrorCode::data_loss, "model.safetensors");
}

TEST(StrictJson, RefusesWhatAParserLetsThrough) {
  const auto message = [](const std::string& text) {
    return parse_strict_json(text, "c.json").error().message;
  };
  EXPECT_NE(message(R"({"a":1,"a":2})").find("'a' twice"), std::string::npos);
  EXPECT_NE(message(R"({"b":[{"a":{"x":1},"a":2}]})").find("'a' twice"), std::string::npos);
  EXPECT_NE(message(std::string(100000, '[')).find("deeper"), std::string::npos);
  EXPECT_NE(message("{}x").find("JSON"), std::string::npos);
  const auto good = parse_strict_json(R"({"a":{"x":1},"b":{"x":1}})", "c.json");
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ((*good)["b"]["x"], 1);
}

}  // namespace
}  // namespace tandem
