#include "checkpoint/table_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/strict_json.h"

namespace tandem {
namespace {

template <class Stored>
Result<std::vector<int32_t>> read(const StoredTensor& tensor, uint32_t limit) {
  const TensorInfo& info = *tensor.info;
  const auto bytes = tensor.bytes();
  std::vector<int32_t> table(bytes.size() / sizeof(Stored));
  const uint64_t cols = info.shape.empty() ? 1 : std::max<uint64_t>(1, info.shape.back());
  for (size_t i = 0; i < table.size(); ++i) {
    Stored value;  // the file promises no alignment
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    if (value < 0 || static_cast<uint64_t>(value) >= limit) {
      return make_error(
          ErrorCode::out_of_range,
          fmt::format("{}: tensor '{}' has {} in row {}, entry {}; numbers from 0 to {} would do",
                      tensor.file->path(), printable(info.name), value, i / cols, i % cols, limit - 1));
    }
    table[i] = static_cast<int32_t>(value);
  }
  return table;
}

}  // namespace

Result<void> check_table(const StoredTensor& tensor) {
  const TensorInfo& info = *tensor.info;
  if (info.dtype == DType::i64 || info.dtype == DType::i32) return {};
  return make_error(ErrorCode::unsupported,
                    fmt::format("{}: tensor '{}' is {}; a table of numbers is read as I64 or I32",
                                tensor.file->path(), printable(info.name), printable(info.dtype_name)));
}

Result<std::vector<int32_t>> read_table(const StoredTensor& tensor, uint32_t limit) {
  TANDEM_TRY(check_table(tensor));
  return tensor.info->dtype == DType::i64 ? read<int64_t>(tensor, limit) : read<int32_t>(tensor, limit);
}

}  // namespace tandem
