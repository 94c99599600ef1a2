#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/safetensors_writer.h"
#include "model/model_weights.h"

namespace tandem {
namespace {

class Fingerprint : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tandem_fingerprint_" + std::to_string(getpid()));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  uint64_t of(const std::string& config, const std::string& name, float middle,
              const std::string& file = "model.safetensors") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::vector<float> values(4096, 1.0f);
    values[2048] = middle;
    SafetensorsWriter writer;
    writer.add_f32(name, {64, 64}, values);
    EXPECT_TRUE(writer.write(folder_ / file));
    EXPECT_TRUE(write_text_file(folder_ / "config.json", config));
    const auto fingerprint = model_fingerprint(folder_);
    EXPECT_TRUE(fingerprint.has_value());
    return fingerprint.value_or(0);
  }

  std::filesystem::path folder_;
};

TEST_F(Fingerprint, SameForTheSameAndDifferentForAnyPart) {
  const uint64_t first = of("{}", "a", 2);
  EXPECT_EQ(of("{}", "a", 2), first);
  EXPECT_NE(of("{ }", "a", 2), first);
  EXPECT_NE(of("{}", "b", 2), first);
  EXPECT_NE(of("{}", "a", 3), first);
  EXPECT_NE(of("{}", "a", 2, "model-1.safetensors"), first);
}

TEST_F(Fingerprint, NotAModelFolder) {
  EXPECT_EQ(model_fingerprint("/nowhere/at/all").error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace tandem
