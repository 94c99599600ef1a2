#include "kernels/memory_owners.h"

#include <algorithm>

namespace tandem {
namespace {

template <class Args, class WeightOf>
TaskOwners of_groups(const MemoryOwners& memory, const Args& args, size_t tasks,
                     size_t (*tasks_of)(const Args&), WeightOf weight_of) {
  TaskOwners owners;
  owners.count = memory.owners();
  if (args.groups.size() == 1) {  // a dense MLP: its rows are shared out
    const PackedWeight& weight = weight_of(args.groups.front());
    for (uint32_t owner = 0; owner < owners.count; ++owner) {
      const size_t bytes = memory.bytes_up_to(weight.data, weight.bytes, owner);
      owners.ends[owner] = weight.bytes == 0 ? tasks : tasks * bytes / weight.bytes;
    }
  } else {
    size_t done = 0;
    Args part = args;
    for (size_t g = 0; g < args.groups.size(); ++g) {
      part.groups = args.groups.subspan(g, 1);
      done = std::min(tasks, done + tasks_of(part));
      // Experts ascend, and so do their owners; one out of order would go to the last.
      for (uint32_t owner = memory.owner_of(weight_of(args.groups[g]).data); owner < owners.count; ++owner)
        owners.ends[owner] = done;
    }
  }
  owners.ends[owners.count - 1] = tasks;
  return owners;
}

}  // namespace

void MemoryOwners::add(const void* begin, size_t bytes, uint32_t owner) {
  const auto from = reinterpret_cast<uintptr_t>(begin);
  if (bytes == 0) return;
  if (!ranges_.empty() && ranges_.back().end == from && ranges_.back().owner == owner) {
    ranges_.back().end = from + bytes;
  } else {
    ranges_.push_back({from, from + bytes, owner});
  }
}

void MemoryOwners::seal() {
  std::ranges::sort(ranges_, {}, &Range::begin);
}

const MemoryOwners::Range* MemoryOwners::find(uintptr_t address) const {
  const auto at = std::ranges::upper_bound(ranges_, address, {}, &Range::end);
  return at == ranges_.end() ? nullptr : &*at;
}

uint32_t MemoryOwners::owner_of(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const Range* range = find(at);
  return range != nullptr && range->begin <= at ? range->owner : 0;
}

size_t MemoryOwners::bytes_up_to(const std::byte* begin, size_t bytes, uint32_t owner) const {
  const auto from = reinterpret_cast<uintptr_t>(begin);
  for (const Range* range = find(from); range != nullptr; ++range) {
    if (range == ranges_.data() + ranges_.size() || range->begin >= from + bytes) break;
    if (range->owner > owner) return range->begin > from ? range->begin - from : 0;
  }
  return bytes;
}

TaskOwners task_owners(const MemoryOwners& memory, const MatmulArgs& args, size_t tasks) {
  TaskOwners owners;
  owners.count = memory.owners();
  const size_t weights = args.weights.size();
  for (uint32_t owner = 0; owner + 1 < owners.count; ++owner) {
    // Of a batch (the heads of an absorbed projection) the first weight that another owner holds a part of.
    size_t end = tasks;
    for (size_t w = 0; w < weights; ++w) {
      const PackedWeight& weight = args.weights[w];
      const size_t bytes = memory.bytes_up_to(weight.data, weight.bytes, owner);
      if (bytes == weight.bytes) continue;
      end = tasks * w / weights + tasks * bytes / weight.bytes / weights;
      break;
    }
    owners.ends[owner] = end;
  }
  owners.ends[owners.count - 1] = tasks;
  return owners;
}

TaskOwners task_owners(const MemoryOwners& memory, const GroupedGateUpArgs& args, size_t tasks,
                       size_t (*tasks_of)(const GroupedGateUpArgs&)) {
  return of_groups(memory, args, tasks, tasks_of,
                   [](const ExpertGroup& group) -> const PackedWeight& { return *group.gate_up; });
}

TaskOwners task_owners(const MemoryOwners& memory, const GroupedDownArgs& args, size_t tasks,
                       size_t (*tasks_of)(const GroupedDownArgs&)) {
  return of_groups(memory, args, tasks, tasks_of,
                   [](const ExpertGroup& group) -> const PackedWeight& { return *group.down; });
}

}  // namespace tandem
