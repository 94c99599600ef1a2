// Decode between two pieces of a prefill group, over a wire, with every bit as if it had waited.
#include <gtest/gtest.h>

#include "ffn/split_testing.h"

namespace tandem {
namespace {

using namespace split_testing;

TEST(FfnWorker, DecodeGoesBetweenPiecesOfPrefillAndChangesNoBit) {
  for (const bool gate_on_attention : {false, true}) {
    Placement placement;
    placement.gate_on_attention = gate_on_attention;
    SplitModel ffn(placement), reference(placement);
    MoeBlockOptions options = ffn.block().options();
    options.piece_limit = Duration::zero();  // every expert is a piece
    auto block = MoeBlock::create(ffn.block().shape(), ffn.layers(), options, ffn.runner());
    auto urgent = MoeBlock::create(ffn.block().shape(), ffn.layers(), options, ffn.runner());
    ASSERT_TRUE(block.has_value() && urgent.has_value());
    auto worker = FfnWorker::create(ffn.worker_options(fresh_address("inproc")), **block, urgent->get());
    ASSERT_TRUE(worker.has_value()) << worker.error().message;
    auto prompts = RemoteFfn::create(reference.remote_options((*worker)->address()));
    auto tokens = RemoteFfn::create(reference.remote_options((*worker)->address()));
    ASSERT_TRUE(prompts.has_value() && tokens.has_value());
    Work prefill(reference, 1, 250, 7), decode(reference, 2, 3, 8), same_layer(reference, 1, 2, 9);
    prefill.request.row_class = RowClass::prefill;
    // Whether decode arrives while a prefill group is in work is the machine's business: until it did.
    for (int round = 0; round < 5000 && (*worker)->stats().preemptions < 20; ++round) {
      for (Work* work : {&prefill, &decode, &same_layer}) work->reset_output();
      ASSERT_TRUE((*prompts)->submit(prefill.request).has_value());
      ASSERT_TRUE((*tokens)->submit(decode.request).has_value());
      ASSERT_TRUE((*tokens)->submit(same_layer.request).has_value());
      for (const Completion& completion : wait_for(**tokens, 2)) ASSERT_TRUE(completion.status.has_value());
      for (const Completion& completion : wait_for(**prompts, 1)) ASSERT_TRUE(completion.status.has_value());
      ASSERT_TRUE(prefill.output_is_exact() && decode.output_is_exact() && same_layer.output_is_exact());
    }
    EXPECT_GE((*worker)->stats().preemptions, 1u);
    EXPECT_EQ((*worker)->stats().tiles_failed, 0u);
  }
}

}  // namespace
}  // namespace tandem
