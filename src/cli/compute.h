// What both roles of a process build from the same settings: the kernels with their threads, the MoE block of
// a side, and the settings that the handshake compares.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "afd/split_settings.h"
#include "cli/settings.h"
#include "model/model.h"
#include "model/weight_owners.h"
#include "moe/moe_block.h"

namespace tandem {

// Where the halves of a layer run, and in which numbers. Derived from settings; the same on both roles.
struct Placement {
  bool gate_on_attention = false;
  bool shared_experts_on_attention = false;
  bool send_token_ids = false;
  uint32_t num_ffn_ranks = 1;
  std::string connector = "p2p";
  bool balanced_routing = false;
  SumMode sum_mode = SumMode::plain;
  DType compute_dtype = DType::bf16;
  WeightStorage weights = WeightStorage::stored;
  DType reply_dtype = DType::bf16;
  ActivationFormat activation_format = ActivationFormat::plain;  // what the experts are given
  std::vector<uint32_t> capture_sizes;                           // of graph mode; none: eager
  static Placement from(const Settings& settings);
};

// Sets the process's huge pages as the settings say (base/huge_pages.h): before large buffers are taken.
Status use_huge_pages(const Settings& settings);

// What a model of these settings is made with.
ModelOptions model_options(const Settings& settings);
// What keys and values are kept in.
DType kv_cache_dtype(const Settings& settings);

// Where packed weights are kept between starts; empty: nowhere.
std::string weights_cache_folder(const Settings& settings);

// Threads of a process that shares the machine with `roles` - 1 others like it.
int threads_for(const Settings& settings, int roles);
// Whether `io_threads` may spin beside `threads` compute threads: the role's part of the CPUs has room for
// all. With the default number of compute threads it has not; one thread less per connection gives it.
bool io_may_spin(int threads, int roles, int io_threads);

class Compute {
 public:
  // With the process's huge pages and NUMA nodes as the settings say. unavailable: no huge page where they
  // are asked for.
  static Result<std::unique_ptr<Compute>> create(const Settings& settings, int threads);
  const KernelTable& table() const { return runner_->table(); }
  ThreadPool& pool() { return pool_; }
  KernelRunner& runner() { return *runner_; }
  const WeightNodes& nodes() const { return nodes_; }

 private:
  Compute(int threads, WeightNodes nodes, ThreadPlacement placement)
      : nodes_(std::move(nodes)), pool_(threads, std::move(placement)) {}
  WeightNodes nodes_;
  ThreadPool pool_;
  std::unique_ptr<KernelRunner> runner_;
};

// Writes engine.weights_report with `rank` (".ffn0") behind its name, where it is set.
Status report_weights(const Settings& settings, const Placement& placement, const ModelWeights& weights,
                      const std::string& rank);

// `scratch_bytes` 0: what MoeBlockOptions says.
// The block of one side: on attention it runs what attention keeps of a MoE layer, otherwise the experts with
// the rest.
Result<std::unique_ptr<MoeBlock>> make_moe_block(const ModelConfig& config, const ModelWeights& weights,
                                                 const Placement& placement, bool on_attention,
                                                 KernelRunner& runner, size_t scratch_bytes = 0);

Result<SplitSettings> split_settings(const std::string& model_path, const ModelConfig& config,
                                     const Placement& placement, const KernelTable& table);

}  // namespace tandem
