// Checkpoints whose weights are codes with scales: kept as they are stored, with the results of their
// dequantised copies; and every refusal.
#include "kernels/packed_layout.h"
#include "model/model_weights_testing.h"
#include "model/offline_runner.h"

namespace tandem {
namespace {

using namespace weights_testing;

// As kV3, with dimensions that leave broken blocks of 128 and of 32 columns, and an intermediate size whose
// slices begin inside a block.
constexpr const char* kV3Codes =
    R"({"model_type":"deepseek_v3","vocab_size":70,"hidden_size":200,"num_hidden_layers":3,
 "num_attention_heads":2,"q_lora_rank":72,"kv_lora_rank":32,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":12,
 "intermediate_size":150,"moe_intermediate_size":192,"n_routed_experts":4,"num_experts_per_tok":2,"n_group":2,"topk_group":1,
 "n_shared_experts":1,"first_k_dense_replace":1,
 "quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}})";

enum class Release : uint8_t {
  v3,         // F8_E4M3 and weight_scale_inv F32
  v3_powers,  // the same, scales are powers of two
  v4_fp8,     // F8_E4M3 and scale F8_E8M0
  mxfp8,      // the same, one scale for 32 columns of a row
  v4_i8,      // experts fp4 as I8, the rest as v4_fp8
  v4_f4,      // experts fp4 as F4, the rest as v4_fp8
};

class WeightCodesTest : public ModelWeightsTest {
 protected:
  void make_release(Release release) {
    tensors_.clear();
    std::string text = kV3Codes;
    if (release == Release::mxfp8) text.replace(text.find("[128,128]"), 9, "[1,32]");
    make(text.c_str());
    const std::map<std::string, Tensor> plain = tensors_;
    for (const auto& [name, tensor] : plain) {
      // Those that fp8 releases quantise: all matrices but the ends and the router.
      if (tensor.shape.size() != 2 || name == "lm_head.weight" || name.ends_with("embed_tokens.weight") ||
          name.ends_with("mlp.gate.weight")) {
        continue;
      }
      const bool expert = name.find(".experts.") != std::string::npos;
      if (expert && release >= Release::v4_i8) {
        make_fp4(name, release);
      } else {
        make_fp8(name, release);
      }
    }
  }

  static std::string scale_name(const std::string& name, Release release) {
    return release <= Release::v3_powers ? name + "_scale_inv" : name.substr(0, name.rfind('.')) + ".scale";
  }

  void make_fp8(const std::string& name, Release release) {
    Tensor& tensor = tensors_[name];
    const uint64_t rows = tensor.shape[0], cols = tensor.shape[1];
    const uint64_t block_rows = release == Release::mxfp8 ? 1 : 128;
    const uint64_t block_cols = release == Release::mxfp8 ? 32 : 128;
    const uint64_t scale_cols = (cols + block_cols - 1) / block_cols;
    Tensor scales;
    scales.shape = {(rows + block_rows - 1) / block_rows, scale_cols};
    for (uint64_t i = 0; i < scales.shape[0] * scale_cols; ++i) {
      const int power = -14 + static_cast<int>((std::hash<std::string>{}(name) + i) % 4);
      const float mantissa = release == Release::v3 ? 1.0f + 0.37f * static_cast<float>(i % 3) : 1.0f;
      scales.values.push_back(std::ldexp(mantissa, power));
      scales.bytes.push_back(static_cast<uint8_t>(127 + power));
    }
    if (release <= Release::v3_powers) {
      set_bytes(scales);
    } else {
      scales.dtype = "F8_E8M0";
    }
    tensor.dtype = "F8_E4M3";
    tensor.bytes.resize(rows * cols);
    for (uint64_t i = 0; i < rows * cols; ++i) {
      const auto code = static_cast<uint8_t>((std::hash<std::string>{}(name) + i * 2654435761u) >> 7);
      tensor.bytes[i] = (code & 0x7f) == 0x7f ? uint8_t{0} : code;
      tensor.values[i] = f8_e4m3_to_float(tensor.bytes[i]) *
                         scales.values[i / cols / block_rows * scale_cols + i % cols / block_cols];
    }
    tensors_[scale_name(name, release)] = std::move(scales);
  }

