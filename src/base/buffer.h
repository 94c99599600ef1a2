// Buffer: a view of bytes that knows which memory it lies in; OwnedBuffer owns such bytes, 64-byte aligned.
// Device seam: today every space is host memory; a kernel that receives another space must refuse it by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/result.h"

namespace tandem {

enum class MemorySpace : uint8_t { host, shared, device };

struct Buffer {
  std::byte* data = nullptr;
  size_t bytes = 0;
  MemorySpace space = MemorySpace::host;

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

// Becomes set when the bytes that a request points to may be read. On a CPU it is set at once.
struct Event {
  bool is_set = true;
};

// Cache line and widest vector register: every row that a kernel streams starts on one.
inline constexpr size_t kBufferAlignment = 64;

class OwnedBuffer {
 public:
  OwnedBuffer() = default;
  OwnedBuffer(OwnedBuffer&& other) noexcept { swap(other); }
  OwnedBuffer& operator=(OwnedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  OwnedBuffer(const OwnedBuffer&) = delete;
  OwnedBuffer& operator=(const OwnedBuffer&) = delete;
  ~OwnedBuffer();

  // Zeroed bytes; resource_exhausted when the system has no more. Large blocks ask for transparent huge
  // pages.
  static Result<OwnedBuffer> allocate(size_t bytes);

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  Buffer view() const { return {data_, bytes_, MemorySpace::host}; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(OwnedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
  }

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t mapped_bytes_ = 0;  // 0: from the heap
};

}  // namespace tandem
