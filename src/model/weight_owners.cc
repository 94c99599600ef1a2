#include "model/weight_owners.h"

#include <fmt/core.h>

#include <map>

#include "base/log.h"
#include "base/memory_budget.h"

namespace tandem {
namespace {

// The smallest memory that can be bound.
constexpr uint64_t kPageBytes = 4096;

}  // namespace

std::vector<std::vector<OwnedBytes>> own_weights(const OwnerPlan& plan,
                                                 std::span<const OwnedWeight> weights) {
  std::map<uint32_t, std::map<uint32_t, uint64_t>> experts;  // of a layer: their places among those held
  for (const OwnedWeight& weight : weights) {
    if (weight.expert != UINT32_MAX) experts[weight.layer].emplace(weight.expert, 0);
  }
  for (auto& [layer, held] : experts) {
    uint64_t place = 0;
    for (auto& [expert, at] : held) at = place++;
  }
  std::vector<std::vector<OwnedBytes>> all(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const OwnedWeight& weight = weights[i];
    if (weight.bytes == 0) continue;
    if (weight.expert != UINT32_MAX) {
      const auto& held = experts[weight.layer];
      all[i].push_back({0, weight.bytes, owner_of_item(plan, held.at(weight.expert), held.size())});
      continue;
    }
    uint64_t begin = 0;
    const std::vector<uint64_t> ends = owner_ends(plan, weight.bytes, kPageBytes);
    for (uint32_t owner = 0; owner < plan.owners(); ++owner) {
      if (begin < ends[owner]) all[i].push_back({begin, ends[owner], owner});
      begin = ends[owner];
    }
  }
  return all;
}

WeightBinder::WeightBinder(const WeightNodes& nodes, std::span<const OwnedWeight> weights)
    : nodes_(nodes),
      parts_(own_weights(nodes.plan, weights)),
      memory_(std::make_shared<MemoryOwners>(nodes.plan.owners())),
      bytes_(nodes.plan.owners()) {}

void WeightBinder::bind(size_t index, std::byte* data) {
  for (const OwnedBytes& part : parts_[index]) {
    memory_->add(data + part.begin, part.end - part.begin, part.owner);
    bytes_[part.owner] += part.end - part.begin;
    if (data + part.begin != end_ || part.owner != owner_) {
      flush();
      begin_ = data + part.begin;
      owner_ = part.owner;
    }
    end_ = data + part.end;
  }
}

void WeightBinder::flush() {
  if (begin_ == end_ || failed_ || !nodes_.topology->can_bind()) return;
  const auto bytes = static_cast<size_t>(end_ - begin_);
  const Status bound = nodes_.topology->bind_memory(begin_, bytes, nodes_.plan.node_of_owner[owner_]);
  if (bound) return;
  failed_ = true;
  log_warning(bound.error().message + "; weights lie where the kernel puts them");
}

std::shared_ptr<const MemoryOwners> WeightBinder::finish() {
  flush();
  begin_ = end_ = nullptr;
  memory_->seal();
  std::string text;
  for (uint32_t owner = 0; owner < nodes_.plan.owners(); ++owner) {
    text += fmt::format("{}node {} {}", owner == 0 ? "" : ", ", nodes_.plan.node_of_owner[owner],
                        bytes_text(bytes_[owner]));
  }
  log_info("NUMA: weights by node: " + text + (nodes_.topology->can_bind() ? "" : " (emulated: not bound)"));
  return memory_;
}

}  // namespace tandem
