// State groups as a program sees them: the views that it is built with and the rows that a step has of each.
#include "program/state_caches.h"

#include <gtest/gtest.h>

#include <string>

#include "program/executor.h"
#include "program/operations_basic.h"
#include "program/scripted_port.h"

namespace tandem {
namespace {

void expect_refused(const Status& status, const std::string& part) {
  ASSERT_FALSE(status) << part;
  EXPECT_EQ(status.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
}

TEST(StateCaches, HoldAViewOfEachGroupInItsLayers) {
  const std::vector<StateGroupSpec> groups = {
      {.name = "window", .layers = {0, 1, 2}, .tokens_per_block = 16, .bytes_per_block = 64},
      {.name = "entries",
       .layers = {2},
       .tokens_per_block = 128,
       .bytes_per_block = 32,
       .dtype = DType::f32}};
  StateCaches caches;
  const OwnedBuffer window = allocate_state_group(groups[0], 0, 5, caches).value();
  expect_refused(caches.check(groups), "the cache of layer 2 (entries) is absent");
  const OwnedBuffer entries = allocate_state_group(groups[1], 1, 3, caches).value();
  EXPECT_TRUE(caches.check(groups));
  EXPECT_EQ(window.size(), 3u * 5 * 64);
  EXPECT_EQ(caches.view(0, 2).base - caches.view(0, 1).base, 64);  // a block in all layers lies together
  EXPECT_EQ(caches.view(0, 1).block_bytes, 3u * 64);
  EXPECT_EQ(caches.view(1, 1).base, nullptr);  // not one of its layers
  EXPECT_EQ(caches.view(2, 0).base, nullptr);  // no such group
  KvCacheView small = caches.view(1, 2);
  small.block_bytes = 31;
  caches.set(1, 2, small);
  expect_refused(
      caches.check(groups),
      "the cache of layer 2 (entries) has blocks of 128 tokens and 31 bytes of f32: the model needs "
      "128 tokens, 32 bytes, f32");
}

TEST(StateGroups, AProgramOfSeveralWantsRowsOfEach) {
  static constexpr float kTable[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  ProgramBuilder builder = ProgramBuilder::create({4, 2}, {}).value();
  builder.use_state_groups(2);
  const Tensor residual = builder.tensor("residual", DType::f32, 4);
  const Tensor logits = builder.tensor("logits", DType::f32, 4, TensorRows::logits);
  builder.append(
      embedding("embedding", {.dtype = DType::f32, .table = kTable, .multiplier = 1, .out = residual}));
  builder.append(gather_logit_rows("gather", residual, logits));
  ThreadPool pool(1);
  KernelRunner kernels = KernelRunner::create(*choose_kernel_table().value(), pool).value();
  ScriptedPort port({}, {});
  Executor executor(kernels, port);
  const auto lane = executor.create_lane(builder.finish(logits).value(), 0).value();

  const std::vector<int32_t> tokens = {0, 1};
  const std::vector<AttentionRow> first(2), second(2);
  const std::vector<uint32_t> wanted = {0};
  StepBatch batch;
  batch.token_ids = tokens;
  batch.rows = first;
  batch.logit_rows = wanted;
  expect_refused(executor.start(*lane, batch), "rows of 0 state groups: the program uses 2");
  std::vector<std::span<const AttentionRow>> groups = {first, std::span(second).first(1)};
  batch.group_rows = groups;
  expect_refused(executor.start(*lane, batch), "step has 1 rows of one state group and 2 of another");
  groups[1] = second;
  EXPECT_EQ(batch.rows_of(1).data(), second.data());
  ASSERT_TRUE(executor.start(*lane, batch));
  EXPECT_EQ(executor.advance(*lane).state, AdvanceState::done);
}

}  // namespace
}  // namespace tandem
