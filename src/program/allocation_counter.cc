#include "program/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<size_t> allocations{0};
}

namespace tandem::test {
size_t allocations_so_far() {
  return allocations.load(std::memory_order_relaxed);
}
}  // namespace tandem::test

// The forms for arrays end in these. Over-aligned ones are not counted: nothing here uses them in a step.
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
