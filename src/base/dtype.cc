#include "base/dtype.h"

#include <array>

namespace tandem {
namespace {

struct Entry {
  DType dtype;
  size_t bits;
  std::string_view name;
};

constexpr std::array<Entry, 18> kEntries = {{
    {DType::none, 0, "none"},
    {DType::f32, 32, "f32"},
    {DType::bf16, 16, "bf16"},
    {DType::f16, 16, "f16"},
    {DType::f64, 64, "f64"},
    {DType::f8_e4m3, 8, "f8_e4m3"},
    {DType::f8_e5m2, 8, "f8_e5m2"},
    {DType::f8_e8m0, 8, "f8_e8m0"},
    {DType::i8, 8, "i8"},
    {DType::u8, 8, "u8"},
    {DType::i16, 16, "i16"},
    {DType::u16, 16, "u16"},
    {DType::i32, 32, "i32"},
    {DType::u32, 32, "u32"},
    {DType::i64, 64, "i64"},
    {DType::u64, 64, "u64"},
    {DType::boolean, 8, "bool"},
    {DType::f4_e2m1, 4, "f4_e2m1"},
}};

}  // namespace

size_t dtype_bits(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  return index < kEntries.size() ? kEntries[index].bits : 0;
}

std::string_view dtype_name(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  return index < kEntries.size() ? kEntries[index].name : "unknown";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace tandem
