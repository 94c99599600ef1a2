#include "base/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace tandem {
namespace {

// Blocks of at least one huge page are mapped on their own: the kernel can then back them by 2 MiB pages.
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

OwnedBuffer::~OwnedBuffer() {
  if (mapped_bytes_ != 0) {
    munmap(data_, mapped_bytes_);
  } else {
    std::free(data_);
  }
}

Result<OwnedBuffer> OwnedBuffer::allocate(size_t bytes) {
  OwnedBuffer buffer;
  if (bytes == 0) return buffer;
  const auto exhausted = [bytes] {
    return make_error(ErrorCode::resource_exhausted,
                      "no memory for a buffer of " + std::to_string(bytes) + " bytes");
  };
  if (bytes > SIZE_MAX - kHugePageBytes) return exhausted();
  if (bytes >= kHugePageBytes) {
    const size_t mapped = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return exhausted();
    madvise(data, mapped, MADV_HUGEPAGE);
    buffer.data_ = static_cast<std::byte*>(data);
    buffer.mapped_bytes_ = mapped;
  } else {
    const size_t rounded = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    void* data = std::aligned_alloc(kBufferAlignment, rounded);
    if (data == nullptr) return exhausted();
    std::memset(data, 0, rounded);
    buffer.data_ = static_cast<std::byte*>(data);
  }
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace tandem
