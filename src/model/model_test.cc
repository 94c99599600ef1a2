// What a model says of itself, and what it refuses to build, by name.
#include "model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/kv_groups.h"
#include "model/model_test_support.h"

namespace tandem::test {
namespace {

// Everything that `build` needs, for one fixture.
struct Parts {
  explicit Parts(const char* family, DType dtype = DType::bf16) : loaded(load_fixture(family, dtype)) {
    const auto groups = loaded.model->state_groups();
    for (uint32_t group = 0; group < groups.size(); ++group)
      memory.push_back(allocate_state_group(groups[group], group, 1, caches).value());
  }
  std::unique_ptr<MoeBlock> block(const MoeBlockOptions& options) {
    return MoeBlock::create(moe_shape(loaded.config), moe_layers(loaded.config, *loaded.weights), options,
                            kernels())
        .value();
  }
  void refuses(const FfnTraits& traits, MoeBlock* local, const std::string& part,
               ProgramShape shape = {4, 4}) {
    const auto program = loaded.model->build(shape, traits, caches, local);
    ASSERT_FALSE(program) << part;
    EXPECT_EQ(program.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(program.error().message.find(part), std::string::npos) << program.error().message;
  }

  TestModel loaded;
  std::vector<OwnedBuffer> memory;
  StateCaches caches;
};

FfnTraits traits(bool routes, bool runs_shared) {
  FfnTraits out;
  out.routes = routes;
  out.runs_shared_experts = runs_shared;
  return out;
}

TEST(ModelState, OnePagedGroupWithTheBytesOfItsLayout) {
  const Parts mla("deepseek_v3");
  ASSERT_EQ(mla.loaded.model->state_groups().size(), 1u);
  const StateGroupSpec& latent = mla.loaded.model->state_groups()[0];
  EXPECT_TRUE(latent.keeps_all());
  EXPECT_EQ(latent.tokens_per_block, kTokensPerBlock);
  EXPECT_EQ(latent.layers, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(latent.bytes_per_block, 16u * (32 + 16) * 2);  // latent and rotated key, bf16

  const Parts gqa("qwen3_moe", DType::f32);
  const StateGroupSpec& paged = gqa.loaded.model->state_groups()[0];
  EXPECT_EQ(paged.bytes_per_block, 16u * 2 * 2 * 16 * 4);  // keys and values of 2 heads of 16, float32
  EXPECT_EQ(paged.dtype, DType::f32);
}

// What layers with a window hold goes back when no row can see it any more.
TEST(ModelState, WindowsHaveAGroupOfTheirOwn) {
  const Parts turns("gpt_oss");
  const std::span<const StateGroupSpec> groups = turns.loaded.model->state_groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_TRUE(groups[0].keeps_all());
  EXPECT_EQ(groups[1].retain_tokens, 24u);
  EXPECT_EQ(groups[0].bytes_per_block, groups[1].bytes_per_block);
  std::vector<uint32_t> layers = groups[0].layers;
  layers.insert(layers.end(), groups[1].layers.begin(), groups[1].layers.end());
  std::ranges::sort(layers);
  EXPECT_EQ(layers.size(), turns.loaded.config.num_layers);
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    EXPECT_EQ(layers[layer], layer);
    const bool windowed = turns.loaded.config.attention.window(layer) != 0;
    EXPECT_EQ(kv_group(turns.loaded.config, layer), windowed ? 1u : 0u);
  }

  ModelConfig config = turns.loaded.config;
  std::ranges::fill(config.attention.windows, 40u);
  const auto all_windows = kv_state_groups(config, turns.loaded.model->kv_layout());
  ASSERT_EQ(all_windows.size(), 1u);
  EXPECT_EQ(all_windows[0].retain_tokens, 40u);
  EXPECT_EQ(kv_group(config, 0), 0u);
}

// Codes change logits by what three bits of mantissa round away, and no more.
TEST(ModelState, KeysAndValuesAsCodes) {
  const TestModel loaded = load_fixture("qwen3_moe", DType::bf16);
  const auto coded = Model::create(loaded.config, *loaded.weights, {.cache_dtype = DType::f8_e4m3});
  ASSERT_TRUE(coded) << coded.error().message;
  const StateGroupSpec& group = coded->state_groups()[0];
  EXPECT_EQ(group.dtype, DType::f8_e4m3);
  EXPECT_EQ(group.bytes_per_block, 16u * 2 * 2 * 16 + 2 * 2 * 16);  // codes, and a scale for each vector
  const auto sequences = make_sequences(loaded.config.vocab_size, {40});
  OfflineOptions options;
  options.capacity = 40;
  options.sequences = 1;
  options.tokens_per_sequence = 48;
  const AllLogits narrow = run_steps(*loaded.model, options, chunked(sequences, 40));
  const AllLogits codes = run_steps(*coded, options, chunked(sequences, 40));
  double most = 0, largest = 0;
  for (const auto& [row, logits] : narrow) {
    for (size_t i = 0; i < logits.size(); ++i) {
      most =
          std::max(most, std::fabs(static_cast<double>(logits[i]) - static_cast<double>(codes.at(row)[i])));
      largest = std::max(largest, std::fabs(static_cast<double>(logits[i])));
    }
  }
  EXPECT_GT(most, 0);
  EXPECT_LT(most, largest / 4);
}

TEST(ModelState, CodesAreRefusedByName) {
  const auto refuses = [](TestModel loaded, const std::string& message) {
    const auto model = Model::create(loaded.config, *loaded.weights, {.cache_dtype = DType::f8_e4m3});
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code, ErrorCode::unsupported);
    EXPECT_NE(model.error().message.find(message), std::string::npos) << model.error().message;
  };
  refuses(load_fixture("deepseek_v4", DType::bf16), "engine.kv_cache_dtype: fp8 with deepseek_v4");
  TestModel long_latent = load_fixture("deepseek_v3", DType::bf16);
  long_latent.config.attention.kv_lora_rank = 640;
  refuses(std::move(long_latent), "kv_lora_rank + qk_rope_head_dim 656: at most 640");
  TestModel wide = load_fixture("qwen3_moe", DType::bf16);
  wide.config.attention.head_dim = 1040;
  refuses(std::move(wide), "engine.kv_cache_dtype: fp8 with head_dim 1040: at most 1024");
}

TEST(ModelBuild, TheTraitsDecideWhichOperationsThereAre) {
  Parts parts("deepseek_v3");
  const auto count = [&](const FfnTraits& traits, MoeBlock* local, const std::string& suffix) {
    const auto program = parts.loaded.model->build({4, 4}, traits, parts.caches, local).value();
    size_t found = 0;
    for (const OperationPtr& operation : program->operations())
      found += operation->name().ends_with(suffix) ? 1 : 0;
    return found;
  };
  const auto block = parts.block({});
  EXPECT_EQ(count(traits(true, true), nullptr, ".route"), 0u);
  EXPECT_EQ(count(traits(true, true), nullptr, ".shared"), 0u);
  EXPECT_EQ(count(traits(true, true), nullptr, ".submit"), 2u);  // layer 0 is dense
  EXPECT_EQ(count(traits(false, true), block.get(), ".route"), 2u);
  EXPECT_EQ(count(traits(false, true), block.get(), ".shared"), 0u);
  EXPECT_EQ(count(traits(true, false), block.get(), ".shared"), 2u);
  // Shared experts stand inside the exchange.
  const auto program =
      parts.loaded.model->build({4, 4}, traits(false, false), parts.caches, block.get()).value();
  std::vector<std::string> names;
  for (const OperationPtr& operation : program->operations()) {
    if (operation->name().starts_with("layers.1.moe.")) names.push_back(operation->name().substr(13));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"route", "submit", "shared", "collect", "residual"}));
}

