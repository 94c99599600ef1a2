#include "checkpoint/matrix_reader.h"

#include <gtest/gtest.h>

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/bf16.h"
#include "checkpoint/safetensors_writer.h"

namespace tandem {
namespace {

class MatrixReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tandem_matrix_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Opens what `writer` writes; the data starts `padding` bytes later than it would.
  void open(const SafetensorsWriter& writer, size_t padding = 0) {
    ASSERT_TRUE(writer.write(folder_ / "model.safetensors", padding));
    auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    checkpoint_ = std::move(*opened);
  }

  std::filesystem::path folder_;
  Checkpoint checkpoint_;
};

std::vector<float> ramp(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i)) * 3.0f;
  return values;
}

TEST(F8E4M3, Values) {
  EXPECT_EQ(f8_e4m3_to_float(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(f8_e4m3_to_float(0x80)));
  EXPECT_EQ(f8_e4m3_to_float(0x01), std::ldexp(1.0f, -9));  // the smallest
  EXPECT_EQ(f8_e4m3_to_float(0x08), std::ldexp(1.0f, -6));  // the smallest normal
  EXPECT_EQ(f8_e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(f8_e4m3_to_float(0xc1), -2.25f);
  EXPECT_EQ(f8_e4m3_to_float(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(f8_e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(f8_e4m3_to_float(0xff)));
}

TEST_F(MatrixReaderTest, SameNumbersAtEveryAlignment) {
  const std::vector<float> values = ramp(12);
  const std::vector<std::byte> odd(3);
  for (size_t padding = 0; padding < 8; ++padding) {
    SafetensorsWriter writer;
    writer.add("odd", "U8", {3}, odd);
    writer.add_f32("f", {3, 4}, values);
    writer.add_bf16("b", {4, 3}, values);
    open(writer, padding);
    const auto f = MatrixReader::create(*checkpoint_.find("f"));
    const auto b = MatrixReader::create(*checkpoint_.find("b"));
    ASSERT_TRUE(f.has_value() && b.has_value());
    std::vector<float> out(8);
    std::vector<uint16_t> bits(8);
    f->read_f32(1, 3, out.data());
    EXPECT_EQ(out, std::vector<float>(values.begin() + 4, values.end()));
    f->read_bf16(1, 3, bits.data());
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(bits[i], to_bf16(values[4 + i]).bits);
    b->read_f32(2, 4, out.data());
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(out[i], to_float(to_bf16(values[6 + i])));
    b->read_bf16(2, 4, bits.data());
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(bits[i], to_bf16(values[6 + i]).bits);
    f->drop_rows(0, 3);
    f->read_f32(0, 1, out.data());
    EXPECT_EQ(out[3], values[3]);
  }
}

TEST_F(MatrixReaderTest, HalfAndStacked) {
  const std::vector<uint16_t> halves = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x3555, 0x8000};
  SafetensorsWriter writer;
  writer.add("h", "F16", {3, 1, 2}, std::as_bytes(std::span(halves)));
  open(writer);
  const auto reader = MatrixReader::create(*checkpoint_.find("h"));
  ASSERT_TRUE(reader.has_value());
  EXPECT_EQ(reader->rows(), 3u);
  EXPECT_EQ(reader->cols(), 2u);
  std::vector<float> out(6);
  reader->read_f32(0, 3, out.data());
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
  EXPECT_EQ(out[2], std::ldexp(1.0f, -24));
  EXPECT_EQ(out[3], 65504.0f);
}

// Rows and columns that no block divides, and a scale of its own for every block: a wrong index shows.
TEST_F(MatrixReaderTest, BlockScalesThatDoNotDivide) {
  for (const bool scales_are_bf16 : {false, true}) {
    constexpr uint64_t kRows = 320, kCols = 200;
    std::vector<uint8_t> bits(kRows * kCols);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint8_t>(i * 37 % 127 + (i % 2) * 128);
    const std::vector<float> scales = {1.0f, 3.0f, 0.5f, 7.0f, 2.0f, 0.25f};  // [3, 2]
    SafetensorsWriter writer;
    writer.add("w", "F8_E4M3", {kRows, kCols}, std::as_bytes(std::span(bits)));
    if (scales_are_bf16) {
      writer.add_bf16("w_scale", {3, 2}, scales);
    } else {
      writer.add_f32("w_scale", {3, 2}, scales);
    }
    open(writer, 1);
    const auto reader = MatrixReader::create(*checkpoint_.find("w"), checkpoint_.find("w_scale"), 128, 128);
    ASSERT_TRUE(reader.has_value()) << reader.error().message;
    constexpr uint64_t kBegin = 100, kEnd = 320;
    std::vector<float> out((kEnd - kBegin) * kCols);
    std::vector<uint16_t> rounded(out.size());
    reader->read_f32(kBegin, kEnd, out.data());
    reader->read_bf16(kBegin, kEnd, rounded.data());
    for (uint64_t row = kBegin; row < kEnd; ++row) {
      for (uint64_t col = 0; col < kCols; ++col) {
        const float expected = f8_e4m3_to_float(bits[row * kCols + col]) * scales[row / 128 * 2 + col / 128];
        const size_t i = (row - kBegin) * kCols + col;
        ASSERT_EQ(out[i], expected) << row << ", " << col;
        ASSERT_EQ(rounded[i], to_bf16(expected).bits) << row << ", " << col;
      }
    }
  }
}

TEST_F(MatrixReaderTest, ColumnsAreThoseOfTheWholeRows) {
  constexpr uint64_t kRows = 140, kCols = 200;
  const std::vector<float> values = ramp(kRows * kCols);
  std::vector<uint16_t> halves(values.size());
  std::vector<uint8_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] = static_cast<uint16_t>(i * 331 % 0x7c00);
    bits[i] = static_cast<uint8_t>(i * 37 % 127);
  }
  SafetensorsWriter writer;
  writer.add_f32("f32", {kRows, kCols}, values);
  writer.add_bf16("bf16", {kRows, kCols}, values);
  writer.add("f16", "F16", {kRows, kCols}, std::as_bytes(std::span(halves)));
  writer.add("fp8", "F8_E4M3", {kRows, kCols}, std::as_bytes(std::span(bits)));
  writer.add_f32("scale", {2, 2}, std::vector<float>{1.0f, 3.0f, 0.5f, 7.0f});
  open(writer, 1);
  for (const char* name : {"f32", "bf16", "f16", "fp8"}) {
    const bool fp8 = std::string(name) == "fp8";
    const auto reader =
        MatrixReader::create(*checkpoint_.find(name), fp8 ? checkpoint_.find("scale") : nullptr, 128, 128);
    ASSERT_TRUE(reader.has_value()) << reader.error().message;
    std::vector<float> whole(kRows * kCols);
    reader->read_f32(0, kRows, whole.data());
    for (const MatrixReader::Columns columns :
         {MatrixReader::Columns{0, 8}, {120, 136}, {128, 200}, {199, 200}, {64, UINT64_MAX}}) {
      const uint64_t end = std::min(columns.end, kCols), width = end - columns.begin;
      constexpr uint64_t kBegin = 100;
      std::vector<float> out((kRows - kBegin) * width + 1, 77.0f);
      std::vector<uint16_t> rounded(out.size(), 7);
      reader->read_f32(kBegin, kRows, out.data(), columns);
      reader->read_bf16(kBegin, kRows, rounded.data(), columns);
      for (uint64_t i = 0; i + 1 < out.size(); ++i) {
        const float expected = whole[(kBegin + i / width) * kCols + columns.begin + i % width];
        ASSERT_EQ(out[i], expected) << name << " " << i;
        ASSERT_EQ(rounded[i], to_bf16(expected).bits) << name << " " << i;
      }
      EXPECT_EQ(out.back(), 77.0f);
      EXPECT_EQ(rounded.back(), 7);
    }
  }
}

TEST_F(MatrixReaderTest, RefusesByName) {
  const std::vector<std::byte> raw(16);
  SafetensorsWriter writer;
  writer.add("w", "F8_E4M3", {4, 4}, raw);
  writer.add_f32("good", {1, 1}, std::vector<float>{1});
  writer.add_f32("wrong_shape", {1, 2}, std::vector<float>{1, 1});
  writer.add("wrong_type", "U8", {1, 1}, std::span(raw).first(1));
  writer.add("future", "F3_X", {7}, raw);
  writer.add("ids", "I64", {2}, raw);
  writer.add("e5m2", "F8_E5M2", {4, 4}, raw);
  open(writer);
  const auto refused = [&](const char* name, const char* scale, uint32_t block, const std::string& word) {
    const auto reader = MatrixReader::create(*checkpoint_.find(name),
                                             scale ? checkpoint_.find(scale) : nullptr, block, block);
    ASSERT_FALSE(reader.has_value()) << name;
    EXPECT_NE(reader.error().message.find(word), std::string::npos) << reader.error().message;
    EXPECT_NE(reader.error().message.find("model.safetensors"), std::string::npos) << reader.error().message;
  };
  refused("w", nullptr, 128, "'w' is F8_E4M3 and has no weight_scale_inv");
  refused("w", "wrong_shape", 128, "'wrong_shape' has the shape [1, 2]");
  refused("w", "wrong_type", 128, "'wrong_type' is U8");
  refused("w", "good", 0, "weight_block_size");
  refused("good", "good", 128, "block scales beside it");
  refused("future", nullptr, 0, "'future' is F3_X");
  refused("ids", nullptr, 0, "'ids' is I64");
  refused("e5m2", "good", 128, "'e5m2' is F8_E5M2");
}

// [2, 37, 6] seen as [2 * 6, 37], with more columns than are turned at a time.
TEST_F(MatrixReaderTest, TurnedStacks) {
  constexpr uint64_t kMatrices = 2, kCols = 37, kRows = 6;
  const std::vector<float> values = ramp(kMatrices * kCols * kRows);
  SafetensorsWriter writer;
  writer.add_f32("f", {kMatrices, kCols, kRows}, values);
  writer.add_bf16("b", {kMatrices, kCols, kRows}, values);
  writer.add_f32("flat", {kCols, kRows * kMatrices}, values);
  writer.add_f32("odd", {kRows, kMatrices, kCols}, values);
  open(writer, 3);
  for (const bool interleaved : {false, true}) {
    const auto wanted = [&](uint64_t row, uint64_t col) {
      uint64_t at = row % kRows;
      if (interleaved) at = at < kRows / 2 ? 2 * at : 2 * (at - kRows / 2) + 1;
      return values[(row / kRows * kCols + col) * kRows + at];
    };
    const auto f = MatrixReader::create_turned(*checkpoint_.find("f"), interleaved);
    const auto b = MatrixReader::create_turned(*checkpoint_.find("b"), interleaved);
    ASSERT_TRUE(f.has_value() && b.has_value());
    EXPECT_TRUE(f->is_turned());
    EXPECT_EQ(f->rows(), kMatrices * kRows);
    EXPECT_EQ(f->cols(), kCols);
    for (const MatrixReader::Columns columns : {MatrixReader::Columns{}, MatrixReader::Columns{5, 24}}) {
      const uint64_t end = std::min(columns.end, kCols), width = end - columns.begin;
      for (const auto& [from, to] : {std::pair<uint64_t, uint64_t>{0, 12}, {4, 9}, {11, 12}}) {
        std::vector<float> out((to - from) * width), of_bf16(out.size());
        std::vector<uint16_t> bits(out.size()), bits_of_bf16(out.size());
        f->read_f32(from, to, out.data(), columns);
        f->read_bf16(from, to, bits.data(), columns);
        b->read_f32(from, to, of_bf16.data(), columns);
        b->read_bf16(from, to, bits_of_bf16.data(), columns);
        for (uint64_t i = 0; i < out.size(); ++i) {
          const float value = wanted(from + i / width, columns.begin + i % width);
          ASSERT_EQ(out[i], value) << i;
          ASSERT_EQ(of_bf16[i], to_float(to_bf16(value))) << i;
          ASSERT_EQ(bits[i], to_bf16(value).bits) << i;
          ASSERT_EQ(bits_of_bf16[i], to_bf16(value).bits) << i;
        }
      }
    }
    f->drop_rows(7, 8);  // the second matrix
    float value = 0;
    f->read_f32(11, 12, &value, {36, 37});
    EXPECT_EQ(value, wanted(11, 36));
  }
  const auto refused = [&](const char* name, bool interleaved, ErrorCode code, const char* word) {
    const auto reader = MatrixReader::create_turned(*checkpoint_.find(name), interleaved);
    ASSERT_FALSE(reader.has_value());
    EXPECT_EQ(reader.error().code, code);
    EXPECT_NE(reader.error().message.find(word), std::string::npos) << reader.error().message;
  };
  refused("flat", false, ErrorCode::data_loss,
          "tensor 'flat' has the shape [37, 12]; a stack of matrices has three");
  refused("odd", true, ErrorCode::data_loss, "the last of them even");
  EXPECT_TRUE(MatrixReader::create_turned(*checkpoint_.find("odd"), false).has_value());
}

}  // namespace
}  // namespace tandem
