#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "checkpoint/safetensors_writer.h"

namespace tandem {
namespace {

Result<std::vector<TensorInfo>> parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file.data(), file.size())), "m.safetensors");
}

// The header is refused, and the message names the file and `word`.
void expect_refused(const std::string& file, const std::string& word) {
  const auto result = parse(file);
  ASSERT_FALSE(result.has_value()) << word;
  EXPECT_EQ(result.error().code, ErrorCode::data_loss);
  EXPECT_NE(result.error().message.find("m.safetensors"), std::string::npos) << result.error().message;
  EXPECT_NE(result.error().message.find(word), std::string::npos) << result.error().message;
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
}

std::string entry(const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}";
}

std::string file_of(const std::string& entries, size_t data_bytes) {
  return raw_safetensors("{" + entries + "}", std::string(data_bytes, 'x'));
}

std::string with_prefix(uint64_t prefix) {
  std::string file = file_of(entry("a", "[1]", "[0,4]"), 4);
  std::memcpy(file.data(), &prefix, sizeof prefix);
  return file;
}

TEST(Safetensors, ReadsWhatIsThere) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)" + entry("b", "[2,3]", "[4,28]") + "," +
                             entry("a", "[]", "[0,4]") + "," + entry("empty", "[0,7]", "[28,28]", "BF16") +
                             "}  ";
  const auto tensors = parse(raw_safetensors(header, std::string(28, 'x')));
  ASSERT_TRUE(tensors.has_value()) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].bytes(), 4u);
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ((*tensors)[1].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ((*tensors)[1].begin, 8 + header.size() + 4);
  EXPECT_EQ((*tensors)[2].bytes(), 0u);
  EXPECT_TRUE(parse(raw_safetensors("{}", ""))->empty());
}

TEST(Safetensors, LengthPrefixThatLies) {
  expect_refused("", "header length");
  expect_refused("1234567", "header length");
  expect_refused(with_prefix(0), "JSON object");
  expect_refused(with_prefix(uint64_t{1} << 63), "9223372036854775808");
  expect_refused(with_prefix(UINT64_MAX), "18446744073709551615");
  expect_refused(with_prefix(kMaxHeaderBytes), "truncated");
  expect_refused(with_prefix(3), "JSON");
}

TEST(Safetensors, HeaderThatIsNoHeader) {
  expect_refused(raw_safetensors("[]", ""), "JSON object");
  expect_refused(raw_safetensors("  {}", ""), "JSON object");
  expect_refused(raw_safetensors("\xef\xbb\xbf{}", ""), "JSON object");
  expect_refused(raw_safetensors("{} x", ""), "JSON");
  expect_refused(raw_safetensors("{\"a\":", ""), "JSON");
  expect_refused(raw_safetensors(R"({"a":1})", ""), "'a'");
  expect_refused(raw_safetensors(R"({"a":[[[[[[]]]]]]})", ""), "'a'");
  expect_refused(raw_safetensors(R"({"__metadata__":{"a":1}})", ""), "__metadata__");
  expect_refused(raw_safetensors(R"({"__metadata__":{"a":{"b":"c"}}})", ""), "__metadata__");
  expect_refused(raw_safetensors("{\"\xff\":{}}", ""), "JSON");
}

TEST(Safetensors, Duplicates) {
  expect_refused(file_of(entry("a", "[1]", "[0,4]") + "," + entry("a", "[1]", "[4,8]"), 8), "'a' twice");
  expect_refused(file_of(R"("a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", 4),
                 "'dtype' twice");
  expect_refused(file_of(R"("a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]})", 4),
                 "'shape' twice");
  expect_refused(raw_safetensors(R"({"__metadata__":{"a":"1","a":"2"}})", ""), "'a' twice");
}

TEST(Safetensors, OffsetsThatLie) {
  expect_refused(file_of(entry("a", "[1]", "[4,0]"), 4), "before it begins");
  expect_refused(file_of(entry("a", "[2]", "[0,8]") + "," + entry("b", "[1]", "[4,8]"), 8),
                 "'a' and 'b' share");
  expect_refused(file_of(entry("a", "[1]", "[0,4]") + "," + entry("b", "[1]", "[8,12]"), 12),
                 "before tensor 'b'");
  expect_refused(file_of(entry("a", "[1]", "[4,8]"), 8), "before tensor 'a'");
  expect_refused(file_of(entry("a", "[1]", "[0,4]"), 5), "the last 1 bytes");
  expect_refused(file_of(entry("a", "[2]", "[0,8]"), 4), "truncated");
  expect_refused(file_of(entry("a", "[1]", "[0,18446744073709551615]"), 4), "truncated");
  expect_refused(file_of(entry("a", "[1]", "[-4,0]"), 4), "-4");
  expect_refused(file_of(entry("a", "[1]", R"(["0","4"])"), 4), "'0'");
  expect_refused(file_of(entry("a", "[1]", "[0.0,4.0]"), 4), "data_offsets");
  expect_refused(file_of(entry("a", "[1]", "[0,18446744073709551616]"), 4), "data_offsets");
  expect_refused(file_of(entry("a", "[1]", "[0]"), 4), "two data_offsets");
  expect_refused(file_of(entry("a", "[1]", "[0,4,4]"), 4), "two data_offsets");
  expect_refused(file_of(entry("a", "[1]", "4"), 4), "data_offsets");
  expect_refused(file_of(entry("a", "[1]", "null"), 4), "'a'");
}

