// run_step_bench: whole models of small sizes in every family, decode and prefill; what a step reads and
// computes against numbers worked out by hand; the report's keys; the profile; what is refused.
#include "bench/step_bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/random_model.h"
#include "bench/shape_config.h"
#include "bench/shape_testing.h"
#include "bench/step_model.h"
#include "bench/step_profile.h"

namespace tandem {
namespace {

using namespace bench;

StepBenchOptions small_options(const ModelShape& shape) {
  StepBenchOptions options;
  options.shape = &shape;
  options.batches = {3};
  options.contexts = {40};
  options.threads = 2;
  options.runs = 1;
  options.seconds = 0.0001;
  options.read_bytes = size_t{2} << 20;
  return options;
}

nlohmann::json report(const StepBenchOptions& options) {
  const auto text = run_step_bench(options, true);
  EXPECT_TRUE(text.has_value()) << (text ? "" : text.error().message);
  return text ? nlohmann::json::parse(*text) : nlohmann::json();
}

// [64, 32] twice 32 rows of gate and up, and down.
constexpr double kExpert = (2 * 32 * 64 + 64 * 32) * 2;

// The experts of a batch bound by reading, its head by arithmetic.
TEST(StepBenchTest, EveryPartHasItsTighterRoof) {
  StepCost cost;
  cost.experts = 100;
  cost.weight_flops[4] = 40;
  cost.head = 10;
  cost.weight_flops[5] = 80;
  cost.kv = 6;
  cost.kv_flops = 1;
  cost.embedding = 2;
  EXPECT_DOUBLE_EQ(cost.least_seconds(2, 4), 100 / 2.0 + 80 / 4.0 + 6 / 2.0 + 2 / 2.0);
  EXPECT_DOUBLE_EQ(cost.least_seconds(200, 4), 40 / 4.0 + 80 / 4.0 + 1 / 4.0 + 2 / 200.0);
}

TEST(StepBenchTest, DecodeCountsBytesAndFlops) {
  const ModelShape shape = small_gqa();
  const auto json = report(small_options(shape));
  EXPECT_EQ(json["command"], "decode");
  EXPECT_EQ(json["shape"], "small");
  EXPECT_EQ(json["layers"], 2);
  EXPECT_EQ(json["threads"], 2);
  ASSERT_EQ(json["cases"].size(), 1u);
  const auto& row = json["cases"][0];
  EXPECT_EQ(row["batch"], 3);
  EXPECT_EQ(row["context"], 40);
  const auto& bytes = row["bytes"];
  // Two layers of qkv [128, 64] and output [64, 64], norms of 64, 64, 16 and 16; and the last norm.
  EXPECT_EQ(bytes["attention"], 2 * ((128 * 64 + 64 * 64) * 2 + (64 + 64 + 16 + 16) * 4) + 64 * 4);
  EXPECT_EQ(bytes["router"], 2 * 16 * 64 * 2);  // 4 rows, packed as 16
  EXPECT_EQ(bytes["head"], 96 * 64 * 2);
  EXPECT_EQ(bytes["dense"], 0);
  EXPECT_EQ(bytes["shared_experts"], 0);
  EXPECT_EQ(bytes["embedding"], 3 * 64 * 2);
  EXPECT_EQ(bytes["kv"], 2 * (2 * 2 * 16 * 2) * 40 * 3);
  const double experts = row["experts_read_per_layer"].get<double>();
  EXPECT_GE(experts, 2);
  EXPECT_LE(experts, 4);
  EXPECT_NEAR(bytes["experts"].get<double>(), experts * 2 * kExpert, 1e-3);
  double total = 0;
  for (const auto& [part, value] : bytes.items()) total += part == "total" ? 0 : value.get<double>();
  EXPECT_NEAR(bytes["total"].get<double>(), total, 1e-3);
  const double flops = 2.0 * (128 * 64 + 64 * 64) * 2 * 3 + 2.0 * 4 * 64 * 2 * 3 + 2.0 * 96 * 64 * 3 +
                       4.0 * 64 * 40 * 3 * 2 + 6.0 * 64 * 32 * 3 * 2 * 2;
  EXPECT_NEAR(row["flops"].get<double>(), flops, 1e-3);
  for (const char* key : {"milliseconds", "tokens_per_second", "gigabytes_per_second", "read_roof",
                          "read_share", "gigaflops", "flop_roof", "flop_share", "roof_share"})
    EXPECT_GT(row[key].get<double>(), 0) << key;
  EXPECT_FALSE(row.contains("profile"));
}

TEST(StepBenchTest, PrefillCountsItsRowsAndOneRowOfTheHead) {
  const ModelShape shape = small_gqa();
  StepBenchOptions options = small_options(shape);
  options.kind = StepKind::prefill;
  options.batches = {8};
  options.contexts = {0, 20};
  const auto json = report(options);
  EXPECT_EQ(json["command"], "prefill");
  ASSERT_EQ(json["cases"].size(), 2u);
  const double weights =
      2.0 * (128 * 64 + 64 * 64) * 2 * 8 + 2.0 * 4 * 64 * 2 * 8 + 2.0 * 96 * 64 + 6.0 * 64 * 32 * 8 * 2 * 2;
  EXPECT_NEAR(json["cases"][0]["flops"].get<double>(), weights + 4.0 * 64 * 36 * 2,
              1e-3);  // 1 + ... + 8 keys
  EXPECT_EQ(json["cases"][0]["bytes"]["kv"], 2 * (2 * 2 * 16 * 2) * 8);
  EXPECT_NEAR(json["cases"][1]["flops"].get<double>(), weights + 4.0 * 64 * (36 + 8 * 20) * 2, 1e-3);
  EXPECT_EQ(json["cases"][1]["bytes"]["kv"], 2 * (2 * 2 * 16 * 2) * 28);
}

TEST(StepBenchTest, EveryFamilyAndFormatRuns) {
  for (const ModelShape& shape :
       {small_gqa("qwen3_moe"), small_gqa("granitemoe"), small_gqa("olmoe"), small_gqa("gpt_oss"),
        small_mla("deepseek_v2"), small_mla("deepseek_v3"), small_compressed()}) {
    for (const PackFormat format :
         {PackFormat::bf16, PackFormat::fp8_block, PackFormat::mxfp4, PackFormat::mxfp8, PackFormat::int8}) {
      for (const StepKind kind : {StepKind::decode, StepKind::prefill}) {
        StepBenchOptions options = small_options(shape);
        options.kind = kind;
        options.contexts = {300};  // beyond V4's window, with entries of both ratios
        options.weights = options.experts = format;
        const auto text = run_step_bench(options, false);
        ASSERT_TRUE(text.has_value()) << shape.model_type << ": " << text.error().message;
        EXPECT_NE(text->find(pack_format_name(format)), std::string::npos) << *text;
      }
    }
  }
}

TEST(StepBenchTest, ProfileCoversTheStepByKind) {
  const ModelShape shape = small_mla("deepseek_v2");
  StepBenchOptions options = small_options(shape);
  options.profile = true;
  const auto json = report(options);
  const auto& lines = json["cases"][0]["profile"];
  double percent = 0;
  std::map<std::string, double> calls;
  for (const auto& line : lines) {
    const std::string operation = line["operation"];
    if (!operation.starts_with("(")) percent += line["percent"].get<double>();
    calls[operation] = line["calls"].get<double>();
  }
  EXPECT_NEAR(percent, 100, 0.01);
  for (const char* kind : {"attention", "projections", "absorbed projections", "norms", "rope", "cache write",
                           "router", "top-k", "experts", "shared experts", "combine", "dense MLP", "residual",
                           "head", "embedding", "sampling", "between operations", "(waiting for threads)"})
    EXPECT_TRUE(calls.contains(kind)) << kind << " in " << lines.dump();
  EXPECT_FALSE(calls.contains("other")) << lines.dump();
  // One MoE layer of two: its experts' two products, one router.
  EXPECT_EQ(calls["experts"], 2);
  EXPECT_EQ(calls["router"], 1);
  EXPECT_EQ(calls["attention"], 2);
}

TEST(StepBenchTest, NoOperationOfAnyFamilyIsUnnamed) {
  for (const ModelShape& shape : {small_gqa("granitemoe"), small_compressed()}) {
    StepBenchOptions options = small_options(shape);
    options.profile = true;
    const auto json = report(options);
    for (const auto& line : json["cases"][0]["profile"])
      EXPECT_NE(line["operation"], "other") << shape.model_type << json["cases"][0]["profile"].dump();
  }
}

// Every sequence reads its own experts: with enough rows all of a layer's are touched, and two steps differ.
TEST(StepModelTest, RowsRouteForThemselves) {
  const ModelShape shape = small_mla("deepseek_v2");
  const auto config = shape_config(shape, 2);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  const KernelTable& table = *runnable_kernel_tables().front();
  ThreadPool pool(2);
  auto runner = KernelRunner::create(table, pool);
  ASSERT_TRUE(runner.has_value());
  const auto model = make_random_model(*config, table, pool, {});
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_EQ((*model)->expert_bytes, static_cast<uint64_t>(kExpert));
  StepPlan plan;
  plan.sequences.assign(64, {10, 1});
  const auto step = StepModel::create(*config, **model, *runner, plan, 7);
  ASSERT_TRUE(step.has_value()) << step.error().message;
  std::vector<uint64_t> read;
  for (int i = 0; i < 4; ++i) {
    const auto cost = (*step)->run();
    ASSERT_TRUE(cost.has_value()) << cost.error().message;
    read.push_back((*step)->experts_read());
    EXPECT_EQ(cost->experts, static_cast<double>(read.back()) * kExpert);
    EXPECT_GT(read.back(), 8u) << "64 rows with 2 of 16 experts each";
    EXPECT_LE(read.back(), 16u);
  }
}

std::string refusal(const StepBenchOptions& options, ErrorCode code) {
  const auto text = run_step_bench(options, false);
  EXPECT_FALSE(text.has_value());
  if (text) return {};
  EXPECT_EQ(text.error().code, code) << text.error().message;
  return text.error().message;
}

TEST(StepBenchTest, RefusesByName) {
  EXPECT_NE(refusal(small_options(small_gqa("")), ErrorCode::unsupported)
                .find("small as a whole model: the engine does not implement the family of Small"),
            std::string::npos);
  const ModelShape shape = small_gqa();
  StepBenchOptions options = small_options(shape);
  options.layers = 3;
  EXPECT_NE(
      refusal(options, ErrorCode::invalid_argument).find("measure.layers: 3: small has 2 layers; use 1..2"),
      std::string::npos);
  options = small_options(shape);
  options.batches = {0};
  EXPECT_NE(refusal(options, ErrorCode::invalid_argument).find("measure.batch: 0: a decode step has 1..4096"),
            std::string::npos);
  options = small_options(shape);
  options.contexts = {0};
  EXPECT_NE(refusal(options, ErrorCode::invalid_argument).find("measure.context: 0: use 1.."),
            std::string::npos);
  options = small_options(shape);
  options.runs = 0;
  EXPECT_NE(refusal(options, ErrorCode::invalid_argument).find("runs 0"), std::string::npos);
}

TEST(RandomModelTest, WeightsThatDoNotFitAreRefused) {
  const auto config = shape_config(small_gqa(), 2);
  ASSERT_TRUE(config.has_value());
  const KernelTable& table = *runnable_kernel_tables().front();
  ThreadPool pool(1);
  const uint64_t need = random_model_bytes(*config, table, {});
  const auto model = make_random_model(*config, table, pool, {.most_bytes = need - 1});
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(model.error().message.find("the weights of 2 layers take"), std::string::npos)
      << model.error().message;
  EXPECT_TRUE(make_random_model(*config, table, pool, {.most_bytes = need}).has_value());
}

TEST(ShapeConfigTest, ReleasedSizesAreReadAsTheyAre) {
  for (const ModelShape& shape : model_shapes()) {
    if (shape.model_type.empty()) continue;
    const auto config = shape_config(shape, shape.layers);
    ASSERT_TRUE(config.has_value()) << shape.name << ": " << config.error().message;
    EXPECT_EQ(config->hidden_size, shape.hidden) << shape.name;
    EXPECT_EQ(config->moe_intermediate_size, shape.intermediate) << shape.name;
    EXPECT_EQ(config->router.num_experts, shape.experts) << shape.name;
    EXPECT_EQ(config->router.top_k, shape.top_k) << shape.name;
    EXPECT_EQ(config->shared_intermediate_size, shape.shared) << shape.name;
    const auto dense = std::ranges::count(config->layer_ffn, FfnKind::dense);
    EXPECT_EQ(dense, shape.dense_layers) << shape.name;
  }
  const auto v4 = shape_config(**find_model_shape("v4-flash"), 43);
  ASSERT_TRUE(v4.has_value());
  EXPECT_EQ(v4->num_hash_layers, 3u);
  EXPECT_EQ(std::ranges::count(v4->compressed.ratios, 0u), 2);
  EXPECT_EQ(std::ranges::count(v4->compressed.ratios, 4u), 21);
  EXPECT_EQ(std::ranges::count(v4->compressed.ratios, 128u), 20);
}

}  // namespace
}  // namespace tandem