  void make_fp4(const std::string& name, Release release) {
    constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    Tensor& tensor = tensors_[name];
    const uint64_t rows = tensor.shape[0], cols = tensor.shape[1];
    Tensor scales;
    scales.dtype = "F8_E8M0";
    scales.shape = {rows, (cols + 31) / 32};
    for (uint64_t i = 0; i < rows * scales.shape[1]; ++i)
      scales.bytes.push_back(static_cast<uint8_t>(120 + (std::hash<std::string>{}(name) + i * 7) % 5));
    tensor.bytes.assign(rows * cols / 2, 0);
    for (uint64_t i = 0; i < rows * cols; ++i) {
      const auto code = static_cast<uint8_t>((std::hash<std::string>{}(name) + i * 2654435761u) >> 7 & 15);
      tensor.bytes[i / 2] |= static_cast<uint8_t>(code << (i % 2 * 4));  // the even column in the low bits
      const float magnitude =
          std::ldexp(kValues[code & 7], scales.bytes[i / cols * scales.shape[1] + i % cols / 32] - 127);
      tensor.values[i] = (code & 8) != 0 ? -magnitude : magnitude;
    }
    tensor.dtype = release == Release::v4_i8 ? "I8" : "F4";
    if (release == Release::v4_i8) tensor.shape[1] /= 2;
    tensors_[scale_name(name, release)] = std::move(scales);
  }

  Result<ModelWeights> load_as(WeightStorage storage, HeldParts held = {}, DType dtype = DType::bf16) {
    ThreadPool pool(1);
    return load_model_weights(
        folder_, config_, *runnable_kernel_tables().front(), pool,
        {.compute_dtype = dtype, .storage = storage, .held = held, .show_progress = false});
  }

  // The same products, bit for bit, of some rows.
  static void expect_same(const PackedWeight& a, const PackedWeight& b) {
    ASSERT_TRUE(a.rows == b.rows && a.cols == b.cols && a.arrangement == b.arrangement);
    constexpr uint32_t kRows = 9;
    ThreadPool pool(1);
    KernelRunner runner = KernelRunner::create(*runnable_kernel_tables().front(), pool).value();
    std::vector<uint16_t> in(size_t{kRows} * a.cols);
    for (size_t i = 0; i < in.size(); ++i) in[i] = to_bf16(value_of("activations", i)).bits;
    std::vector<float> outs[2];
    for (int i = 0; i < 2; ++i) {
      const PackedWeight& weight = i == 0 ? a : b;
      outs[i].resize(size_t{kRows} * a.rows);
      if (a.arrangement == PackArrangement::plain) {
        MatmulArgs args;
        args.weights = {&weight, 1};
        args.in = {DType::bf16, in.data(), a.cols};
        args.out = {DType::f32, outs[i].data(), a.rows};
        args.rows = kRows;
        runner.run(runner.table().matmul, args);
      } else {
        const uint32_t order[kRows] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
        const ExpertGroup group{&weight, nullptr, order, order, kRows};
        GroupedGateUpArgs args;
        args.groups = {&group, 1};
        args.in = {DType::bf16, in.data(), a.cols};
        args.intermediate = {DType::f32, outs[i].data(), a.rows};
        runner.run(runner.table().grouped_gate_up, args);
      }
    }
    EXPECT_EQ(outs[0], outs[1]);
  }

  static std::vector<const PackedWeight*> all_weights(const ModelWeights& weights) {
    std::vector<const PackedWeight*> all;
    const auto add = [&](const PackedWeight& weight) {
      if (!weight.empty()) all.push_back(&weight);
    };
    for (const LayerWeights& layer : weights.layers) {
      for (const PackedWeight* weight :
           {&layer.attention.q_a, &layer.attention.q_b, &layer.attention.kv_a, &layer.attention.output,
            &layer.dense.gate_up, &layer.dense.down, &layer.moe.shared.gate_up, &layer.moe.shared.down}) {
        add(*weight);
      }
      for (const PackedWeight& head : layer.attention.value_absorb) add(head);
      for (const MlpWeights& expert : layer.moe.experts) {
        add(expert.gate_up);
        add(expert.down);
      }
    }
    return all;
  }

