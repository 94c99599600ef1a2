// Element types of tensors, in files, memory and on the wire. The numeric values are part of the wire
// protocol: append, never renumber.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem {

enum class DType : uint8_t {
  none = 0,
  f32 = 1,
  bf16 = 2,
  f16 = 3,
  f64 = 4,
  f8_e4m3 = 5,
  f8_e5m2 = 6,
  f8_e8m0 = 7,
  i8 = 8,
  u8 = 9,
  i16 = 10,
  u16 = 11,
  i32 = 12,
  u32 = 13,
  i64 = 14,
  u64 = 15,
  boolean = 16,
  f4_e2m1 = 17,  // two elements a byte, low nibble first
};

// Bits of one element; 0 for none.
size_t dtype_bits(DType dtype);

// Bytes of `count` elements, rounded up to a whole byte.
inline size_t dtype_bytes(DType dtype, size_t count) {
  return (dtype_bits(dtype) * count + 7) / 8;
}

// "bf16", "f32", ...
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace tandem
