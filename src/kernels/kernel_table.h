// KernelTable: all kernels for one instruction set, chosen once at start. KernelRunner runs their tasks on a
// thread pool. Tables: avx512_bf16 (AVX-512 F/BW/VL/DQ with bf16 dot and VNNI), avx512, avx2 (with FMA and
// F16C), scalar. Results differ between tables in the last bits, so a table has a numerics id that ranks
// compare; a mix is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "base/time_profile.h"
#include "kernels/attention_plan.h"
#include "kernels/coded_rows.h"
#include "kernels/compressed_args.h"
#include "kernels/hyper_connection_args.h"
#include "kernels/kernel_args.h"
#include "kernels/memory_owners.h"

namespace tandem {

template <class Args>
struct Kernel {
  size_t (*tasks)(const Args& args) = nullptr;
  // One task. `scratch`: kKernelScratchBytes bytes of the worker, contents undefined.
  void (*run)(const Args& args, size_t task, std::byte* scratch) = nullptr;
};

// Tasks of a plan that the runner makes, then those that fold what it has spread (kernels/attention_plan.h).
template <class Args>
struct PlannedKernel {
  Kernel<Args> tiles, fold;
};

// Enough for a tile of converted activations beside a tile of scores; sized to stay inside a 1 MiB L2.
inline constexpr size_t kKernelScratchBytes = size_t{512} << 10;

struct KernelTable {
  std::string_view name;
  uint64_t numerics_id = 0;

  // Bytes of a packed [rows, cols] weight, a multiple of 64.
  size_t (*packed_bytes)(PackFormat format, PackArrangement arrangement, uint32_t rows,
                         uint32_t cols) = nullptr;
  // f32 and bf16: packs source rows [row_begin, row_end) of a [rows, cols] weight (row-major, f32 or bf16;
  // for gate_up the rows of gate come first, then those of up). Calls for disjoint ranges may run at once
  // when row_begin is a multiple of 64. `source` points to row `row_begin`. Padding is zero: `destination`
  // must be zeroed by the caller.
  void (*pack)(PackFormat format, PackArrangement arrangement, uint32_t rows, uint32_t cols,
               uint32_t row_begin, uint32_t row_end, DType source_dtype, const void* source,
               std::byte* destination) = nullptr;
  // The same for coded formats, from rows as they are stored. `col_phase`: see PackedWeight; packed_bytes is
  // that of col_phase + cols columns. Blocks without a value other than zero take a neighbour's scale, so
  // that theirs does not matter. On a fault the destination's rows are undefined.
  PackFault (*pack_coded)(PackFormat format, PackArrangement arrangement, uint32_t rows, uint32_t cols,
                          uint32_t col_phase, uint32_t row_begin, uint32_t row_end, const CodedRows& source,
                          std::byte* destination) = nullptr;

  Kernel<MatmulArgs> matmul;
  Kernel<GroupedGateUpArgs> grouped_gate_up;
  Kernel<GroupedDownArgs> grouped_down;
  Kernel<CombineArgs> combine;
  Kernel<RmsNormArgs> rms_norm;
  Kernel<RopeArgs> rope;
  Kernel<KvWriteArgs> kv_write;
  PlannedKernel<GqaArgs> gqa;
  PlannedKernel<MlaArgs> mla;
  Kernel<MlaGatherArgs> mla_gather;
  PlannedKernel<ExpandedMlaArgs> expanded_mla;
  Kernel<CompressArgs> compress;
  Kernel<TrainedRoundingArgs> trained_rounding;
  PlannedKernel<IndexSelectArgs> index_select;
  PlannedKernel<CompressedAttentionArgs> compressed_attention;
  Kernel<ConnectionMixArgs> connection_mix;
  Kernel<ConnectionCollapseArgs> connection_collapse;
  Kernel<ConnectionExpandArgs> connection_expand;
  Kernel<ResidualAddArgs> residual_add;
  Kernel<ConvertArgs> convert;
  Kernel<QuantizeArgs> quantize_rows;      // the same bits in every table
  Kernel<DequantizeArgs> dequantize_rows;  // the same bits in every table
};

// The tables that this CPU can run, best first. Never empty: scalar runs everywhere.
std::span<const KernelTable* const> runnable_kernel_tables();

// The best one, or the one that TANDEM_ISA names; an unknown name or one that this CPU cannot run is refused
// with the list of those it can.
Result<const KernelTable*> choose_kernel_table();

class KernelRunner {
 public:
  static Result<KernelRunner> create(const KernelTable& table, ThreadPool& pool) {
    KernelRunner runner(table, pool);
    for (int worker = 0; worker < pool.threads(); ++worker) {
      TANDEM_ASSIGN(OwnedBuffer scratch, OwnedBuffer::allocate(kKernelScratchBytes));
      runner.scratch_.push_back(std::move(scratch));
    }
    TANDEM_ASSIGN(runner.planner_, AttentionPlanner::create(pool.threads()));
    return runner;
  }

  const KernelTable& table() const { return *table_; }
  ThreadPool& pool() const { return *pool_; }

  // Where those who run steps with these kernels say what their time goes to; null: nowhere. The profile
  // outlives its use.
  TimeProfile* profile() const { return profile_; }
  void set_profile(TimeProfile* profile) { profile_ = profile; }

  // Products of weights then begin with the threads of the node that holds them. Null: one counter for all.
  void set_memory_owners(std::shared_ptr<const MemoryOwners> owners) { owners_ = std::move(owners); }

  template <class Args>
  void run(const Kernel<Args>& kernel, const Args& args) {
    const size_t tasks = kernel.tasks(args);
    pool_->run(owners_ == nullptr ? TaskOwners::one(tasks) : owners_of(kernel, args, tasks),
               [&](size_t task, int worker) {
                 kernel.run(args, task, scratch_[static_cast<size_t>(worker)].data());
               });
  }
  template <class Args>
  void run(const PlannedKernel<Args>& kernel, Args args) {
    const AttentionPlan& plan = planner_.plan(args);
    args.plan = &plan;
    run(kernel.tiles, args);
    if (plan.folds != 0) run(kernel.fold, args);
  }

 private:
  KernelRunner(const KernelTable& table, ThreadPool& pool) : table_(&table), pool_(&pool) {}

  template <class Args>
  TaskOwners owners_of([[maybe_unused]] const Kernel<Args>& kernel, [[maybe_unused]] const Args& args,
                       size_t tasks) const {
    if constexpr (std::is_same_v<Args, MatmulArgs>) return task_owners(*owners_, args, tasks);
    if constexpr (std::is_same_v<Args, GroupedGateUpArgs> || std::is_same_v<Args, GroupedDownArgs>)
      return task_owners(*owners_, args, tasks, kernel.tasks);
    return TaskOwners::one(tasks);
  }

  const KernelTable* table_;
  ThreadPool* pool_;
  TimeProfile* profile_ = nullptr;
  std::shared_ptr<const MemoryOwners> owners_;
  std::vector<OwnedBuffer> scratch_;
  AttentionPlanner planner_;
};

}  // namespace tandem
