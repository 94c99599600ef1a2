// Runs a checked LoadPlan: sizes and places the packed weights that a rank holds, then streams the checkpoint
// into them, a megabyte at a time, expert after expert, on all threads of a pool. Pages of the files are
// given back as they are used.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "checkpoint/packed_cache.h"
#include "model/load_plan.h"
#include "model/load_plan_check.h"
#include "model/load_progress.h"
#include "model/load_quantizer.h"
#include "model/weight_owners.h"

namespace tandem {

class LoadRun {
 public:
  // Everything passed outlives the run. `compute_dtype`: f32 or bf16. `storage`: what becomes of weights
  // where the compute dtype is bf16.
  LoadRun(const LoadPlan& plan, const ResolvedTensors& tensors, const KernelTable& table,
          const HeldParts& held, DType compute_dtype, WeightStorage storage);

  // What `weights` will hold when loaded, and what loading takes besides, per thread.
  uint64_t resident_bytes() const { return resident_bytes_; }
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  uint64_t role_bytes(WeightRole role) const { return role_bytes_[static_cast<size_t>(role)]; }

  uint64_t format_bytes(PackFormat packed) const { return format_bytes_[static_cast<size_t>(packed)]; }
  // unsupported: a weight that `storage` cannot make, by its tensor.
  Status check_storage(const ModelConfig& config) const;
  // Tensors with block scales that this rank does not keep in codes.
  uint32_t dequantized() const { return dequantized_; }

  // Takes the memory, points the packed weights into it and fills them. resource_exhausted when the system
  // has no more; data_loss, naming the tensor, when codes or scales are not numbers; out_of_range: a table
  // with a number out of its range, named.
  Result<void> load(ModelWeights& weights, ThreadPool& pool, LoadProgress& progress);

  // Before `load`, or as the cache takes memory: whose each packed weight is. Null: nobody's.
  void set_binder(WeightBinder* binder) { binder_ = binder; }
  std::vector<OwnedWeight> owned_weights() const;
  // For a cache of packed weights: everything that `load` fills, each with a hash of what it is and of the
  // tensors that it comes from. After `load` or `adopt` with the bytes.
  std::vector<PackedCachePart> cache_parts() const;
  // Instead of `load`: the packed weights point into `cache`, which outlives them; everything else is copied.
  // `cache` holds the parts that `cache_parts` names.
  void adopt(ModelWeights& weights, const PackedCache& cache, ThreadPool& pool);
  // What `progress` will have counted at the end: bytes of rows as they are packed, scales left out.
  uint64_t work_bytes() const { return work_bytes_; }

 private:
  struct Task {
    uint32_t item = 0;  // of packs_, or of the plan's copies
    bool copy = false;
    uint32_t row_begin = 0, row_end = 0;
  };

  struct Pack {
    PackItem item;  // the held part of the plan's
    PackFormat format = PackFormat::bf16;
    uint32_t phase = 0;  // PackedWeight::col_phase
    uint64_t bytes = 0;
    bool quantized = false;  // here, from values
  };

  PackFormat plain_format() const {
    return compute_dtype_ == DType::f32 ? PackFormat::f32 : PackFormat::bf16;
  }
  // In which format an item is packed: codes stay codes where all its sources have the same kind.
  PackFormat format_of(const PackItem& item) const;
  // In which format an item's values are quantised here; none: not at all.
  std::optional<PackFormat> quantized_as(const PackItem& item) const;
  uint64_t row_bytes(const Pack& pack) const;  // of what `progress` counts
  void add_tasks(uint32_t item, bool copy, uint32_t rows, uint32_t cols);
  void describe_packed();  // all but their bytes
  void size_copies();
  void read_expert_biases();
  Result<void> place(ModelWeights& weights);
  Result<uint64_t> run(const Task& task, std::byte* scratch);
  Result<uint64_t> pack_quantized(const Pack& pack, uint32_t row_begin, uint32_t row_end, std::byte* scratch);
  Result<uint64_t> pack_rows(const PackItem& item, uint32_t row_begin, uint32_t row_end,
                             std::byte* scratch) const;
  Result<uint64_t> pack_codes(const Pack& pack, uint32_t row_begin, uint32_t row_end,
                              std::byte* scratch) const;
  Result<uint64_t> pack_transposed(const PackItem& item, std::byte* scratch) const;
  Result<uint64_t> copy_rows(const CopyItem& item, uint32_t row_begin, uint32_t row_end) const;

  const LoadPlan& plan_;
  const ResolvedTensors& tensors_;
  const KernelTable& table_;
  const HeldParts held_;
  const DType compute_dtype_;
  WeightBinder* binder_ = nullptr;
  const WeightStorage storage_;
  std::vector<bool> absorbed_;  // [claims]: a product takes the transpose of some of its rows
  LoadQuantizer quantizer_;
  std::vector<Pack> packs_;
  std::vector<Task> tasks_;
  uint64_t resident_bytes_ = 0, scratch_bytes_ = 0, work_bytes_ = 0;
  uint64_t role_bytes_[kWeightRoles] = {}, format_bytes_[kPackFormats] = {};
  uint32_t dequantized_ = 0;
};

}  // namespace tandem
