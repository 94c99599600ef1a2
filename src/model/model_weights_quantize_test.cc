// Weights quantised at load: which tensors, with which loss, the same in every slice; and every refusal.
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/model_weights_testing.h"
#include "model/offline_runner.h"
#include "model/weight_report.h"

namespace tandem {
namespace {

using namespace weights_testing;

// Dimensions that leave broken steps and blocks, and slices that begin inside blocks of 128.
constexpr const char* kOdd =
    R"({"model_type":"deepseek_v3","vocab_size":70,"hidden_size":150,"num_hidden_layers":3,
 "num_attention_heads":2,"q_lora_rank":70,"kv_lora_rank":34,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":13,
 "intermediate_size":150,"moe_intermediate_size":200,"n_routed_experts":4,"num_experts_per_tok":2,"n_group":2,"topk_group":1,
 "n_shared_experts":1,"first_k_dense_replace":1})";

constexpr WeightStorage kStorages[] = {WeightStorage::int8, WeightStorage::fp8, WeightStorage::mxfp8,
                                       WeightStorage::mxfp4};

class WeightQuantizeTest : public ModelWeightsTest {
 protected:
  Result<ModelWeights> load_as(WeightStorage storage, HeldParts held = {}, DType dtype = DType::bf16) {
    return load(dtype, std::move(held), 1, storage);
  }

  // The weights that a packed matrix stands for, one column at a time.
  std::vector<float> values_of(const PackedWeight& weight) {
    ThreadPool pool(1);
    KernelRunner runner = KernelRunner::create(table_, pool).value();
    const bool int8 = weight.format == PackFormat::int8;
    std::vector<uint16_t> ones(size_t{weight.cols} * weight.cols);
    std::vector<int8_t> int8_ones(ones.size());
    for (uint32_t c = 0; c < weight.cols; ++c) {
      ones[size_t{c} * weight.cols + c] = 0x3f80;
      int8_ones[size_t{c} * weight.cols + c] = 1;
    }
    const std::vector<float> scales(weight.cols, 1.0f);
    std::vector<float> out(size_t{weight.cols} * weight.rows);  // [cols, rows]
    MatmulArgs args;
    args.weights = {&weight, 1};
    args.in = {DType::bf16, ones.data(), weight.cols};
    if (int8) args.in = {DType::i8, int8_ones.data(), weight.cols, ActivationFormat::int8, scales.data(), 1};
    args.out = {DType::f32, out.data(), weight.rows};
    args.rows = weight.cols;
    runner.run(runner.table().matmul, args);
    return out;
  }

  std::vector<float> logits(const ModelWeights& weights, SumMode mode = SumMode::plain) {
    ThreadPool pool(1);
    KernelRunner runner = KernelRunner::create(table_, pool).value();
    auto model = Model::create(config_, weights);
    EXPECT_TRUE(model.has_value()) << model.error().message;
    OfflineOptions options;
    options.sum_mode = mode;
    options.tokens_per_sequence = 16;
    auto offline = OfflineRunner::create(*model, runner, options);
    EXPECT_TRUE(offline.has_value()) << offline.error().message;
    std::vector<float> all;
    const std::vector<std::vector<OfflineRow>> steps = {
        {{0, 0, 3}, {0, 1, 60}, {0, 2, 7}, {0, 3, 9}, {0, 4, 11}, {0, 5, 2}, {0, 6, 33}},
        {{0, 7, 5}},
        {{0, 8, 41}}};
    for (const std::vector<OfflineRow>& rows : steps) {
      const auto out = (*offline)->run(rows);
      EXPECT_TRUE(out.has_value()) << out.error().message;
      all.insert(all.end(), out->begin(), out->end());
    }
    return all;
  }

  void expect_refused(WeightStorage storage, const std::string& word, ErrorCode code,
                      DType dtype = DType::bf16) {
    write();
    const auto weights = load_as(storage, {}, dtype);
    ASSERT_FALSE(weights.has_value()) << word;
    EXPECT_EQ(weights.error().code, code) << weights.error().message;
    EXPECT_NE(weights.error().message.find(word), std::string::npos) << weights.error().message;
  }
};

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

