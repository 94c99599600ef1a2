#include "base/numa.h"

#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tandem {

struct NumaTopology::Handle {
  hwloc_topology_t topology = nullptr;

  Handle() = default;
  Handle(Handle&& other) noexcept : topology(std::exchange(other.topology, nullptr)) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (topology != nullptr) hwloc_topology_destroy(topology);
  }
};

namespace {

std::unexpected<Error> system_error(const char* what) {
  return make_error(ErrorCode::unavailable, std::string("NUMA: ") + what + ": " + std::strerror(errno));
}

}  // namespace

Result<NumaTopology> NumaTopology::load(Handle handle) {
  if (hwloc_topology_load(handle.topology) != 0) return system_error("hwloc cannot read the machine");
  NumaTopology numa;
  const int nodes = hwloc_get_nbobjs_by_type(handle.topology, HWLOC_OBJ_NUMANODE);
  const hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(handle.topology);
  hwloc_bitmap_t usable = hwloc_bitmap_alloc();
  // What the process is bound to, where that can be asked; everything that it may use otherwise.
  if (hwloc_topology_is_thissystem(handle.topology) == 0 ||
      hwloc_get_cpubind(handle.topology, usable, HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(usable, allowed);
  }
  for (int node = 0; node < nodes; ++node) {
    const hwloc_obj_t object =
        hwloc_get_obj_by_type(handle.topology, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(node));
    hwloc_bitmap_t mine = hwloc_bitmap_dup(object->cpuset);
    hwloc_bitmap_and(mine, mine, usable);
    const int cpus = hwloc_bitmap_weight(mine);
    hwloc_bitmap_free(mine);
    if (cpus <= 0) continue;
    numa.cpus_.push_back(static_cast<uint32_t>(cpus));
    numa.nodes_.push_back(static_cast<uint32_t>(node));
  }
  hwloc_bitmap_free(usable);
  numa.handle_ = std::make_shared<Handle>(std::move(handle));
  return numa;
}

Result<NumaTopology> NumaTopology::detect() {
  Handle handle;
  if (hwloc_topology_init(&handle.topology) != 0) return system_error("hwloc cannot start");
  return load(std::move(handle));
}

Result<NumaTopology> NumaTopology::emulated(const std::string& description) {
  Handle handle;
  if (hwloc_topology_init(&handle.topology) != 0) return system_error("hwloc cannot start");
  if (hwloc_topology_set_synthetic(handle.topology, description.c_str()) != 0) {
    return make_error(ErrorCode::invalid_argument,
                      "'" + description + "' describes no machine; \"numa:2 core:4 pu:1\" would");
  }
  return load(std::move(handle));
}

bool NumaTopology::can_bind() const {
  return hwloc_topology_is_thissystem(handle_->topology) != 0;
}

Status NumaTopology::bind_memory(void* data, size_t bytes, uint32_t node) const {
  const hwloc_obj_t object = hwloc_get_obj_by_type(handle_->topology, HWLOC_OBJ_NUMANODE, nodes_[node]);
  // Not strict: a node that is full gives way to another instead of ending the process.
  if (hwloc_set_area_membind(handle_->topology, data, bytes, object->nodeset, HWLOC_MEMBIND_BIND,
                             HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_MIGRATE) != 0) {
    return system_error("memory cannot be bound");
  }
  return {};
}

Status NumaTopology::bind_thread(uint32_t node) const {
  const hwloc_obj_t object = hwloc_get_obj_by_type(handle_->topology, HWLOC_OBJ_NUMANODE, nodes_[node]);
  // To the node and not to one CPU: processes that share a node must not all choose its first one.
  if (hwloc_set_cpubind(handle_->topology, object->cpuset, HWLOC_CPUBIND_THREAD) != 0)
    return system_error("a thread cannot be bound");
  return {};
}

OwnerPlan plan_owners(std::span<const uint32_t> cpus_of_node, int threads) {
  uint64_t cpus = 0;
  for (const uint32_t count : cpus_of_node) cpus += count;
  OwnerPlan plan;
  if (cpus == 0) {
    plan.node_of_owner = {0};
    plan.threads = {static_cast<uint32_t>(threads)};
    plan.owner_of_worker.assign(static_cast<size_t>(threads), 0);
    return plan;
  }
  for (int worker = 0; worker < threads; ++worker) {
    // The middle of the worker's part of all CPUs.
    const uint64_t at = (2 * static_cast<uint64_t>(worker) + 1) * cpus / (2 * static_cast<uint64_t>(threads));
    uint32_t node = 0;
    for (uint64_t first = 0; at >= first + cpus_of_node[node]; ++node) first += cpus_of_node[node];
    const bool is_new = plan.node_of_owner.empty() || plan.node_of_owner.back() != node;
    // Nodes beyond the most owners join the last one.
    if (is_new && plan.owners() < kMaxOwners) {
      plan.node_of_owner.push_back(node);
      plan.threads.push_back(0);
    }
    ++plan.threads.back();
    plan.owner_of_worker.push_back(plan.owners() - 1);
  }
  return plan;
}

uint32_t owner_of_item(const OwnerPlan& plan, uint64_t index, uint64_t count) {
  const uint64_t workers = plan.owner_of_worker.size();
  return plan.owner_of_worker[(2 * index + 1) * workers / (2 * count)];
}

std::vector<uint64_t> owner_ends(const OwnerPlan& plan, uint64_t size, uint64_t unit) {
  std::vector<uint64_t> ends;
  uint64_t workers = 0;
  for (const uint32_t threads : plan.threads) {
    workers += threads;
    const uint64_t end = size / plan.owner_of_worker.size() * workers;
    ends.push_back(std::min(size, (end + unit / 2) / unit * unit));
  }
  ends.back() = size;
  return ends;
}

}  // namespace tandem