  std::vector<float> logits(const ModelWeights& weights, SumMode mode = SumMode::plain) {
    ThreadPool pool(1);
    KernelRunner runner = KernelRunner::create(*runnable_kernel_tables().front(), pool).value();
    auto model = Model::create(config_, weights);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    OfflineOptions options;
    options.sum_mode = mode;
    options.tokens_per_sequence = 16;
    auto offline = OfflineRunner::create(*model, runner, options);
    EXPECT_TRUE(offline.has_value()) << offline.error().message;
    std::vector<float> all;
    // A prompt, then one token at a time: both ways of decoding a weight.
    const std::vector<std::vector<OfflineRow>> steps = {
        {{0, 0, 3}, {0, 1, 60}, {0, 2, 7}, {0, 3, 9}, {0, 4, 11}, {0, 5, 2}, {0, 6, 33}, {0, 7, 34}},
        {{0, 8, 5}},
        {{0, 9, 41}}};
    for (const std::vector<OfflineRow>& rows : steps) {
      const auto out = (*offline)->run(rows);
      EXPECT_TRUE(out.has_value()) << out.error().message;
      all.insert(all.end(), out->begin(), out->end());
    }
    return all;
  }
};

constexpr Release kReleases[] = {Release::v3,    Release::v3_powers, Release::v4_fp8,
                                 Release::mxfp8, Release::v4_i8,     Release::v4_f4};

TEST_F(WeightCodesTest, StayAsTheyAreStored) {
  for (const Release release : kReleases) {
    SCOPED_TRACE(static_cast<int>(release));
    make_release(release);
    write();
    testing::internal::CaptureStderr();
    const auto stored = load_as(WeightStorage::stored);
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(stored.has_value()) << stored.error().message;
    const LayerWeights& layer = stored->layers[1];
    const PackFormat fp8 = release == Release::mxfp8 ? PackFormat::mxfp8 : PackFormat::fp8_block;
    EXPECT_EQ(layer.attention.q_a.format, fp8);
    EXPECT_EQ(layer.attention.value_absorb[0].format, fp8);
    EXPECT_EQ(layer.attention.key_absorb[0].format, PackFormat::bf16);  // transposed
    EXPECT_EQ(layer.moe.shared.gate_up.format, fp8);
    EXPECT_EQ(layer.moe.router.format, PackFormat::bf16);
    EXPECT_EQ(stored->head.format, PackFormat::bf16);
    const PackFormat experts = release >= Release::v4_i8 ? PackFormat::mxfp4 : fp8;
    EXPECT_EQ(layer.moe.experts[3].gate_up.format, experts);
    EXPECT_EQ(layer.moe.experts[3].down.format, experts);
    EXPECT_NE(log.find(std::string(pack_format_name(fp8)) + " "), std::string::npos) << log;
    EXPECT_EQ(log.find("mxfp4 ") != std::string::npos, release >= Release::v4_i8) << log;
    // kv_b of three layers.
    EXPECT_NE(log.find("3 tensors with block scales become bf16 (absorbed"), std::string::npos) << log;

    const auto wide = load_as(WeightStorage::dequantized);
    ASSERT_TRUE(wide.has_value()) << wide.error().message;
    EXPECT_LT(stored->resident_bytes, wide->resident_bytes);
    const std::vector<const PackedWeight*> a = all_weights(*stored), b = all_weights(*wide);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(b[i]->format, PackFormat::bf16);
      if (release != Release::v3) expect_same(*a[i], *b[i]);
    }
    // What a reader sees of the numbers themselves.
    const std::string down = "model.layers.1.mlp.experts.3.down_proj.weight";
    if (release != Release::v3) {
      const auto reference = load_as(WeightStorage::stored, {}, DType::f32);
      ASSERT_TRUE(reference.has_value()) << reference.error().message;
      expect_packed(reference->layers[1].moe.experts[3].down, PackArrangement::plain, rows({down}), 192);
      EXPECT_EQ(reference->layers[1].moe.experts[3].down.format, PackFormat::f32);
    }
  }
}

// Slices begin inside a block of scales: each has the products of its dequantised copy.
TEST_F(WeightCodesTest, SlicesOfExperts) {
  for (const Release release : {Release::v3_powers, Release::mxfp8, Release::v4_i8, Release::v4_f4}) {
    make_release(release);
    write();
    HeldParts held{.attention = false, .experts = true, .router = false, .shared_experts = false};
    bool inside = false;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      held.share.rows = slice_rows(config_.moe_intermediate_size, rank, 4);
      const auto stored = load_as(WeightStorage::stored, held);
      const auto wide = load_as(WeightStorage::dequantized, held);
      ASSERT_TRUE(stored && wide);
      for (size_t layer = 1; layer < 3; ++layer) {
        const MlpWeights& a = stored->layers[layer].moe.experts[2];
        const MlpWeights& b = wide->layers[layer].moe.experts[2];
        ASSERT_TRUE(is_coded(a.down.format) && !is_coded(b.down.format));
        inside = inside || a.down.col_phase != 0;
        expect_same(a.gate_up, b.gate_up);
        expect_same(a.down, b.down);
      }
    }
    EXPECT_EQ(inside, release == Release::v3_powers);  // 192 / 4 = 48, cut at multiples of 32
  }
}

