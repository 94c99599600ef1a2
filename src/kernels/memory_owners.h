// MemoryOwners: which owner (NUMA node) holds the bytes of packed weights, and so which tasks of a product
// are whose. Tasks of a weight follow its rows, which follow its bytes, and tasks of an expert follow those
// of the expert before; so an owner's tasks are contiguous where its weights are. A wrong guess costs speed,
// never a result: threads that have nothing left take the others' tasks. Built once, then read by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/task_owners.h"
#include "kernels/kernel_args.h"

namespace tandem {

class MemoryOwners {
 public:
  explicit MemoryOwners(uint32_t owners) : owners_(owners) {}

  // Ranges do not overlap. `seal` after the last.
  void add(const void* begin, size_t bytes, uint32_t owner);
  void seal();

  uint32_t owners() const { return owners_; }
  // 0 for memory that nobody owns.
  uint32_t owner_of(const void* address) const;
  // Bytes of [begin, begin + bytes) before the first that belongs to an owner above `owner`.
  size_t bytes_up_to(const std::byte* begin, size_t bytes, uint32_t owner) const;

 private:
  struct Range {
    uintptr_t begin = 0, end = 0;
    uint32_t owner = 0;
  };
  const Range* find(uintptr_t address) const;  // the first that ends behind it

  uint32_t owners_;
  std::vector<Range> ranges_;
};

// Of `tasks` tasks in all. `tasks_of(args)` counts those of arguments with fewer groups.
TaskOwners task_owners(const MemoryOwners& memory, const MatmulArgs& args, size_t tasks);
TaskOwners task_owners(const MemoryOwners& memory, const GroupedGateUpArgs& args, size_t tasks,
                       size_t (*tasks_of)(const GroupedGateUpArgs&));
TaskOwners task_owners(const MemoryOwners& memory, const GroupedDownArgs& args, size_t tasks,
                       size_t (*tasks_of)(const GroupedDownArgs&));

}  // namespace tandem
