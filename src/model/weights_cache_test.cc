// Packed weights that come out of a cache are the ones that packing makes, and a cache is never used for
// anything else than what it was made for.
#include <fstream>

#include "base/checksum.h"
#include "checkpoint/packed_cache_layout.h"
#include "kernels/weight_quantizer.h"
#include "model/load_plan_check.h"
#include "model/load_progress.h"
#include "model/model_weights_testing.h"
#include "model/weights_cache.h"

namespace tandem {
namespace {

using namespace weights_testing;
namespace fs = std::filesystem;

class WeightsCacheTest : public ModelWeightsTest {
 protected:
  void SetUp() override {
    ModelWeightsTest::SetUp();
    cache_ = folder_.string() + "_cache";
  }
  void TearDown() override {
    fs::remove_all(cache_);
    ModelWeightsTest::TearDown();
  }

  void make_folder(const char* text, bool blocks = false) {
    tensors_.clear();
    fs::remove_all(folder_);
    fs::remove_all(cache_);
    fs::create_directories(folder_);
    make(text, blocks);
    write();
    std::ofstream(folder_ / "config.json") << text;
  }

  ModelWeights load_with(const std::string& cache, DType dtype = DType::bf16, const HeldParts& held = {},
                         WeightStorage storage = WeightStorage::stored) {
    ThreadPool pool(2);
    LoadOptions options;
    options.compute_dtype = dtype;
    options.storage = storage;
    options.held = held;
    options.show_progress = false;
    options.cache_folder = cache;
    auto weights = load_model_weights(folder_, config_, table_, pool, options);
    if (!weights) ADD_FAILURE() << weights.error().message;
    return weights ? std::move(*weights) : ModelWeights{};
  }
  ModelWeights restored(DType dtype = DType::bf16, const HeldParts& held = {},
                        WeightStorage storage = WeightStorage::stored) {
    ModelWeights weights = load_with(cache_, dtype, held, storage);
    EXPECT_NE(weights.cache, nullptr);
    EXPECT_TRUE(weights.storage.empty());
    return weights;
  }
  ModelWeights packed(DType dtype = DType::bf16, const HeldParts& held = {},
                      WeightStorage storage = WeightStorage::stored) {
    ModelWeights weights = load_with(cache_, dtype, held, storage);
    EXPECT_EQ(weights.cache, nullptr);
    return weights;
  }

  // Everything that the plan names.
  void expect_equal(ModelWeights& a, ModelWeights& b) {
    EXPECT_EQ(a.resident_bytes, b.resident_bytes);
    const LoadPlan one = make_load_plan(config_, a), other = make_load_plan(config_, b);
    size_t bytes = 0;
    for (size_t i = 0; i < one.packs().size(); ++i) {
      const PackedWeight &x = *one.packs()[i].out, &y = *other.packs()[i].out;
      ASSERT_EQ(x.empty(), y.empty());
      if (x.empty()) continue;
      ASSERT_EQ(x.bytes, y.bytes);
      EXPECT_EQ(x.format, y.format);
      EXPECT_EQ(x.arrangement, y.arrangement);
      EXPECT_EQ(x.rows, y.rows);
      EXPECT_EQ(x.cols, y.cols);
      EXPECT_EQ(x.col_phase, y.col_phase);
      EXPECT_EQ(std::memcmp(x.data, y.data, x.bytes), 0) << i;
      bytes += x.bytes;
    }
    EXPECT_GT(bytes, 0u);
    for (size_t i = 0; i < one.copies().size(); ++i) {
      EXPECT_EQ(*one.copies()[i].values, *other.copies()[i].values);
      if (one.copies()[i].bits == nullptr) continue;
      EXPECT_EQ(*one.copies()[i].bits, *other.copies()[i].bits);
    }
    for (size_t i = 0; i < one.tables().size(); ++i) EXPECT_EQ(*one.tables()[i].out, *other.tables()[i].out);
    for (size_t layer = 0; layer < a.layers.size(); ++layer) {
      for (size_t e = 0; e < a.layers[layer].moe.experts.size(); ++e) {
        EXPECT_EQ(a.layers[layer].moe.experts[e].row_begin, b.layers[layer].moe.experts[e].row_begin);
      }
    }
  }
  fs::path only_file() const {
    EXPECT_EQ(std::distance(fs::directory_iterator(cache_), {}), 1);
    return fs::directory_iterator(cache_)->path();
  }