// Powers of two: the logits of the dequantised copy, bit for bit, with plain and with deterministic sums.
// Other scales: a bf16 copy rounds every weight, the packed one does not; both stay close to float32.
TEST_F(WeightCodesTest, Logits) {
  for (const Release release : kReleases) {
    SCOPED_TRACE(static_cast<int>(release));
    make_release(release);
    write();
    const auto stored = load_as(WeightStorage::stored), wide = load_as(WeightStorage::dequantized);
    ASSERT_TRUE(stored && wide);
    for (const SumMode mode : {SumMode::plain, SumMode::deterministic}) {
      const std::vector<float> a = logits(*stored, mode), b = logits(*wide, mode);
      ASSERT_EQ(a.size(), b.size());
      double norm = 0, difference = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_TRUE(std::isfinite(a[i]));
        norm += static_cast<double>(b[i]) * b[i];
        difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
      }
      ASSERT_GT(norm, 0);
      if (release == Release::v3) {
        // Weights rounded to 8 bits: 2^-9 each, and the activations' own roundings that follow.
        EXPECT_LT(std::sqrt(difference / norm), 0x1p-6);
        EXPECT_GT(difference, 0);
      } else {
        EXPECT_EQ(a, b);
      }
    }
  }
}

TEST_F(WeightCodesTest, WhatIsWrongIsNamed) {
  const std::string expert = "model.layers.1.mlp.experts.3.up_proj.weight";
  const std::string module = "model.layers.1.mlp.experts.3.up_proj";
  make_release(Release::v4_i8);
  const std::map<std::string, Tensor> good = tensors_;
  const auto refused = [&](const std::string& word, ErrorCode code) {
    write();
    for (const WeightStorage storage : {WeightStorage::stored, WeightStorage::dequantized}) {
      const auto weights = load_as(storage);
      ASSERT_FALSE(weights.has_value()) << word;
      EXPECT_EQ(weights.error().code, code) << weights.error().message;
      EXPECT_NE(weights.error().message.find(word), std::string::npos) << weights.error().message;
    }
    tensors_ = good;
  };
  tensors_.erase(module + ".scale");
  refused("'" + expert + "' is I8 and has no scale beside it", ErrorCode::data_loss);

  tensors_[module + ".scale"].shape = {192, 6};
  tensors_[module + ".scale"].bytes.resize(192 * 6);
  refused("'" + module + ".scale' has the shape [192, 6]; '" + expert +
              "' [192, 100] in blocks of 1 x 32 needs [192, 7]",
          ErrorCode::data_loss);

  tensors_[module + ".scale"].dtype = "U8";
  refused("'" + module + ".scale' is U8; scales of fp4 weights are read as F8_E8M0", ErrorCode::unsupported);

  tensors_[module + ".scale"].bytes[5 * 7 + 6] = 255;
  refused("'" + expert + "' has the scale nan at [5, 6]", ErrorCode::data_loss);

  tensors_[expert].shape[1] = 200;
  tensors_[expert].bytes.resize(192 * 200);
  refused("'" + expert + "' has the shape [192, 200]; config.json calls for [192, 200], as I8 half",
          ErrorCode::data_loss);

  tensors_[expert + "_scale_inv"] = tensors_[module + ".scale"];
  refused("'" + expert + "' has two tensors of scales beside it", ErrorCode::data_loss);

  tensors_.erase(expert);
  refused("'" + expert + "' [192, 200] is missing", ErrorCode::not_found);

  tensors_["model.layers.1.mlp.experts.3.side_proj.scale"] = tensors_[module + ".scale"];
  refused("'model.layers.1.mlp.experts.3.side_proj.scale' belongs to nothing", ErrorCode::data_loss);

  // Scales beside numbers that have none.
  tensors_["lm_head.scale"] = tensors_[module + ".scale"];
  refused("'lm_head.weight' is F32 and has block scales beside it", ErrorCode::data_loss);

  const std::string fp8 = "model.layers.1.self_attn.q_a_proj";
  tensors_[fp8 + ".scale"].bytes[1] = 255;
  refused("'" + fp8 + ".weight' has the scale nan at [0, 1]", ErrorCode::data_loss);
  tensors_.erase(fp8 + ".scale");
  refused("'" + fp8 + ".weight' is F8_E4M3 and has no weight_scale_inv or scale", ErrorCode::data_loss);
}

