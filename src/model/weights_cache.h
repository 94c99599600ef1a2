// WeightsCache: which file of a folder keeps the packed weights of one rank, and whether it may be used. Its
// name says which checkpoint, by the path, and which parts and formats; its header says which contents of the
// checkpoint. So settings that differ have files of their own, and a checkpoint that changed takes the place
// of its file. Trouble with the folder is logged and never fails a start. One thread.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/packed_cache.h"
#include "model/load_plan_run.h"
#include "model/weight_owners.h"

namespace tandem {

class WeightsCache {
 public:
  // Notes which contents the checkpoint has: before it is opened to be read. Were its files replaced
  // meanwhile, what is read is newer than what was noted, and no later start takes the one for the other.
  // invalid_argument: `folder` is a file.
  static Result<WeightsCache> create(const std::string& folder, const std::string& model);
  // The file of what `run` loads; before the others.
  void choose_file(const LoadRun& run);

  // Fills `weights` from the file; false: they must be packed, and the log says why.
  // Mapped, unless the memory has to be this process's own: for a `binder` (null: no nodes to bind to), or
  // where huge pages are asked for.
  bool restore(LoadRun& run, ModelWeights& weights, ThreadPool& pool, WeightBinder* binder) const;
  // Writes the file after `run` has loaded.
  void save(const LoadRun& run, ThreadPool& pool) const;

  const std::string& path() const { return key_.path; }

 private:
  std::string folder_, model_;
  PackedCacheKey key_;
};

}  // namespace tandem
