// Experts with random weights, and an FFN rank over them: what the clients of bench/sharing_bench.h share.
#pragma once

#include <memory>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "bench/sharing_bench.h"
#include "ffn/ffn_worker.h"
#include "kernels/kernel_table.h"
#include "moe/moe_block.h"

namespace tandem::bench {

// All layers' experts. One copy; immutable.
class RandomExperts {
 public:
  static Result<std::unique_ptr<RandomExperts>> create(const SharingOptions& options,
                                                       const KernelTable& table, ThreadPool& pool);
  static uint64_t bytes_of(const SharingOptions& options, const KernelTable& table);

  std::vector<const MoeLayerWeights*> layers() const;

 private:
  OwnedBuffer bytes_;
  std::vector<MoeLayerWeights> layers_;
};

// A block over `experts`, which outlive it, as `runner`.
Result<std::unique_ptr<MoeBlock>> make_sharing_block(const SharingOptions& options,
                                                     const RandomExperts& experts, KernelRunner& runner);
SplitSettings sharing_settings(const SharingOptions& options, const KernelTable& table);

class SharingPool {
 public:
  static Result<std::unique_ptr<SharingPool>> create(const SharingOptions& options);

  KernelRunner& runner() { return *runner_; }
  ThreadPool& threads() { return *pool_; }
  // Over the same weights and threads as the rank's: not while the rank computes.
  MoeBlock& reference() { return *reference_; }
  const SplitSettings& settings() const { return settings_; }
  // An FFN rank on this pool's threads; one at a time.
  Result<std::unique_ptr<FfnWorker>> serve(const std::string& address, GroupOrder order);

 private:
  SharingPool() = default;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<KernelRunner> runner_;
  std::unique_ptr<RandomExperts> experts_;
  std::unique_ptr<MoeBlock> block_, urgent_, reference_;
  SplitSettings settings_;
};

}  // namespace tandem::bench
