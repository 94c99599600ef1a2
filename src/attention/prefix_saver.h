// PrefixSaver: writes a prefix cache's file while the cache is in use. The cache's own thread copies a little
// at a time, unit by unit, and never waits; a thread beside it, of low priority, sums and writes. A unit
// whose blocks are taken for something else before it was copied is left out, and so are those behind it:
// what is in the file was true when it was copied, and stays true.
//
// All calls come from the cache's thread; the constructor may be called elsewhere, and its caller's CPU
// affinity is the writing thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "attention/prefix_cache.h"
#include "attention/prefix_store.h"

namespace tandem {

class PrefixSaver {
 public:
  explicit PrefixSaver(const PrefixStoreOptions& options);
  ~PrefixSaver();  // a file that is not whole yet is dropped

  // Whether a file is being made.
  bool busy() const;
  // A new file, of what the cache has now. Not while busy.
  void begin(PrefixCache& cache);
  // Copies units of about `bytes` bytes, as far as the writing thread keeps up. False: there is nothing to
  // copy now.
  bool copy(PrefixCache& cache, uint64_t bytes);
  // Once, when the file is in its place or could not be written: then nothing is busy.
  std::optional<Result<PrefixStoreReport>> take_result();
  // Drops the file in work.
  void cancel();

  // All of it, at once.
  Result<PrefixStoreReport> save(PrefixCache& cache);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
