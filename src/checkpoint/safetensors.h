// SafetensorsFile: a read-only view of one .safetensors file. The whole header is checked against the file
// before any of it is believed: sizes, duplicate names, shapes against offsets, no overlap, no gap, no byte
// that belongs to nobody. Immutable after `open`; any thread may read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/result.h"

namespace tandem {

struct TensorInfo {
  std::string name;
  DType dtype = DType::none;    // none: a type that Tandem does not know; an error only for whoever reads it
  std::string dtype_name;       // as the file writes it: "BF16", "F8_E4M3"
  std::vector<uint64_t> shape;  // row-major, outermost first
  uint64_t begin = 0, end = 0;  // bytes in the file; no alignment is promised
  uint64_t bytes() const { return end - begin; }
};

// The format's own limit: real headers have some hundred bytes a tensor, and the largest released shards stay
// below 10 MB.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
// Released tensors have at most four dimensions; the bound keeps a hostile header from growing a list.
inline constexpr size_t kMaxTensorRank = 8;

// Checks the header of a whole file in memory. data_loss names `path`, the tensor and what is wrong with it.
// Tensors come in the order of their bytes.
Result<std::vector<TensorInfo>> parse_safetensors_header(std::span<const std::byte> file,
                                                         const std::string& path);

// "[2, 3]"
std::string shape_text(std::span<const uint64_t> shape);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  std::span<const TensorInfo> tensors() const { return tensors_; }
  // The raw bytes of a tensor of this file. Unaligned.
  std::span<const std::byte> bytes(const TensorInfo& tensor) const {
    return file_.bytes().subspan(tensor.begin, tensor.bytes());
  }
  // Gives back the memory behind bytes [offset, offset + bytes) of `tensor`.
  void drop_pages(const TensorInfo& tensor, uint64_t offset, uint64_t bytes) const {
    file_.drop_pages(tensor.begin + offset, bytes);
  }

 private:
  std::string path_;
  MappedFile file_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace tandem