TEST(ModelBuild, RefusesByName) {
  Parts parts("deepseek_v3");
  const auto block = parts.block({});
  parts.refuses(traits(false, true), nullptr, "the gate is on attention");
  parts.refuses(traits(true, false), nullptr, "the shared experts are on attention");
  parts.refuses(traits(true, true), nullptr, "capacity is 0", {0, 0});
  FfnTraits wide = traits(true, true);
  wide.activation_dtype = DType::f32;
  parts.refuses(wide, nullptr, "take f32 activations and attention computes in bf16");
  FfnTraits deterministic = traits(true, false);
  deterministic.reply_dtype = DType::f64;
  deterministic.sum_mode = SumMode::deterministic;
  parts.refuses(deterministic, block.get(), "give bf16 and the experts reply in f64");
  FfnTraits reply = traits(true, true);
  reply.reply_dtype = DType::i8;
  parts.refuses(reply, nullptr, "replies of i8");
  FfnTraits both = traits(false, true);
  both.wants_token_ids = true;
  parts.refuses(both, block.get(), "token ids beside a routing");

  Parts other("mixtral");
  const KvCacheView right = other.caches.view(0, 1);
  KvCacheView wrong = right;
  wrong.tokens_per_block = 32;
  other.caches.set(0, 1, wrong);
  other.refuses(traits(true, true), nullptr, "the cache of layer 1 (kv) has blocks of 32 tokens");
  wrong = right;
  wrong.dtype = DType::f32;
  other.caches.set(0, 1, wrong);
  other.refuses(traits(true, true), nullptr, "the cache of layer 1 (kv)");
  other.caches.set(0, 1, right);
  other.caches.set(0, 2, {});
  other.refuses(traits(true, true), nullptr, "the cache of layer 2 (kv) is absent");
}

