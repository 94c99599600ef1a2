// The cases of a model's sizes: what they count against numbers worked out by hand, what they report, and
// what is refused; random weights are finite, of the size they should be, in every format.
#include "bench/shape_cases.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/buffer.h"
#include "bench/kernel_bench.h"
#include "bench/random_pack.h"
#include "bench/shape_testing.h"

namespace tandem::bench {
namespace {

struct Counts {
  std::string name;
  double bytes = 0, flops = 0;  // of one pass
};

// Makes each case, runs it once, and reads what it counts.
std::vector<Counts> run_cases(const std::vector<CaseMaker>& makers) {
  const KernelTable& table = *runnable_kernel_tables().front();
  ThreadPool pool(2);
  auto runner = KernelRunner::create(table, pool);
  EXPECT_TRUE(runner.has_value());
  std::vector<Counts> counts;
  for (const CaseMaker& maker : makers) {
    const auto made = maker.make(table);
    EXPECT_TRUE(made.has_value()) << maker.name << ": " << (made ? "" : made.error().message);
    if (!made) continue;
    if (made->prepare) {
      EXPECT_TRUE(made->prepare(*runner).has_value());
    }
    made->run(*runner);
    counts.push_back({maker.name, made->bytes / made->passes, made->flops / made->passes});
  }
  return counts;
}

TEST(ShapeCasesTest, MoeCountsTheExpertsThatRowsTouch) {
  // An expert in bf16: [2 * 32, 64] and [64, 32], 2 bytes each.
  constexpr double kExpert = (2 * 32 * 64 + 64 * 32) * 2;
  const std::vector<uint32_t> batches = {1, 64};
  const auto counts = run_cases(moe_cases(small_gqa(), {PackFormat::bf16, 2, 0}, batches));
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts[0].name, "moe small bf16 rows 1");
  EXPECT_EQ(counts[0].bytes, 2 * 2 * kExpert);            // 2 layers, 2 experts of one row
  EXPECT_EQ(counts[0].flops, 2.0 * 3 * 64 * 32 * 2 * 2);  // 2 layers, 2 slots
  EXPECT_EQ(counts[1].bytes, 2 * 4 * kExpert);            // 64 rows touch all 4
  EXPECT_EQ(counts[1].flops, 2.0 * 3 * 64 * 32 * 2 * 2 * 64);
}

TEST(ShapeCasesTest, MoeFitsMemoryOrSaysWhatWould) {
  const KernelTable& table = *runnable_kernel_tables().front();
  constexpr uint64_t kExpert = (2 * 32 * 64 + 64 * 32) * 2;
  const auto whole = moe_sizes(table, small_gqa(), {PackFormat::bf16, 0, uint64_t{1} << 30});
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->expert_bytes, kExpert);
  EXPECT_EQ(whole->experts, 4u);
  EXPECT_EQ(whole->layers, 2u);  // all of the model
  const auto cut = moe_sizes(table, small_gqa(), {PackFormat::bf16, 0, 3 * kExpert});
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(cut->experts, 3u);
  EXPECT_EQ(cut->layers, 1u);
  const auto none = moe_sizes(table, small_gqa(), {PackFormat::bf16, 0, kExpert});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(none.error().message.find("the 2 experts of one row of small"), std::string::npos)
      << none.error().message;
  const auto many = moe_sizes(table, small_gqa(), {PackFormat::bf16, 9, 20 * kExpert});
  ASSERT_FALSE(many.has_value());
  EXPECT_EQ(many.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(many.error().message.find("measure.layers: 9"), std::string::npos) << many.error().message;
  EXPECT_NE(many.error().message.find("use 5 or fewer"), std::string::npos) << many.error().message;
}

TEST(ShapeCasesTest, AttentionCountsKeysAndRows) {
  const std::vector<uint32_t> batches = {3}, contexts = {100};
  const auto gqa = run_cases(attention_cases(small_gqa(), batches, contexts, 8));
  ASSERT_EQ(gqa.size(), 2u);
  EXPECT_EQ(gqa[0].name, "attention small decode 3 x 100");
  EXPECT_EQ(gqa[0].bytes, 2.0 * 2 * 16 * 2 * 100 * 3);
  EXPECT_EQ(gqa[0].flops, 4.0 * 64 * 100 * 3);
  EXPECT_EQ(gqa[1].name, "attention small prefill 8 at 100");
  EXPECT_EQ(gqa[1].bytes, 2.0 * 2 * 16 * 2 * 100);
  EXPECT_EQ(gqa[1].flops, 4.0 * 64 * (93 + 94 + 95 + 96 + 97 + 98 + 99 + 100));
  const auto codes = run_cases(attention_cases(small_gqa(), batches, contexts, 0, DType::f8_e4m3));
  EXPECT_EQ(codes[0].bytes, 2.0 * 2 * (16 + 1) * 100 * 3);
  EXPECT_EQ(codes[0].flops, gqa[0].flops);
  const auto mla = run_cases(attention_cases(small_mla("deepseek_v2"), batches, contexts, 0));
  ASSERT_EQ(mla.size(), 1u);
  EXPECT_EQ(mla[0].bytes, 48.0 * 2 * 100 * 3);
  EXPECT_EQ(mla[0].flops, 2.0 * 2 * (32 + 16 + 32) * 100 * 3);
}

TEST(ShapeCasesTest, CompressedAttentionCountsWindowAndEntries) {
  const std::vector<uint32_t> batches = {2}, contexts = {100, 200, 4096};
  const auto counts = run_cases(attention_cases(small_compressed(), batches, contexts, 0));
  ASSERT_EQ(counts.size(), 3u);
  const double keys[] = {100 + 25, 128 + 50, 128 + 512};  // the last one chooses 512 of 1024 entries
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(counts[i].bytes, keys[i] * 32 * 2 * 2) << counts[i].name;
    EXPECT_EQ(counts[i].flops, 4.0 * 8 * 32 * keys[i] * 2) << counts[i].name;
  }
}

