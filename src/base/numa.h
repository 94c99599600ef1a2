// NUMA: the memory nodes of this machine, which of them own weights, and how threads and memory are bound to
// them. With one node nothing is bound and nothing changes. The plan is a pure function of a topology, which
// hwloc reads from the machine, or makes up from a description (HWLOC_SYNTHETIC="numa:2 core:4 pu:1" does so
// for a whole process): then everything but the binding itself happens. Any thread; immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/task_owners.h"

namespace tandem {

class NumaTopology {
 public:
  // unavailable: hwloc cannot read the machine, with its words.
  static Result<NumaTopology> detect();
  // From hwloc's description of a machine. invalid_argument names a description that is not one.
  static Result<NumaTopology> emulated(const std::string& description);

  // CPUs of each node that this process may use; nodes without any are left out.
  std::span<const uint32_t> cpus() const { return cpus_; }
  // False: emulated; binding would speak of another machine.
  bool can_bind() const;

  // Pages of [data, data + bytes), touched or not, go to the node with this index of `cpus`. The calling
  // thread runs on that node's CPUs only. unavailable: what the system said.
  Status bind_memory(void* data, size_t bytes, uint32_t node) const;
  Status bind_thread(uint32_t node) const;

 private:
  struct Handle;
  static Result<NumaTopology> load(Handle handle);

  std::shared_ptr<Handle> handle_;
  std::vector<uint32_t> cpus_;   // [nodes]
  std::vector<uint32_t> nodes_;  // [nodes] hwloc's index
};

// Who owns memory, and who computes it.
struct OwnerPlan {
  std::vector<uint32_t> node_of_owner;    // of NumaTopology::cpus
  std::vector<uint32_t> threads;          // [owners] of the pool; their parts of the work, and of memory
  std::vector<uint32_t> owner_of_worker;  // [threads of the pool], ascending

  uint32_t owners() const { return static_cast<uint32_t>(threads.size()); }
};

// Spreads workers evenly over CPUs, node after node. A node that gets no worker owns nothing: its memory
// would only be read from afar.
OwnerPlan plan_owners(std::span<const uint32_t> cpus_of_node, int threads);

// Item `index` of `count` equal ones, dealt out to owners in contiguous parts by their threads.
uint32_t owner_of_item(const OwnerPlan& plan, uint64_t index, uint64_t count);

// Where the parts of [0, size) end, by the owners' threads, each a multiple of `unit` but the last: [owners].
std::vector<uint64_t> owner_ends(const OwnerPlan& plan, uint64_t size, uint64_t unit);

}  // namespace tandem