TEST(ModelBuild, AModelWithoutSharedExpertsNeedsNoBlockForThem) {
  Parts parts("mixtral");
  EXPECT_TRUE(parts.loaded.model->build({4, 4}, traits(true, false), parts.caches, nullptr));
}

TEST(ModelBuild, HashLayersBehindThePortNeedTokenIds) {
  Parts parts("deepseek_v4");
  parts.refuses(
      traits(true, true), nullptr,
      "the experts of 2 layers follow from token ids, the gate is behind the port, and no token ids "
      "travel");
  FfnTraits with_ids = traits(true, true);
  with_ids.wants_token_ids = true;
  EXPECT_TRUE(parts.loaded.model->build({4, 4}, with_ids, parts.caches, nullptr));
  const auto block = parts.block({});
  EXPECT_TRUE(parts.loaded.model->build({4, 4}, traits(false, true), parts.caches, block.get()));
}

TEST(ModelCreate, NamesAWeightThatIsAbsentOrHasAnotherShape) {
  const auto refused = [](TestModel& loaded, const std::string& part) {
    const auto model = Model::create(loaded.config, *loaded.weights);
    ASSERT_FALSE(model) << part;
    EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message;
  };
  TestModel loaded = load_fixture("deepseek_v3", DType::bf16);
  const ModelWeights& whole = *loaded.weights;
  PackedWeight& q_b = loaded.weights->layers[1].attention.q_b;
  q_b.rows -= 1;
  refused(loaded, "layers.1.q_b is [127, 24] where the configuration needs [128, 24]");
  q_b.rows += 1;
  loaded.weights->layers[2].attention.kv_a_norm.clear();
  refused(loaded, "layers.2.kv_a_norm is 0 values");
  loaded.weights->layers[2].attention.kv_a_norm = whole.layers[1].attention.kv_a_norm;
  loaded.weights->layers[0].attention.value_absorb.pop_back();
  refused(loaded, "layers.0.value_absorb is 3 heads");
  loaded.weights->layers[0].dense.down = {};
  loaded.weights->layers[0].attention.value_absorb = whole.layers[1].attention.value_absorb;
  refused(loaded, "layers.0.mlp.down is absent");
}

TEST(ModelCreate, NamesAWeightOfCompressedAttentionThatDoesNotFit) {
  const auto refused = [](const std::string& part, void (*change)(LayerWeights& layer, ModelWeights& all)) {
    TestModel loaded = load_fixture("deepseek_v4", DType::bf16);
    change(loaded.weights->layers[1], *loaded.weights);
    const auto model = Model::create(loaded.config, *loaded.weights);
    ASSERT_FALSE(model) << part;
    EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message;
  };
  refused("layers.1.compressor is absent", [](auto& layer, auto&) { layer.attention.compressor = {}; });
  refused("layers.1.compressor_position_bias is 255 values where the configuration needs 256",
          [](auto& layer, auto&) { layer.attention.compressor_position_bias.pop_back(); });
  refused("layers.1.index_norm is 0 values", [](auto& layer, auto&) { layer.attention.index_norm.clear(); });
  refused("layers.1.index_query is [255, 16]",
          [](auto& layer, auto&) { --layer.attention.index_query.rows; });
  refused("layers.1.sinks is 3 values", [](auto& layer, auto&) { layer.attention.sinks.pop_back(); });
  refused("layers.1.output_groups is 1 heads",
          [](auto& layer, auto&) { layer.attention.output_groups.pop_back(); });
  refused("layers.1.ffn_connection.mix is 0 values",
          [](auto& layer, auto&) { layer.ffn_connection.mix.clear(); });
  refused("head_connection.base is 3 values", [](auto&, auto& all) { all.head_connection.base.pop_back(); });
}

}  // namespace
}  // namespace tandem::test