TEST(ShapeCasesTest, DenseCasesAreTheMatricesOfALayer) {
  const std::vector<uint32_t> batches = {3};
  const auto counts = run_cases(dense_cases(small_gqa(), PackFormat::mxfp4, batches));
  ASSERT_EQ(counts.size(), 4u);
  EXPECT_EQ(counts[0].name, "small qkv mxfp4 128x64 rows 3");
  EXPECT_EQ(counts[0].bytes, 128.0 * (64 / 2 + 64 / 32));  // codes, and a byte for each 32 columns
  EXPECT_EQ(counts[0].flops, 2.0 * 128 * 64 * 3);
  EXPECT_EQ(counts[1].name, "small output mxfp4 64x64 rows 3");
  EXPECT_EQ(counts[2].name, "small router bf16 4x64 rows 3");
  EXPECT_EQ(counts[3].name, "small head bf16 96x64 rows 3");
  EXPECT_EQ(counts[3].bytes, 96.0 * 64 * 2);
}

TEST(ShapeCasesTest, ReportHasTheCountsAndTheRoof) {
  KernelBenchOptions options;
  options.threads = 2;
  options.rounds = 1;
  options.seconds = 0.0005;
  const std::vector<uint32_t> batches = {1};
  const auto text = run_case_bench(options, moe_cases(small_gqa(), {PackFormat::bf16, 2, 0}, batches), true);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  const auto json = nlohmann::json::parse(*text);
  ASSERT_EQ(json["cases"].size(), 1u);
  const auto& row = json["cases"][0];
  EXPECT_EQ(row["name"], "moe small bf16 rows 1");
  EXPECT_EQ(row["bytes"], 4 * 12288);
  EXPECT_EQ(row["flops"], 2 * 3 * 64 * 32 * 2 * 2);
  EXPECT_GT(row["roof_giga_per_second"].get<double>(), 0);
  EXPECT_GT(row["share"].get<double>(), 0);
  EXPECT_EQ(row["note"], "2 layers of 4 experts, 2.0 touched a layer");
}

