// Checkpoint: the tensors of a Hugging Face folder by name, wherever they lie. With
// model.safetensors.index.json the index is the authority: what it names must exist, and copies that it does
// not point to are ignored (and logged). Without one, the files named model*.safetensors count (or, if there
// are none, all *.safetensors); a name in two files is an error, and other files are ignored (and logged).
// Immutable after `open`; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace tandem {

// A tensor and the file that holds it. Valid as long as its Checkpoint.
struct StoredTensor {
  const TensorInfo* info = nullptr;
  const SafetensorsFile* file = nullptr;

  std::span<const std::byte> bytes() const { return file->bytes(*info); }
};

class Checkpoint {
 public:
  // Reads headers only. Errors name the folder, file or tensor: invalid_argument (not a model folder),
  // not_found (the index names what is absent), data_loss (a header that lies).
  static Result<Checkpoint> open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  // Sorted by name.
  std::span<const StoredTensor> tensors() const { return tensors_; }
  // Null when there is none.
  const StoredTensor* find(std::string_view name) const;
  uint64_t total_bytes() const;

 private:
  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<StoredTensor> tensors_;
};

// "<folder>/config.json", read with a limit. invalid_argument when `folder` is no model folder: says what one
// has.
Result<std::string> read_config_json(const std::string& folder);

}  // namespace tandem
