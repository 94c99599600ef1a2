// Runs a checked LoadPlan: sizes and places the packed weights that a rank holds, then streams the checkpoint
// into them, a megabyte at a time, expert after expert, on all threads of a pool. Pages of the files are
// given back as they are used.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "model/load_plan.h"
#include "model/load_plan_check.h"
#include "model/load_progress.h"

namespace tandem {

class LoadRun {
 public:
  // Everything passed outlives the run. `compute_dtype`: f32 or bf16.
  LoadRun(const LoadPlan& plan, const ResolvedTensors& tensors, const KernelTable& table,
          const HeldParts& held, DType compute_dtype);

  // What `weights` will hold when loaded, and what loading takes besides, per thread.
  uint64_t resident_bytes() const { return resident_bytes_; }
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  uint64_t role_bytes(WeightRole role) const { return role_bytes_[static_cast<size_t>(role)]; }

  // Takes the memory, points the packed weights into it and fills them. resource_exhausted when the system
  // has no more.
  Result<void> load(ModelWeights& weights, ThreadPool& pool, LoadProgress& progress);
  // What `progress` will have counted at the end: bytes of source rows.
  uint64_t work_bytes() const { return work_bytes_; }

 private:
  struct Task {
    uint32_t item = 0;  // of packs_, or of the plan's copies
    bool copy = false;
    uint32_t row_begin = 0, row_end = 0;
  };

  PackFormat format() const { return compute_dtype_ == DType::f32 ? PackFormat::f32 : PackFormat::bf16; }
  void add_tasks(uint32_t item, bool copy, uint32_t rows, uint32_t cols);
  Result<void> place(ModelWeights& weights);
  uint64_t run(const Task& task, std::byte* scratch) const;
  uint64_t pack_rows(const PackItem& item, uint32_t row_begin, uint32_t row_end, std::byte* scratch) const;
  uint64_t pack_transposed(const PackItem& item, std::byte* scratch) const;
  uint64_t copy_rows(const CopyItem& item, uint32_t row_begin, uint32_t row_end) const;

  const LoadPlan& plan_;
  const ResolvedTensors& tensors_;
  const KernelTable& table_;
  const HeldParts held_;
  const DType compute_dtype_;
  std::vector<PackItem> packs_;  // the held parts of the plan's
  std::vector<Task> tasks_;
  uint64_t resident_bytes_ = 0, scratch_bytes_ = 0, work_bytes_ = 0;
  uint64_t role_bytes_[kWeightRoles] = {};
};

}  // namespace tandem
