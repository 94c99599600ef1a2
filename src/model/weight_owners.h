// Weight owners: which NUMA node holds which bytes of a rank's packed weights. Experts go whole to a node, in
// contiguous ranges of a layer's experts; every other weight is cut by rows, so that all nodes read it at
// once. Shares follow the nodes' threads. The cut is a pure function; binding is done here too, and its
// failure is logged once and changes no result. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/numa.h"
#include "base/result.h"
#include "kernels/memory_owners.h"

namespace tandem {

// A packed weight, in the order in which weights lie in memory.
struct OwnedWeight {
  uint32_t layer = 0;
  uint32_t expert = UINT32_MAX;  // UINT32_MAX: of no single expert
  uint64_t bytes = 0;
};
struct OwnedBytes {
  uint64_t begin = 0, end = 0;
  uint32_t owner = 0;
  bool operator==(const OwnedBytes&) const = default;
};

// For each weight its parts, in order, all of its bytes.
std::vector<std::vector<OwnedBytes>> own_weights(const OwnerPlan& plan, std::span<const OwnedWeight> weights);

// The nodes of this machine and the threads on them. With one owner nothing is bound.
struct WeightNodes {
  OwnerPlan plan;
  std::shared_ptr<const NumaTopology> topology;
};

// Binds weights as memory for them is taken, and remembers whose they are.
class WeightBinder {
 public:
  WeightBinder(const WeightNodes& nodes, std::span<const OwnedWeight> weights);

  // Before the memory of weight number `index` is written.
  void bind(size_t index, std::byte* data);
  // When all are bound; the log says how much went where.
  std::shared_ptr<const MemoryOwners> finish();

 private:
  void flush();

  const WeightNodes& nodes_;
  std::vector<std::vector<OwnedBytes>> parts_;
  std::shared_ptr<MemoryOwners> memory_;
  // Neighbours of one owner are bound by one call: each call may make a mapping of the kernel's.
  std::byte* begin_ = nullptr;
  std::byte* end_ = nullptr;
  uint32_t owner_ = 0;
  std::vector<uint64_t> bytes_;  // [owners]
  bool failed_ = false;
};

}  // namespace tandem