// What packing alone refuses, with the setting that would load it.
TEST_F(WeightCodesTest, CodesThatCannotStay) {
  make_release(Release::v3);
  const std::map<std::string, Tensor> good = tensors_;
  const std::string name = "model.layers.1.self_attn.q_a_proj.weight";
  const auto refused = [&](const std::string& word) {
    write();
    const auto weights = load_as(WeightStorage::stored);
    ASSERT_FALSE(weights.has_value());
    EXPECT_EQ(weights.error().code, ErrorCode::data_loss);
    EXPECT_NE(weights.error().message.find("'" + name + "' " + word), std::string::npos)
        << weights.error().message;
    EXPECT_NE(weights.error().message.find("engine.weights: dequantized would do"), std::string::npos);
    EXPECT_TRUE(load_as(WeightStorage::dequantized).has_value());
    tensors_ = good;
  };
  tensors_[name].bytes[70 * 200] = 0xff;
  refused("has a value that is NaN");
  tensors_[name + "_scale_inv"].values[1] = std::ldexp(tensors_[name + "_scale_inv"].values[0], 70);
  set_bytes(tensors_[name + "_scale_inv"]);
  refused("has a row whose scales differ by more than 2^64");
}

// Blocks of another width are dequantised, and said so.
TEST_F(WeightCodesTest, OtherBlocksAreDequantized) {
  std::string text = kQwenFp8;
  make(text.c_str(), true);
  text.replace(text.find("[128,128]"), 9, "[128,256]");
  for (auto& [name, tensor] : tensors_) {
    if (!name.ends_with("_scale_inv")) continue;
    const uint64_t cols = tensors_[name.substr(0, name.size() - 10)].shape[1];
    tensor.shape[1] = (cols + 255) / 256;
    tensor.values.resize(tensor.shape[0] * tensor.shape[1]);
    set_bytes(tensor);
  }
  config_ = config_of(text.c_str());
  write();
  testing::internal::CaptureStderr();
  const auto weights = load_as(WeightStorage::stored);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  EXPECT_EQ(weights->layers[0].moe.experts[1].down.format, PackFormat::bf16);
  EXPECT_NE(log.find("blocks other than of 128 columns"), std::string::npos) << log;
}

}  // namespace
}  // namespace tandem