TEST(Safetensors, ShapesThatLie) {
  expect_refused(file_of(entry("a", "[2]", "[0,4]"), 4), "calls for 8");
  expect_refused(file_of(entry("a", "[1]", "[0,4]", "BF16"), 4), "calls for 2");
  // 2^62 * 4 * 4 bytes is 0 modulo 2^64.
  expect_refused(file_of(entry("a", "[4611686018427387904,4]", "[0,0]"), 0), "'a' has the shape");
  expect_refused(file_of(entry("a", "[4611686018427387904]", "[0,0]"), 0), "'a' has the shape");
  expect_refused(file_of(entry("a", "[-1]", "[0,4]"), 4), "-1");
  expect_refused(file_of(entry("a", "[1.0]", "[0,4]"), 4), "shape");
  expect_refused(file_of(entry("a", "[[1]]", "[0,4]"), 4), "shape");
  expect_refused(file_of(entry("a", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4), "dimensions");
  expect_refused(file_of(entry("a", "[3]", "[0,2]", "F4"), 2), "'a' has the shape");
}

TEST(Safetensors, MissingAndUnknownKeys) {
  expect_refused(file_of(R"("a":{"shape":[1],"data_offsets":[0,4]})", 4), "no 'dtype'");
  expect_refused(file_of(R"("a":{"dtype":"F32","data_offsets":[0,4]})", 4), "no 'shape'");
  expect_refused(file_of(R"("a":{"dtype":"F32","shape":[1]})", 4), "no 'data_offsets'");
  expect_refused(file_of(R"("a":{"dtype":7,"shape":[1],"data_offsets":[0,4]})", 4), "dtype");
  expect_refused(file_of(R"("a":{"strides":[1],"shape":[1],"data_offsets":[0,4]})", 4), "strides");
}

// A file with any few bytes changed is either refused or sound: every tensor inside the file, none sharing
// bytes.
TEST(Safetensors, AnyDamage) {
  const std::string good =
      file_of(R"("__metadata__":{"format":"pt"},)" + entry("a", "[2,3]", "[0,24]") + "," +
                  entry("b", "[4]", "[24,32]", "F16") + "," + entry("c", "[]", "[32,33]", "U8"),
              33);
  std::minstd_rand random(7);
  constexpr std::string_view kInserted = "0123456789[]{},\":-e.";
  size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string file = good;
    for (size_t change = 0; change <= random() % 3; ++change) {
      const size_t at = random() % file.size();
      switch (random() % 3) {
        case 0:
          file[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          file.erase(at, 1 + random() % 4);
          break;
        default:
          file.insert(at, 1, kInserted[random() % kInserted.size()]);
          break;
      }
      if (file.empty()) break;
    }
    const auto tensors = parse(file);
    if (!tensors) continue;
    ++accepted;
    uint64_t covered = 0;
    for (const TensorInfo& tensor : *tensors) {
      ASSERT_LE(tensor.begin, tensor.end);
      ASSERT_LE(tensor.end, file.size());
      ASSERT_GE(tensor.begin, covered);
      covered = tensor.end;
    }
  }
  EXPECT_GT(accepted, 0u);  // a changed name or data byte is still a file
}

TEST(Safetensors, UnknownDtypeIsNoErrorUntilItIsRead) {
  const auto tensors = parse(file_of(entry("a", "[9]", "[0,3]", "F3_X"), 3));
  ASSERT_TRUE(tensors.has_value()) << tensors.error().message;
  EXPECT_EQ((*tensors)[0].dtype, DType::none);
  EXPECT_EQ((*tensors)[0].dtype_name, "F3_X");
  expect_refused(file_of(entry("a", "[9]", "[0,3]", "F3_X"), 4), "the last 1 bytes");
}

}  // namespace
}  // namespace tandem