TEST_F(WeightQuantizeTest, ExpertsProjectionsAndDenseLayersAre) {
  make(kOdd);
  write();
  const auto plain = load_as(WeightStorage::stored);
  ASSERT_TRUE(plain.has_value()) << plain.error().message;
  EXPECT_TRUE(plain->quantized.empty());
  const std::vector<float> expected = logits(*plain);
  for (const WeightStorage storage : kStorages) {
    SCOPED_TRACE(weight_storage_name(storage));
    testing::internal::CaptureStderr();
    const auto weights = load_as(storage);
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(weights.has_value()) << weights.error().message;
    const PackFormat format = quantized_format(storage).value();
    const LayerWeights& layer = weights->layers[1];
    for (const PackedWeight* weight :
         {&layer.attention.q_a, &layer.attention.q_b, &layer.attention.kv_a, &layer.attention.output,
          &layer.moe.shared.gate_up, &layer.moe.shared.down, &layer.moe.experts[2].gate_up,
          &layer.moe.experts[2].down, &weights->layers[0].dense.gate_up, &weights->layers[0].dense.down}) {
      EXPECT_EQ(weight->format, format);
    }
    for (const PackedWeight* weight :
         {&layer.attention.key_absorb[0], &layer.attention.value_absorb[0], &layer.moe.router}) {
      EXPECT_EQ(weight->format, PackFormat::bf16);
    }
    // Eight bits at least.
    const PackFormat head = storage == WeightStorage::mxfp4 ? PackFormat::mxfp8 : format;
    EXPECT_EQ(weights->head.format, head);
    EXPECT_LT(weights->resident_bytes, plain->resident_bytes);
    // Attention without kv_b 3 x 4, dense 3, experts and shared 2 x 5 x 3, the head.
    EXPECT_EQ(weights->quantized.size(), 12u + 3 + 30 + 1);
    const std::string formats =
        storage == WeightStorage::mxfp4 ? "mxfp8 and mxfp4" : std::string(pack_format_name(format));
    EXPECT_NE(log.find("46 tensors quantised to " + formats + " while"), std::string::npos) << log;
    // Uniform numbers: half a step of 127 steps, of 4 and of 2 bits of mantissa.
    const double most = format == PackFormat::int8 ? 0.005 : format == PackFormat::mxfp4 ? 0.14 : 0.03;
    for (const QuantizedTensor& each : weights->quantized) {
      EXPECT_GT(each.error.relative_rms(), most / 10) << each.tensor;
      EXPECT_LT(each.error.relative_rms(), most) << each.tensor;
      EXPECT_EQ(each.error.elements, tensors_[each.tensor].values.size()) << each.tensor;
      EXPECT_EQ(each.format, each.tensor == "lm_head.weight" ? head : format);
    }
    // Random weights make a step of any size of this: what it may be is the next test's.
    EXPECT_NE(logits(*weights), expected);
  }
}

// Codes with powers of two: the logits of a bf16 model that has the rounded weights, bit for bit.
TEST_F(WeightQuantizeTest, LogitsAreThoseOfTheRoundedModel) {
  for (const WeightStorage storage : {WeightStorage::fp8, WeightStorage::mxfp8, WeightStorage::mxfp4}) {
    SCOPED_TRACE(weight_storage_name(storage));
    tensors_.clear();
    make(kOdd);
    write();
    const auto weights = load_as(storage);
    ASSERT_TRUE(weights.has_value()) << weights.error().message;
    for (const QuantizedTensor& each : weights->quantized) {
      Tensor& tensor = tensors_[each.tensor];
      const auto cols = static_cast<uint32_t>(tensor.shape[1]);
      std::vector<std::byte> codes(quantized_code_bytes(each.format, cols)),
          scales(quantized_scale_bytes(each.format, cols));
      std::vector<float> back(cols);
      for (uint64_t row = 0; row < tensor.shape[0]; ++row) {
        float* values = tensor.values.data() + row * cols;
        ASSERT_TRUE(
            quantize_weight_row(table_, each.format, values, cols, codes.data(), scales.data(), back.data()));
        std::copy(back.begin(), back.end(), values);
      }
      set_bytes(tensor);
    }
    write();
    const auto rounded = load_as(WeightStorage::stored);
    ASSERT_TRUE(rounded.has_value()) << rounded.error().message;
    for (const SumMode mode : {SumMode::plain, SumMode::deterministic})
      EXPECT_EQ(logits(*weights, mode), logits(*rounded, mode));
  }
}