TEST(ModelShapesTest, UnknownNamesAreRefusedWithTheNearest) {
  ASSERT_TRUE(find_model_shape("qwen3-30b").has_value());
  const auto near = find_model_shape("qwen3-30");
  ASSERT_FALSE(near.has_value());
  EXPECT_EQ(near.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(near.error().message.find("measure.shape: there is no 'qwen3-30'; use qwen3-30b"),
            std::string::npos)
      << near.error().message;
  const auto none = find_model_shape("");
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message.find("none is given; use one of granite-1b, olmoe"), std::string::npos)
      << none.error().message;
}

TEST(ModelShapesTest, FormatsComeFromPackFormat) {
  for (size_t i = 0; i < kPackFormats; ++i) {
    const auto format = static_cast<PackFormat>(i);
    const auto found = find_weight_format(pack_format_name(format));
    EXPECT_EQ(found.has_value(), format != PackFormat::f32) << pack_format_name(format);
    if (found.has_value()) {
      EXPECT_EQ(*found, format);
    }
  }
  const auto unknown = find_weight_format("fp7");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find(
                "'fp7' is not a format that can be measured; use one of bf16, fp8_block, mxfp4"),
            std::string::npos)
      << unknown.error().message;
}

TEST(ModelShapesTest, ListHasEveryShape) {
  const auto json = nlohmann::json::parse(list_model_shapes(true));
  ASSERT_EQ(json.size(), model_shapes().size());
  for (size_t i = 0; i < json.size(); ++i) {
    EXPECT_EQ(json[i]["name"], std::string(model_shapes()[i].name));
    EXPECT_NE(list_model_shapes(false).find(json[i]["name"].get<std::string>()), std::string::npos);
  }
}

TEST(RandomPackTest, ValuesAreFiniteAndOfTheirSize) {
  std::vector<uint16_t> values(1003);
  fill_random_bf16(values.data(), values.size(), 0.02f, 9);
  double squares = 0;
  for (const uint16_t bits : values) {
    const float value = std::bit_cast<float>(uint32_t{bits} << 16);
    ASSERT_TRUE(std::isfinite(value));
    squares += static_cast<double>(value) * value;
  }
  const double rms = std::sqrt(squares / static_cast<double>(values.size()));
  EXPECT_GT(rms, 0.02 / 3);
  EXPECT_LT(rms, 0.02 * 3);
}

// A product with rows of magnitude 1 gives results of magnitude 1, whatever the format; rows differ.
TEST(RandomPackTest, EveryFormatKeepsTheMagnitudeOfARow) {
  constexpr uint32_t kRows = 200, kCols = 256;
  ThreadPool pool(2);
  for (const KernelTable* table : runnable_kernel_tables()) {
    auto runner = KernelRunner::create(*table, pool);
    ASSERT_TRUE(runner.has_value());
    for (const PackFormat format :
         {PackFormat::bf16, PackFormat::fp8_block, PackFormat::mxfp4, PackFormat::mxfp8}) {
      const size_t bytes = table->packed_bytes(format, PackArrangement::plain, kRows, kCols);
      auto packed = OwnedBuffer::allocate(bytes);
      ASSERT_TRUE(packed.has_value());
      const Status made =
          pack_random(*table, pool, format, PackArrangement::plain, kRows, kCols, 1.0f, 1, packed->data());
      ASSERT_TRUE(made.has_value()) << made.error().message;
      std::vector<uint16_t> in(kCols);
      fill_random_bf16(in.data(), in.size(), 1.0f, 2);
      std::vector<float> out(kRows);
      const PackedWeight weight = {format, PackArrangement::plain, kRows, kCols, packed->data(), bytes};
      MatmulArgs args;
      args.weights = {&weight, 1};
      args.in = {DType::bf16, in.data(), kCols};
      args.out = {DType::f32, out.data(), kRows};
      args.rows = 1;
      runner->run(table->matmul, args);
      double squares = 0;
      for (const float value : out) {
        ASSERT_TRUE(std::isfinite(value)) << table->name << " " << pack_format_name(format);
        squares += static_cast<double>(value) * value;
      }
      const double rms = std::sqrt(squares / kRows);
      EXPECT_GT(rms, 0.2) << table->name << " " << pack_format_name(format);
      EXPECT_LT(rms, 5) << table->name << " " << pack_format_name(format);
      EXPECT_NE(out[0], out[64]);
    }
  }
}

}  // namespace
}  // namespace tandem::bench
