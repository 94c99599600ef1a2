#include "base/buffer.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/huge_pages.h"

namespace tandem {
namespace {

// Whole huge pages that the administrator has reserved; null: there are not so many.
void* map_reserved(size_t bytes) {
  constexpr int kHow = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT);  // of 2 MiB
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kHow, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

// Begins on a huge page, so that the first and the last part can be one as well.
void* map_aligned(size_t bytes) {
  void* all =
      mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(all);
  const size_t before =
      (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  if (before != 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePageBytes - before);
  madvise(begin + before, bytes, huge_pages() == HugePages::off ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  return begin + before;
}

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
  if (bytes > SIZE_MAX - 2 * kHugePageBytes) return exhausted();
  // Blocks of at least one huge page are mapped on their own: the kernel can then back them by such pages.
  if (bytes >= kHugePageBytes) {
    const size_t mapped = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    void* data = huge_pages() == HugePages::on ? map_reserved(mapped) : nullptr;
    if (data == nullptr) data = map_aligned(mapped);
    if (data == nullptr) return exhausted();
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
