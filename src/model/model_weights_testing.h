// For the tests of loading: model folders of a few layers with numbers that differ everywhere.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/matrix_reader.h"
#include "checkpoint/safetensors_writer.h"
#include "model/load_plan.h"
#include "model/model_weights.h"

namespace tandem::weights_testing {

inline constexpr const char* kV3 =
    R"({"model_type":"deepseek_v3","vocab_size":70,"hidden_size":40,"num_hidden_layers":3,
 "num_attention_heads":2,"q_lora_rank":24,"kv_lora_rank":32,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":12,
 "intermediate_size":72,"moe_intermediate_size":20,"n_routed_experts":4,"num_experts_per_tok":2,"n_group":2,"topk_group":1,
 "n_shared_experts":2,"first_k_dense_replace":1,"num_nextn_predict_layers":1})";
inline constexpr const char* kGranite =
    R"({"model_type":"granitemoe","vocab_size":70,"hidden_size":40,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":24,"num_local_experts":3,"num_experts_per_tok":2,
 "tie_word_embeddings":true})";
inline constexpr const char* kMixtral =
    R"({"model_type":"mixtral","vocab_size":70,"hidden_size":40,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":24,"num_local_experts":3,"num_experts_per_tok":2})";
// A layer of each kind: hashed and scored, window only, ratio 4 and ratio 128.
inline constexpr const char* kV4 =
    R"({"model_type":"deepseek_v4","vocab_size":70,"hidden_size":40,"num_hidden_layers":3,
 "num_attention_heads":4,"head_dim":16,"q_lora_rank":24,"o_groups":2,"o_lora_rank":12,"index_n_heads":2,
 "index_head_dim":8,"index_topk":2,"n_routed_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":20,
 "qk_rope_head_dim":8,"num_hash_layers":1,"compress_ratios":[0,4,128,0],"num_nextn_predict_layers":1,
 "n_shared_experts":2})";
// Dimensions that no 128 block divides; gate and up together (640 rows) would divide, and neither half does.
inline constexpr const char* kQwenFp8 =
    R"({"model_type":"qwen3_moe","vocab_size":70,"hidden_size":200,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"head_dim":40,"moe_intermediate_size":320,"num_experts":2,
 "num_experts_per_tok":1,"mlp_only_layers":[1],"intermediate_size":192,
 "quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}})";

inline ModelConfig config_of(const char* text) {
  auto config = parse_model_config(text, "config.json");
  if (!config) ADD_FAILURE() << config.error().message;
  return config.value_or(ModelConfig{});
}

// A number that differs for every tensor and element, and that bfloat16 must round.
inline float value_of(const std::string& tensor, size_t index) {
  const auto seed = static_cast<double>(std::hash<std::string>{}(tensor) % 9973);
  return static_cast<float>(std::sin(seed + static_cast<double>(index) * 0.7301));
}

class ModelWeightsTest : public ::testing::Test {
 protected:
  struct Tensor {
    std::string dtype = "F32";
    std::vector<uint64_t> shape;
    std::vector<float> values;  // what a reader must see
    std::vector<uint8_t> bytes;
  };

  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tandem_weights_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Every tensor that the plan claims. With `blocks`, those that fp8 releases quantise are F8_E4M3 with
  // scales.
  void make(const char* text, bool blocks = false, bool drafts = false) {
    config_ = config_of(text);
    if (drafts) config_.hold_drafts();
    ModelWeights unused;
    const LoadPlan plan = make_load_plan(config_, unused);
    for (const TensorClaim& claim : plan.claims()) {
      Tensor tensor;
      tensor.shape = claim.shape;
      if (claim.released == DType::i64) {
        set_table(tensor, claim.elements());
        tensors_[claim.tensor] = std::move(tensor);
        continue;
      }
      if (claim.fp4_cols != 0) {
        set_fp4_blocks(claim.tensor, tensor);
        tensors_[claim.tensor] = std::move(tensor);
        continue;
      }
      tensor.values.resize(claim.elements());
      for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = value_of(claim.tensor, i);
      if (blocks && claim.block_quantized) {
        quantize(claim.tensor, tensor);
      } else {
        set_bytes(tensor);
      }
      tensors_[claim.tensor] = std::move(tensor);
    }
  }

  // Expert ids; some rows name one twice.
  void set_table(Tensor& tensor, uint64_t elements) const {
    tensor.dtype = "I64";
    tensor.bytes.resize(elements * sizeof(int64_t));
    for (uint64_t i = 0; i < elements; ++i) {
      const auto id = static_cast<int64_t>(i * i / 3 % config_.router.num_experts);
      tensor.values.push_back(static_cast<float>(id));
      std::memcpy(tensor.bytes.data() + i * sizeof id, &id, sizeof id);
    }
  }

  static void set_bytes(Tensor& tensor) {
    tensor.bytes.resize(tensor.values.size() * 4);
    std::memcpy(tensor.bytes.data(), tensor.values.data(), tensor.bytes.size());
  }

