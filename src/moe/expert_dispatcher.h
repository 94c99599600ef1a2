// ExpertDispatcher: from rows and their routing to what each owner gets, and back from the owners' partial
// sums to the rows. Whoever holds the routing dispatches. Rows, ids and weights of a part travel under one
// permutation, in one value; nothing is remembered between calls.
//
// A row goes to a rank once, however many of its experts live there. Every (row, slot) whose weight is not 0
// goes to exactly one rank for each slice of its expert, and weighs there what it weighs in the whole: a rank
// holds at most one slice of an expert, so that the slot says which. In the parts of the other ranks it keeps
// its id and weighs 0. Of replicas, the row's own routing chooses: spread evenly over rows, the same wherever
// the row is computed and with whatever others, so that batching changes no bit. All slices of one row choose
// alike: where replicas are copies of whole groups of ranks, a row stays in one group.
// ReplicaChoice::by_experts chooses for each expert instead where rows are few: each expert is then read
// once, and no rank reads many more than another (replica_choice.h).
//
// Immutable after creation; any thread may call with a Prepared of its own. Nothing is allocated once a
// Prepared has seen its largest request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/dtype.h"
#include "moe/expert_map.h"
#include "moe/ffn_port.h"
#include "moe/replica_choice.h"

namespace tandem {

// What one rank gets of a request.
struct DispatchPart {
  uint16_t rank = 0;
  std::vector<uint32_t> rows;  // indices into the request's rows, ascending
  std::vector<int32_t> ids;    // [rows, top_k]: as routed
  std::vector<float> weights;  // [rows, top_k]: 0 where only others have the slot; in each row one is not 0
  // [rows]: 1 where this rank adds the row's shared experts, should they be spread over the ranks: it has the
  // row's first slot of a weight other than 0, and of its slices the one that the routing chooses. 1 in
  // exactly one part of each row.
  std::vector<uint8_t> shared_rows;

  RoutingView routing(uint32_t top_k) const { return {ids, weights, top_k}; }
};

struct Prepared {
  uint32_t rows = 0;
  std::vector<DispatchPart>
      parts;  // one for each rank of the map, ascending; without rows where it gets none

  bool by_experts = false;  // replicas were chosen so: no other rank can know the choice from a row alone

  // Scratch of `prepare`, by expert: its place in `active`, and the replica that was chosen.
  std::vector<uint32_t> place, chosen;
  std::vector<uint16_t> active;                     // experts that a row asks for
  std::vector<std::span<const uint16_t>> replicas;  // of each of them
  ReplicaBalance balance;

  // Scratch of `add_partials`.
  std::vector<size_t> cursors;
  std::vector<const std::byte*> sources;

  // Room for requests of at most `max_rows` rows that go to at most `max_parts` ranks: neither `prepare` nor
  // `add_partials` allocates for them, the first one included.
  void reserve(size_t max_parts, uint32_t max_rows, uint32_t top_k, size_t num_experts = 0);
};

class ExpertDispatcher {
 public:
  // unsupported: two slices of one expert on one rank. `top_k`: of every routing.
  static Result<ExpertDispatcher> create(std::shared_ptr<const ExpertMap> map, uint32_t top_k);

  const ExpertMap& map() const { return *map_; }
  std::span<const uint16_t> ranks() const { return ranks_; }  // ascending: the order of parts and of sums
  uint32_t top_k() const { return top_k_; }

  // `routing` passed validate_routing for the map's number of experts. invalid_argument: a layer without
  // experts, or a routing of another size than rows and top_k say.
  Status prepare(LayerIndex layer, uint32_t rows, const RoutingView& routing, Prepared& out,
                 ReplicaChoice choice = ReplicaChoice::by_row) const;

 private:
  // Chooses a replica of every expert that is asked for; by_experts stays false where that does not pay.
  void choose_replicas(const uint32_t* first_slice, const RoutingView& routing, Prepared& out) const;

  std::shared_ptr<const ExpertMap> map_;
  bool has_replicas_ = false;
  uint32_t top_k_ = 0;
  std::vector<uint16_t> ranks_;
  std::vector<int32_t> layer_index_;   // by layer; -1: no experts
  std::vector<uint32_t> first_slice_;  // [moe layers * experts + 1]: where an expert's slices begin
  std::vector<uint32_t> first_owner_;  // [slices + 1]: where a slice's owners begin
  std::vector<uint16_t> owners_;       // indices into ranks_
};

// out[row, :] = the sum of the row's partial sums, in order of rank: exact on the grid of deterministic sums
// (f64); otherwise added in float32 and rounded once to `dtype` (f32 or bf16).
//   partials  one for each part: [part.rows, hidden] of `dtype`; null where the part has no rows
//   out       [prepared.rows, hidden] of `dtype`; a row without a part becomes 0
void add_partials(Prepared& prepared, std::span<const std::byte* const> partials, uint32_t hidden,
                  DType dtype, std::byte* out);

}  // namespace tandem
