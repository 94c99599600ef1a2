// Measures what many clients on one pool of experts do to each other: an FFN rank over random weights,
// clients that each have one request under way, and arms that take turns in slices, so that a machine that
// gets slower slows all of them. The experts alone: no attention is computed, a client comes back at once or
// after a pause.
//
// Arms: `merge`, `oldest` and `fifo` are the orders of an FFN rank (ffn/ffn_scheduler.h); `colocated` has as
// many copies of the weights as there are clients, each computed by its client's own thread; `flood`,
// `connections` and `stall` are `merge` beside trouble (bench/sharing_trouble.h), whose work is not counted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/packed_weight.h"

namespace tandem::bench {

struct SharingOptions {
  std::vector<std::string> arms = {"fifo", "merge"};
  uint32_t clients = 16, rows = 4;  // rows of a request
  uint32_t experts = 32, top_k = 4, hidden = 1024, intermediate = 512, layers = 8;
  PackFormat format = PackFormat::bf16;
  double seconds = 6;  // of each arm, in `runs` slices
  int runs = 5;
  double think_ms = 0;               // mean pause of a client between an answer and the next request
  double flood_rate = 500;           // connections a second, of arm `connections`
  std::string transport = "inproc";  // inproc, shm or tcp
  int threads = 0;                   // of the pool; 0: what the CPU budget allows
};

// A table, or JSON: {"machine": {...}, "options": {...}, "arms": [{"arm", "tokens_per_second", "p50_ms",
// "p99_ms", "client_p99_ms": [least, most], "client_tokens": [least, most], "calls", "clients_per_call",
// "rows_per_expert", "bytes_per_token", "read_gbps", "of_roof"}]}. A token is a row through all layers.
// invalid_argument: an unknown arm, or an option out of range, by name. resource_exhausted: the weights do
// not fit.
Result<std::string> run_sharing_bench(const SharingOptions& options, bool json);

}  // namespace tandem::bench
