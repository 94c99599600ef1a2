// The executor over a small program built by hand:
//
//   x = table[token]                       residual [rows, 4]
//   twice: x += 3 * experts(round(x))      the scripted port multiplies by its factor
//   logits = x of the wanted rows          vocabulary of 4
// What the tests of the executor share.
#pragma once

#include "program/executor.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "program/operations_basic.h"
#include "program/operations_ffn.h"
#include "program/scripted_port.h"

namespace tandem::executor_testing {

inline constexpr uint32_t kHidden = 4;  // and the vocabulary: the logits are the hidden row itself
inline constexpr float kTable[4][kHidden] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {-1, 0.5f, 0, 2}, {9, 9, -9, 1}};
inline constexpr float kMultiplier = 3.0f;

inline FfnTraits float_traits() {
  FfnTraits traits;
  traits.activation_dtype = DType::f32;
  traits.reply_dtype = DType::f32;
  return traits;
}

inline Result<std::shared_ptr<const Program>> build(const ProgramShape& shape, const FfnTraits& traits) {
  TANDEM_ASSIGN(ProgramBuilder builder, ProgramBuilder::create(shape, traits));
  const Tensor residual = builder.tensor("residual", DType::f32, kHidden);
  const Tensor sent = builder.tensor("sent", DType::f32, kHidden);
  const Tensor reply = builder.tensor("reply", DType::f32, kHidden);
  const Tensor logits = builder.tensor("logits", DType::f32, kHidden, TensorRows::logits);
  builder.append(
      embedding("embedding", {.dtype = DType::f32, .table = kTable, .multiplier = 1, .out = residual}));
  for (LayerIndex layer = 0; layer < 2; ++layer) {
    const std::string name = "layers." + std::to_string(layer) + ".";
    builder.append(convert(name + "convert", residual, sent));
    builder.append(
        submit(name + "submit", {.layer = layer, .in = sent, .ids = {}, .weights = {}, .out = reply}));
    builder.append(collect(name + "collect"));
    builder.append(residual_add(
        name + "add", {.residual = residual, .first = reply, .second = {}, .multiplier = kMultiplier}));
  }
  builder.append(gather_logit_rows("gather", residual, logits));
  return builder.finish(logits);
}

// What the program computes for one token.
inline std::vector<float> expected(int32_t token, float factor) {
  std::vector<float> x(kTable[token], kTable[token] + kHidden);
  for (int layer = 0; layer < 2; ++layer) {
    for (float& value : x) value += kMultiplier * (factor * value);
  }
  return x;
}

// A batch whose rows are tokens; positions do not matter here.
struct Batch {
  explicit Batch(std::vector<int32_t> ids, std::vector<uint32_t> wanted)
      : tokens(std::move(ids)), logit_rows(std::move(wanted)) {
    rows.resize(tokens.size());
    step.token_ids = tokens;
    step.rows = rows;
    step.logit_rows = logit_rows;
  }
  std::vector<int32_t> tokens;
  std::vector<uint32_t> logit_rows;
  std::vector<AttentionRow> rows;
  StepBatch step;
};

class ExecutorTest : public testing::Test {
 protected:
  void use(ScriptedPort::Script script, ProgramShape shape = {8, 8}) {
    script_ = script;
    port_ = std::make_unique<ScriptedPort>(float_traits(), script);
    executor_ = std::make_unique<Executor>(kernels_, *port_);
    Result<std::shared_ptr<const Program>> program = build(shape, float_traits());
    ASSERT_TRUE(program) << program.error().message;
    program_ = *program;
  }
  std::unique_ptr<Lane> lane(LaneId id) { return std::move(*executor_->create_lane(program_, id)); }

  void expect_logits(const Lane& lane, const Batch& batch) {
    ASSERT_EQ(lane.logits().size(), batch.logit_rows.size() * kHidden);
    for (uint32_t i = 0; i < batch.logit_rows.size(); ++i) {
      const std::vector<float> want = expected(batch.tokens[batch.logit_rows[i]], script_.factor);
      const std::span<const float> have = lane.logits(i);
      EXPECT_TRUE(std::ranges::equal(have, want)) << "row " << i << ": " << have[0] << " for " << want[0];
    }
  }

  ThreadPool pool_{1};
  KernelRunner kernels_ = KernelRunner::create(*choose_kernel_table().value(), pool_).value();
  ScriptedPort::Script script_;
  std::unique_ptr<ScriptedPort> port_;
  std::unique_ptr<Executor> executor_;
  std::shared_ptr<const Program> program_;
};

}  // namespace tandem::executor_testing