// What the log and the report say is what products see.
TEST_F(WeightQuantizeTest, ErrorsAreThoseOfThePackedWeights) {
  make(kOdd);
  write();
  const std::string name = "model.layers.1.mlp.experts.3.down_proj.weight";
  for (const WeightStorage storage : kStorages) {
    const auto weights = load_as(storage);
    ASSERT_TRUE(weights.has_value()) << weights.error().message;
    const PackedWeight& down = weights->layers[1].moe.experts[3].down;
    const std::vector<float> packed = values_of(down), &stored = tensors_[name].values;
    double error = 0, squared = 0, largest = 0;
    for (uint32_t r = 0; r < down.rows; ++r) {
      for (uint32_t c = 0; c < down.cols; ++c) {
        const double value = stored[size_t{r} * down.cols + c];
        const double lost = std::fabs(packed[size_t{c} * down.rows + r] - value);
        error += lost * lost;
        squared += value * value;
        largest = std::max(largest, lost);
      }
    }
    for (const QuantizedTensor& each : weights->quantized) {
      if (each.tensor != name) continue;
      EXPECT_NEAR(each.error.relative_rms(), std::sqrt(error / squared), 1e-6);
      EXPECT_NEAR(each.error.largest, largest, 1e-6);
    }
    const std::string file = folder_ / "report.json";
    ASSERT_TRUE(write_weight_report(file, "m", storage, *weights).has_value());
    const auto report = nlohmann::json::parse(std::ifstream(file));
    EXPECT_EQ(report["weights"], weight_storage_name(storage));
    EXPECT_EQ(report["tensors"].size(), weights->quantized.size());
    bool found = false;
    for (const auto& each : report["tensors"]) {
      if (each["name"] != name) continue;
      found = true;
      EXPECT_EQ(each["elements"], stored.size());
      EXPECT_NEAR(each["relative_rms_error"], std::sqrt(error / squared), 1e-6);
      EXPECT_NEAR(each["largest_error"], largest, 1e-6);
    }
    EXPECT_TRUE(found);
    EXPECT_GT(report["total"]["relative_rms_error"], 0.0);
  }
  const auto weights = load_as(WeightStorage::int8);
  const Status refused =
      write_weight_report(folder_ / "no" / "report.json", "m", WeightStorage::int8, *weights);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("engine.weights_report: cannot write"), std::string::npos);
}

// A slice has the codes and scales of the whole, also where it begins inside a block.
TEST_F(WeightQuantizeTest, SlicesHaveTheNumbersOfTheWhole) {
  make(kOdd);
  write();
  for (const WeightStorage storage : kStorages) {
    const auto whole = load_as(storage);
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    const PackedWeight& down = whole->layers[2].moe.experts[1].down;
    const std::vector<float> all = values_of(down);
    std::vector<float> joined;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      HeldParts held{.attention = false, .experts = true, .router = false, .shared_experts = false};
      held.share.rows = slice_rows(config_.moe_intermediate_size, rank, 3);
      const auto slice = load_as(storage, held);
      ASSERT_TRUE(slice.has_value()) << slice.error().message;
      const std::vector<float> part = values_of(slice->layers[2].moe.experts[1].down);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, all) << weight_storage_name(storage);
  }
}

// Stacks of experts (granite), and every other family.
TEST_F(WeightQuantizeTest, EveryFamilyIs) {
  for (const char* text : {kGranite, kMixtral, kV4}) {
    tensors_.clear();
    make(text);
    write();
    const auto plain = load_as(WeightStorage::stored);
    ASSERT_TRUE(plain.has_value()) << plain.error().message;
    for (const WeightStorage storage : kStorages) {
      const auto weights = load_as(storage);
      ASSERT_TRUE(weights.has_value()) << weights.error().message;
      EXPECT_EQ(weights->layers[1].moe.experts[1].down.format, quantized_format(storage).value());
      EXPECT_EQ(weights->layers[1].moe.router.format, PackFormat::bf16);
      EXPECT_TRUE(std::isfinite(relative_difference(logits(*weights), logits(*plain))));
    }
  }
}

TEST_F(WeightQuantizeTest, WhatCannotBeIsNamed) {
  make(kOdd);
  const std::map<std::string, Tensor> good = tensors_;
  expect_refused(WeightStorage::int8, "int8 weights with compute dtype f32: bf16 would do",
                 ErrorCode::unsupported, DType::f32);
  const std::string name = "model.layers.1.mlp.experts.3.up_proj.weight";
  for (const WeightStorage storage : kStorages) {
    tensors_[name].values[150 * 7 + 3] = storage == WeightStorage::int8 ? NAN : INFINITY;
    set_bytes(tensors_[name]);
    expect_refused(storage,
                   "'" + name + "' has a value that is NaN or infinite in row 7 and cannot be quantised to",
                   ErrorCode::data_loss);
    tensors_ = good;
  }
  // Stored in codes already: those of the wanted format stay as they are.
  tensors_.clear();
  make(kQwenFp8, true);
  for (const WeightStorage storage : {WeightStorage::int8, WeightStorage::mxfp8, WeightStorage::mxfp4})
    expect_refused(storage, "is stored as fp8 codes and cannot be quantised to", ErrorCode::unsupported);
  const auto weights = load_as(WeightStorage::fp8);
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  EXPECT_EQ(weights->layers[0].moe.experts[1].down.format, PackFormat::fp8_block);
  // But for the head, which fp8 releases leave in bf16.
  ASSERT_EQ(weights->quantized.size(), 1u);
  EXPECT_EQ(weights->quantized.front().tensor, "lm_head.weight");

  tensors_.clear();
  std::string small = kMixtral;
  small.replace(small.find("\"intermediate_size\":24"), 22, "\"intermediate_size\":12");
  make(small.c_str());
  expect_refused(WeightStorage::int8, "experts of 12 intermediate rows are too small for int8 weights",
                 ErrorCode::unsupported);
}

}  // namespace
}  // namespace tandem
