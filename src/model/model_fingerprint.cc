// model_fingerprint (declared in model_weights.h): which checkpoint this is, read from headers and a few
// bytes of each tensor.
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "model/model_weights.h"

namespace tandem {
namespace {

// FNV-1a: tells different checkpoints apart; it is no defence against one that is made to collide.
class Hash {
 public:
  void add(const void* data, size_t bytes) {
    const auto* from = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) value_ = (value_ ^ from[i]) * 1099511628211u;
  }
  void add(uint64_t number) { add(&number, sizeof number); }
  // With its length, so that neighbouring texts cannot trade characters.
  void add(const std::string& text) {
    add(text.size());
    add(text.data(), text.size());
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037u;
};

// Bytes of one sample. Two samples a tensor: two page reads each, some seconds for the largest checkpoints.
constexpr uint64_t kSampleBytes = 256;

}  // namespace

Result<uint64_t> model_fingerprint(const std::string& path) {
  TANDEM_ASSIGN(const std::string config, read_config_json(path));
  TANDEM_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(path));
  Hash hash;
  hash.add(config);
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const TensorInfo& info = *tensor.info;
    hash.add(info.name);
    hash.add(info.dtype_name);
    hash.add(info.shape.size());
    for (const uint64_t dim : info.shape) hash.add(dim);
    hash.add(std::filesystem::path(tensor.file->path()).filename().string());
    hash.add(info.begin);
    hash.add(info.end);
    const std::span<const std::byte> bytes = tensor.bytes();
    const size_t size = std::min<size_t>(bytes.size(), kSampleBytes);
    hash.add(bytes.data(), size);
    hash.add(bytes.data() + (bytes.size() - size) / 2, size);
  }
  return hash.value();
}

}  // namespace tandem