  std::string cache_;
};

TEST_F(WeightsCacheTest, SecondStartHasTheWeightsOfTheFirst) {
  for (const char* family : {kV3, kGranite, kMixtral, kV4, kQwenFp8}) {
    make_folder(family, family == kQwenFp8);
    for (const DType dtype : {DType::bf16, DType::f32}) {
      ModelWeights plain = load_with("", dtype), first = packed(dtype), second = restored(dtype);
      expect_equal(first, plain);
      expect_equal(second, plain);
    }
  }
}

TEST_F(WeightsCacheTest, QuantisedWeightsHaveFilesOfTheirOwn) {
  make_folder(kGranite);
  const WeightStorage storages[] = {WeightStorage::stored, WeightStorage::int8, WeightStorage::fp8,
                                    WeightStorage::mxfp8, WeightStorage::mxfp4};
  for (const WeightStorage storage : storages) packed(DType::bf16, {}, storage);
  EXPECT_EQ(std::distance(fs::directory_iterator(cache_), {}), 5);
  for (const WeightStorage storage : storages) {
    SCOPED_TRACE(weight_storage_name(storage));
    ModelWeights plain = load_with("", DType::bf16, {}, storage), second = restored(DType::bf16, {}, storage);
    expect_equal(second, plain);
    const auto format = quantized_format(storage);
    EXPECT_EQ(second.layers[0].moe.experts[0].gate_up.format, format.value_or(PackFormat::bf16));
  }
}

TEST_F(WeightsCacheTest, RanksHaveFilesOfTheirOwn) {
  make_folder(kV3);
  const auto share = [&](uint32_t rank, uint32_t slice) {
    HeldParts parts{.attention = false, .experts = true, .router = false, .shared_experts = false};
    parts.share.experts = {expert_share(config_.router.num_experts, rank, 2)};
    parts.share.rows = slice_rows(config_.moe_intermediate_size, slice, 2);
    return parts;
  };
  for (uint32_t rank = 0; rank < 4; ++rank) packed(DType::bf16, share(rank / 2, rank % 2));
  EXPECT_EQ(std::distance(fs::directory_iterator(cache_), {}), 4);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const HeldParts parts = share(rank / 2, rank % 2);
    ModelWeights plain = load_with("", DType::bf16, parts), second = restored(DType::bf16, parts);
    expect_equal(second, plain);
  }
}

TEST_F(WeightsCacheTest, ChangedCheckpointIsPackedAgain) {
  make_folder(kGranite);
  packed();
  // A number between the samples of the fingerprint; then nothing but the time.
  tensors_["model.embed_tokens.weight"].values[600] += 1;
  set_bytes(tensors_["model.embed_tokens.weight"]);
  write();
  ModelWeights plain = load_with(""), changed = packed();
  expect_equal(changed, plain);
  ModelWeights second = restored();
  expect_equal(second, plain);
  const fs::path file = folder_ / "model-00001-of-00002.safetensors";
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(2));
  packed();
  restored();
  only_file();
}

// Files that take the place of others while those are being read: what was packed is not theirs.
TEST_F(WeightsCacheTest, CheckpointThatIsReplacedWhileItLoadsIsNotTakenForTheNewOne) {
  make_folder(kGranite);
  const auto replace = [&] {
    tensors_["model.embed_tokens.weight"].values[600] += 1;
    set_bytes(tensors_["model.embed_tokens.weight"]);
    for (const auto& entry : fs::directory_iterator(folder_)) {  // as a download does: under the same names
      if (entry.path().extension() == ".safetensors") fs::remove(entry.path());
    }
    write();
  };
  for (const bool before_opening : {true, false}) {
    auto cache = WeightsCache::create(cache_, folder_.string());
    ASSERT_TRUE(cache.has_value()) << cache.error().message;
    if (before_opening) replace();
    ModelWeights weights;
    ThreadPool pool(2);
    const LoadPlan plan = make_load_plan(config_, weights);
    const Checkpoint checkpoint = *Checkpoint::open(folder_.string());
    const ResolvedTensors tensors = *resolve_tensors(plan, checkpoint, config_, {});
    LoadRun run(plan, tensors, table_, {}, DType::bf16, WeightStorage::stored);
    LoadProgress progress(run.work_bytes(), false);
    if (!before_opening) replace();
    ASSERT_TRUE(run.load(weights, pool, progress).has_value());
    cache->choose_file(run);
    cache->save(run, pool);
    ASSERT_TRUE(fs::exists(cache->path()));
    ModelWeights plain = load_with(""), changed = packed();
    expect_equal(changed, plain);
    fs::remove_all(cache_);
  }
}

TEST_F(WeightsCacheTest, DamagedFileIsMadeAgain) {
  make_folder(kGranite);
  packed();
  const fs::path file = only_file();
  ModelWeights plain = load_with("");
  {
    std::fstream damage(file, std::ios::in | std::ios::out | std::ios::binary);
    damage.seekp(static_cast<std::streamoff>(fs::file_size(file) - kPackedCacheBlock + 100));
    damage.put('\x55');
  }
  ModelWeights again = packed();
  expect_equal(again, plain);
  ModelWeights second = restored();
  expect_equal(second, plain);
  fs::resize_file(file, fs::file_size(file) / 2);
  packed();
  restored();
}

