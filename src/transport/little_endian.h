// Fixed byte order for what crosses a wire. Any thread.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace tandem {

template <std::unsigned_integral T>
void store_little_endian(std::byte* at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
T load_little_endian(const std::byte* at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(at[i]) << (8 * i));
  return value;
}

}  // namespace tandem