  // gpt-oss: codes in blocks of 32 columns, and their scales in the tensor beside. The values are in the
  // order of the codes.
  void set_fp4_blocks(const std::string& name, Tensor& tensor) {
    constexpr float kE2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    Tensor scales;
    scales.dtype = tensor.dtype = "U8";
    scales.shape = {tensor.shape.begin(), tensor.shape.end() - 1};
    size_t blocks = 1;
    for (const uint64_t dim : scales.shape) blocks *= dim;
    const size_t seed = std::hash<std::string>{}(name) % 997;
    for (size_t block = 0; block < blocks; ++block) {
      const auto exponent = static_cast<uint8_t>(120 + (seed + block * 7) % 11);
      scales.bytes.push_back(exponent);
      for (size_t i = 0; i < 16; ++i) {
        const auto byte = static_cast<uint8_t>(seed + block * 31 + i * 77);
        tensor.bytes.push_back(byte);
        for (const int code : {byte & 15, byte >> 4}) {  // the low half is the first column
          const float value = std::ldexp(kE2m1[code & 7], exponent - 127);
          tensor.values.push_back((code & 8) != 0 ? -value : value);
        }
      }
    }
    tensors_[name.substr(0, name.size() - std::string("_blocks").size()) + "_scales"] = std::move(scales);
  }

  void quantize(const std::string& name, Tensor& tensor) {
    const uint64_t rows = tensor.shape[0], cols = tensor.shape[1];
    const uint64_t scale_rows = (rows + 127) / 128, scale_cols = (cols + 127) / 128;
    Tensor scales;
    scales.shape = {scale_rows, scale_cols};
    // Of its own for every block of every tensor: gate's under up's is as wrong as a neighbour's.
    const float base = 0.002f * static_cast<float>(1 + std::hash<std::string>{}(name) % 97);
    for (uint64_t i = 0; i < scale_rows * scale_cols; ++i)
      scales.values.push_back(base + 0.01f * static_cast<float>(i + 1));
    set_bytes(scales);
    tensor.dtype = "F8_E4M3";
    tensor.bytes.resize(rows * cols);
    for (uint64_t i = 0; i < rows * cols; ++i) {
      tensor.bytes[i] = static_cast<uint8_t>(std::hash<std::string>{}(name) % 64 + i * 29 % 60);
      tensor.values[i] =
          f8_e4m3_to_float(tensor.bytes[i]) * scales.values[i / cols / 128 * scale_cols + i % cols / 128];
    }
    tensors_[name + "_scale_inv"] = std::move(scales);
  }

  // In two files without an index.
  void write() {
    SafetensorsWriter writers[2];
    size_t count = 0;
    for (const auto& [name, tensor] : tensors_) {
      writers[count++ % 2].add(name, tensor.dtype, tensor.shape, std::as_bytes(std::span(tensor.bytes)));
    }
    ASSERT_TRUE(writers[0].write(folder_ / "model-00001-of-00002.safetensors", 1));
    ASSERT_TRUE(writers[1].write(folder_ / "model-00002-of-00002.safetensors"));
  }

  Result<ModelWeights> load(DType dtype = DType::f32, HeldParts held = {}, int threads = 1,
                            WeightStorage storage = WeightStorage::stored) {
    ThreadPool pool(threads);
    return load_model_weights(
        folder_, config_, table_, pool,
        {.compute_dtype = dtype, .storage = storage, .held = held, .show_progress = false});
  }

  void expect_load_refused(const std::string& word, ErrorCode code) {
    write();
    const auto weights = load();
    ASSERT_FALSE(weights.has_value()) << word;
    EXPECT_EQ(weights.error().code, code) << weights.error().message;
    EXPECT_NE(weights.error().message.find(word), std::string::npos) << weights.error().message;
  }

  // Rows of tensors one below the other.
  std::vector<float> rows(std::initializer_list<std::string> names) {
    std::vector<float> all;
    for (const std::string& name : names) {
      if (!tensors_.contains(name)) ADD_FAILURE() << name;
      all.insert(all.end(), tensors_[name].values.begin(), tensors_[name].values.end());
    }
    return all;
  }

  void expect_packed(const PackedWeight& weight, PackArrangement arrangement,
                     const std::vector<float>& values, uint32_t cols) {
    ASSERT_FALSE(weight.empty());
    const auto row_count = static_cast<uint32_t>(values.size() / cols);
    ASSERT_EQ(weight.rows, row_count);
    ASSERT_EQ(weight.cols, cols);
    ASSERT_EQ(weight.arrangement, arrangement);
    ASSERT_EQ(weight.bytes, table_.packed_bytes(weight.format, arrangement, row_count, cols));
    std::vector<std::byte> expected(weight.bytes);
    table_.pack(weight.format, arrangement, row_count, cols, 0, row_count, DType::f32, values.data(),
                expected.data());
    EXPECT_EQ(std::memcmp(weight.data, expected.data(), weight.bytes), 0);
  }

  std::filesystem::path folder_;
  std::map<std::string, Tensor> tensors_;
  ModelConfig config_;
  const KernelTable& table_ = *runnable_kernel_tables().back();
};

}  // namespace tandem::weights_testing
