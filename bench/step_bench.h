// Measures whole steps of a model of a released model's sizes, cut to some layers, with random weights made
// in place: decode of a batch of sequences that each have a context of their own in filled cache pages, or
// one prefill step. The steps run through the engine's program, executor, expert block and sampler in this
// process. Each run stands beside its roofs, read just before it; reported are medians of runs, and of the
// ratios. One thread calls; runs a pool of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/model_shapes.h"
#include "model/model.h"

namespace tandem {

enum class StepKind : uint8_t { decode, prefill };

struct StepBenchOptions {
  StepKind kind = StepKind::decode;
  const bench::ModelShape* shape = nullptr;
  uint32_t layers = 0;  // 0: all of the shape
  PackFormat weights = PackFormat::bf16, experts = PackFormat::bf16;
  std::vector<uint32_t> batches = {1};  // decode: sequences; prefill: rows of one prompt
  // decode: tokens of each sequence, the new one included; prefill: tokens before the rows.
  std::vector<uint32_t> contexts = {512};
  ModelOptions model;
  int threads = 0;        // 0: the CPU budget of this process
  int runs = 5;           // at least 1
  double seconds = 0.25;  // of one run, at least one step
  bool profile = false;   // a profile by operation, of as many steps more
  uint64_t seed = 1;
  size_t read_bytes = size_t{256} << 20;  // of the read roof: beyond the caches, a multiple of 2 MiB
};

// Text, or JSON:
// {"command", "shape", "layers", "of_layers", "weights", "expert_weights", "kv_dtype", "table", "threads",
// "runs",
//  "weight_bytes", "cases": [{"batch", "context", "milliseconds", "tokens_per_second",
//  "experts_read_per_layer", "bytes": {"attention", "dense", "router", "experts", "shared_experts", "head",
//  "embedding", "kv", "total"}, "flops", "gigabytes_per_second", "read_roof", "read_share", "gigaflops",
//  "flop_roof_kind", "flop_roof", "flop_share", "roof_share", "bound", "profile": [{"operation",
//  "milliseconds", "percent", "calls"}]}]}
// Roofs in 10^9 a second; bytes, FLOPs and profile are of one step. invalid_argument and unsupported name the
// option, its value and what would do; resource_exhausted: weights or caches do not fit.
Result<std::string> run_step_bench(const StepBenchOptions& options, bool json);

}  // namespace tandem
