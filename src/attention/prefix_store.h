// PrefixStore: what a prefix cache holds, in a file, from one run of the server to the next. Written now and
// then (prefix_saver.h) and when the worker ends, read before it begins; blocks are bytes whose meaning is
// the model's.
//
// Never wrong: the file says for which model and settings it was made (`identity`, lines of "key value"), and
// everything in it has a checksum that is compared before anything is taken over. What does not fit is left
// alone, and the error says why; it is overwritten when the worker ends. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "attention/prefix_cache.h"
#include "base/clock.h"
#include "base/result.h"

namespace tandem {

struct PrefixStoreOptions {
  std::string path;      // of the file; empty: nothing is kept
  std::string identity;  // whatever the bits of a block depend on, beside the state groups
  uint64_t max_bytes = uint64_t{1} << 30;
  Duration interval{};  // between two files while the worker runs; 0: only when it ends
};

// Units that were written, or taken over.
struct PrefixStoreReport {
  uint32_t units = 0;
  uint64_t tokens = 0, bytes = 0;
};

// Those used last, as far as they fit into max_bytes, beside the file and then in its place. An error leaves
// the file that is there.
Result<PrefixStoreReport> save_prefixes(const PrefixStoreOptions& options, PrefixCache& cache);

// As far as the pools have blocks that nothing is kept in. not_found: there is no file. invalid_argument:
// made for another model or other settings, and which. data_loss: damaged. Errors name the file, and change
// nothing.
Result<PrefixStoreReport> load_prefixes(const PrefixStoreOptions& options, PrefixCache& cache);

}  // namespace tandem
