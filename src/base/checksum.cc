#include "base/checksum.h"

#include <bit>
#include <cstring>

namespace tandem {
namespace {

// The primes of the specification.
constexpr uint64_t kPrime1 = 0x9e3779b185ebca87, kPrime2 = 0xc2b2ae3d27d4eb4f, kPrime3 = 0x165667b19e3779f9,
                   kPrime4 = 0x85ebca77c2b2ae63, kPrime5 = 0x27d4eb2f165667c5;

template <class T>
uint64_t read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint64_t round(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}
uint64_t merge(uint64_t hash, uint64_t lane) {
  return (hash ^ round(0, lane)) * kPrime1 + kPrime4;
}

}  // namespace

uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed) {
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size();
  uint64_t hash = seed + kPrime5;
  if (bytes.size() >= 32) {
    // Four lanes that do not wait for each other.
    uint64_t a = seed + kPrime1 + kPrime2, b = seed + kPrime2, c = seed, d = seed - kPrime1;
    for (; end - at >= 32; at += 32) {
      a = round(a, read<uint64_t>(at));
      b = round(b, read<uint64_t>(at + 8));
      c = round(c, read<uint64_t>(at + 16));
      d = round(d, read<uint64_t>(at + 24));
    }
    hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    hash = merge(merge(merge(merge(hash, a), b), c), d);
  }
  hash += bytes.size();
  for (; end - at >= 8; at += 8) {
    hash = std::rotl(hash ^ round(0, read<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  for (; end - at >= 4; at += 4) {
    hash = std::rotl(hash ^ read<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
  }
  for (; at != end; ++at) hash = std::rotl(hash ^ read<uint8_t>(at) * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace tandem