TEST_F(WeightsCacheTest, FolderThatCannotBeWrittenCostsNothing) {
  make_folder(kGranite);
  std::ofstream(cache_) << "a file";
  ModelWeights plain = load_with(""), below = load_with(cache_ + "/below");
  expect_equal(below, plain);

  ThreadPool pool(1);
  LoadOptions options;
  options.show_progress = false;
  options.cache_folder = cache_;
  const auto refused = load_model_weights(folder_, config_, table_, pool, options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message.find("engine.weights_cache: " + cache_ + " is not a folder"),
            std::string::npos)
      << refused.error().message;
}

// What kernels expect of packed bytes is part of the cache's format, and so is how values become codes.
class PackedBytes : public testing::Test {
 protected:
  static constexpr uint32_t kRows = 96, kCols = 136;
  const KernelTable& table_ = *runnable_kernel_tables().back();

  uint64_t hash_of(PackFormat format, PackArrangement arrangement, const CodedRows& rows, uint64_t seed) {
    std::vector<std::byte> out(table_.packed_bytes(format, arrangement, kRows, kCols));
    EXPECT_EQ(table_.pack_coded(format, arrangement, kRows, kCols, 0, 0, kRows, rows, out.data()),
              PackFault::none);
    return checksum64(out, seed);
  }
  static std::vector<float> values() {
    std::vector<float> values(size_t{kRows} * kCols);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(static_cast<int>(i % 509) - 254);
    return values;
  }
};

TEST_F(PackedBytes, ChangeOnlyWithTheCachesVersion) {
  const std::vector<float> plain = values();
  uint64_t hash = 0;
  for (const PackArrangement arrangement : {PackArrangement::plain, PackArrangement::gate_up}) {
    for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
      std::vector<std::byte> out(table_.packed_bytes(format, arrangement, kRows, kCols));
      table_.pack(format, arrangement, kRows, kCols, 0, kRows, DType::f32, plain.data(), out.data());
      hash = checksum64(out, hash);
    }
    std::vector<uint8_t> codes(size_t{kRows} * kCols);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7 % 120 + i % 2 * 128);
    const std::vector<float> fp8_scales(size_t{kRows} * 2, 0.25f);
    const std::vector<uint8_t> fp4_scales(size_t{kRows} * 5, 120);
    for (const PackFormat format : {PackFormat::fp8_block, PackFormat::mxfp4}) {
      const bool fp8 = format == PackFormat::fp8_block;
      const CodedRows rows{reinterpret_cast<const std::byte*>(codes.data()), fp8 ? kCols : kCols / 2,
                           fp8 ? static_cast<const void*>(fp8_scales.data()) : fp4_scales.data(),
                           fp8 ? size_t{2} : size_t{5}};
      hash = hash_of(format, arrangement, rows, hash);
    }
  }
  EXPECT_EQ(hash, 17470045461854115615u)
      << "packed bytes have changed: raise kPackedCacheVersion, then set this number";
  EXPECT_EQ(kPackedCacheVersion, 1u);
}

TEST_F(PackedBytes, OfQuantisedValuesChangeOnlyWithTheCachesVersion) {
  const std::vector<float> plain = values();
  uint64_t hash = 0;
  for (const PackFormat format :
       {PackFormat::int8, PackFormat::fp8_block, PackFormat::mxfp8, PackFormat::mxfp4}) {
    const size_t code_bytes = quantized_code_bytes(format, kCols);
    const size_t scale_bytes = (quantized_scale_bytes(format, kCols) + 3) / 4 * 4;
    std::vector<std::byte> codes(kRows * code_bytes);
    std::vector<float> scales(kRows * scale_bytes / sizeof(float)), back(kCols);
    auto* scale_at = reinterpret_cast<std::byte*>(scales.data());
    for (uint32_t row = 0; row < kRows; ++row) {
      ASSERT_TRUE(quantize_weight_row(table_, format, plain.data() + size_t{row} * kCols, kCols,
                                      codes.data() + row * code_bytes, scale_at + row * scale_bytes,
                                      back.data()));
    }
    const bool floats = format == PackFormat::int8 || format == PackFormat::fp8_block;
    const CodedRows rows{codes.data(), code_bytes, scales.data(), floats ? scale_bytes / 4 : scale_bytes};
    for (const PackArrangement arrangement : {PackArrangement::plain, PackArrangement::gate_up})
      hash = hash_of(format, arrangement, rows, hash);
  }
  EXPECT_EQ(hash, 15521772839423746932u)
      << "packed bytes have changed: raise kPackedCacheVersion, then set this number";
  EXPECT_EQ(kPackedCacheVersion, 1u);
}

}  // namespace
}  // namespace tandem
