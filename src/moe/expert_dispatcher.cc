#include "moe/expert_dispatcher.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "base/bf16.h"

namespace tandem {
namespace {

// Columns that are added up at a time: the sums stay in registers and L1.
constexpr uint32_t kBlock = 64;
// The slice that adds the shared experts is chosen by other bits of a row's hash than its replica: with the
// same ones, some ranks would never be chosen.
constexpr uint32_t kSharedHashShift = 16;

// Of a row's routing: equal for equal rows, spread over different ones (FNV-1a, then a finaliser, because its
// low bits alone are poor).
uint32_t routing_hash(std::span<const int32_t> ids, std::span<const float> weights) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto mix = [&](uint32_t word) { hash = (hash ^ word) * 0x100000001b3ULL; };
  for (const int32_t id : ids) mix(static_cast<uint32_t>(id));
  for (const float weight : weights) mix(std::bit_cast<uint32_t>(weight));
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccdULL;
  return static_cast<uint32_t>(hash >> 32);
}

float load(const float* at) {
  return *at;
}
double load(const double* at) {
  return *at;
}
float load(const bf16* at) {
  return to_float(*at);
}
void keep(float value, float* at) {
  *at = value;
}
void keep(double value, double* at) {
  *at = value;
}
void keep(float value, bf16* at) {
  *at = to_bf16(value);
}

// `Sum` is what values of type T are added in.
template <class T, class Sum>
void add_row(std::span<const std::byte* const> sources, uint32_t hidden, T* out) {
  std::array<Sum, kBlock> sums;
  for (uint32_t begin = 0; begin < hidden; begin += kBlock) {
    const uint32_t count = std::min(kBlock, hidden - begin);
    sums.fill(Sum{0});
    for (size_t s = 0; s < sources.size(); ++s) {
      const T* values = reinterpret_cast<const T*>(sources[s]) + begin;
      if (s == 0) {  // a single source keeps its bits, the sign of a zero included
        for (uint32_t i = 0; i < count; ++i) sums[i] = load(values + i);
      } else {
        for (uint32_t i = 0; i < count; ++i) sums[i] += load(values + i);
      }
    }
    for (uint32_t i = 0; i < count; ++i) keep(sums[i], out + begin + i);
  }
}

}  // namespace

void Prepared::reserve(size_t max_parts, uint32_t max_rows, uint32_t top_k, size_t num_experts) {
  parts.resize(max_parts);
  for (DispatchPart& part : parts) {
    part.rows.reserve(max_rows);
    part.ids.reserve(size_t{max_rows} * top_k);
    part.weights.reserve(size_t{max_rows} * top_k);
    part.shared_rows.reserve(max_rows);
  }
  cursors.reserve(max_parts);
  sources.reserve(max_parts);
  place.reserve(num_experts);
  chosen.reserve(num_experts);
  active.reserve(num_experts);
  replicas.reserve(num_experts);
  balance.reserve(num_experts, max_parts);
}

Result<ExpertDispatcher> ExpertDispatcher::create(std::shared_ptr<const ExpertMap> map, uint32_t top_k) {
  ExpertDispatcher created;
  const ExpertMapShape& shape = map->shape();
  for (const Piece& piece : map->pieces()) created.ranks_.push_back(piece.owner.rank);
  std::ranges::sort(created.ranks_);
  created.ranks_.erase(std::unique(created.ranks_.begin(), created.ranks_.end()), created.ranks_.end());

  created.top_k_ = top_k;
  int32_t next_layer = 0;
  for (const uint16_t layer : shape.moe_layers) {
    created.layer_index_.resize(std::max<size_t>(created.layer_index_.size(), layer + 1u), -1);
    created.layer_index_[layer] = next_layer++;
    for (uint32_t expert = 0; expert < shape.num_experts; ++expert) {
      created.first_slice_.push_back(static_cast<uint32_t>(created.first_owner_.size()));
      const auto pieces = map->pieces(layer, static_cast<uint16_t>(expert));
      const auto expert_begin = static_cast<std::ptrdiff_t>(created.owners_.size());
      for (size_t i = 0; i < pieces.size(); ++i) {  // by slice, then by owner
        const Piece& piece = pieces[i];
        const bool new_slice = i == 0 || piece.row_begin != pieces[i - 1].row_begin;
        const auto at = std::ranges::lower_bound(created.ranks_, piece.owner.rank);
        const auto index = static_cast<uint16_t>(at - created.ranks_.begin());
        // Two units of one rank that hold one slice are one place to send to.
        if (!new_slice && created.owners_.back() == index) continue;
        if (std::find(created.owners_.begin() + expert_begin, created.owners_.end(), index) !=
            created.owners_.end()) {
          return make_error(ErrorCode::unsupported,
                            "dispatcher: rank " + std::to_string(piece.owner.rank) +
                                " holds several slices of " +
                                describe_experts({&piece, 1}, shape.intermediate_size) +
                                "; one slice of an expert for each rank would do");
        }
        if (new_slice) created.first_owner_.push_back(static_cast<uint32_t>(created.owners_.size()));
        created.has_replicas_ = created.has_replicas_ || !new_slice;
        created.owners_.push_back(index);
      }
    }
  }
  created.first_slice_.push_back(static_cast<uint32_t>(created.first_owner_.size()));
  created.first_owner_.push_back(static_cast<uint32_t>(created.owners_.size()));
  created.map_ = std::move(map);
  return created;
}

void ExpertDispatcher::choose_replicas(const uint32_t* first_slice, const RoutingView& routing,
                                       Prepared& out) const {
  constexpr uint32_t kNone = UINT32_MAX;
  const uint32_t experts = map_->shape().num_experts;
  out.place.assign(experts, kNone);
  out.active.clear();
  size_t slots = 0;
  for (size_t i = 0; i < routing.ids.size(); ++i) {
    if (routing.weights[i] == 0.0f) continue;
    ++slots;
    uint32_t& place = out.place[static_cast<size_t>(routing.ids[i])];
    if (place != kNone) continue;
    place = static_cast<uint32_t>(out.active.size());
    out.active.push_back(static_cast<uint16_t>(routing.ids[i]));
  }
  out.by_experts = slots <= size_t{kFewRowsAnExpert} * out.active.size();
  if (!out.by_experts) return;
  out.replicas.clear();
  for (const uint16_t expert :
       out.active) {  // of its first slice; the others' owners stand in the same order
    const uint32_t owner = first_owner_[first_slice[expert]], end = first_owner_[first_slice[expert] + 1];
    out.replicas.push_back(std::span(owners_).subspan(owner, end - owner));
  }
  out.balance.solve(out.replicas, ranks_.size());
  out.chosen.assign(experts, 0);
  for (size_t i = 0; i < out.active.size(); ++i) out.chosen[out.active[i]] = out.balance.chosen(i);
}

Status ExpertDispatcher::prepare(LayerIndex layer, uint32_t rows, const RoutingView& routing, Prepared& out,
                                 ReplicaChoice choice) const {
  if (layer >= layer_index_.size() || layer_index_[layer] < 0) {
    return make_error(ErrorCode::invalid_argument,
                      "dispatcher: layer " + std::to_string(layer) + " has no experts");
  }
  const size_t count = size_t{rows} * top_k_;
  if (routing.top_k != top_k_ || routing.ids.size() != count || routing.weights.size() != count) {
    return make_error(ErrorCode::invalid_argument,
                      "dispatcher: a routing of " + std::to_string(routing.ids.size()) + " ids, top_k " +
                          std::to_string(routing.top_k) + ", for " + std::to_string(rows) +
                          " rows and top_k " + std::to_string(top_k_));
  }
  out.rows = rows;
  out.parts.resize(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    DispatchPart& part = out.parts[i];
    part.rank = ranks_[i];
    part.rows.clear();
    part.ids.clear();
    part.weights.clear();
    part.shared_rows.clear();
  }
  const uint32_t* first_slice =
      first_slice_.data() + static_cast<size_t>(layer_index_[layer]) * map_->shape().num_experts;
  out.by_experts = false;
  if (choice == ReplicaChoice::by_experts && has_replicas_) choose_replicas(first_slice, routing, out);
  for (uint32_t row = 0; row < rows; ++row) {
    const auto ids = routing.ids.subspan(size_t{row} * top_k_, top_k_);
    const auto weights = routing.weights.subspan(size_t{row} * top_k_, top_k_);
    bool first_slot = true;
    for (uint32_t slot = 0; slot < top_k_; ++slot) {
      if (weights[slot] == 0.0f) continue;  // contributes nothing anywhere
      const uint32_t begin = first_slice[ids[slot]], end = first_slice[ids[slot] + 1];
      const uint32_t shared_slice =
          begin + (end - begin == 1 ? 0 : (routing_hash(ids, weights) >> kSharedHashShift) % (end - begin));
      for (uint32_t slice = begin; slice < end; ++slice) {
        const uint32_t owner = first_owner_[slice], replicas = first_owner_[slice + 1] - owner;
        const uint32_t chosen = replicas == 1    ? 0
                                : out.by_experts ? out.chosen[static_cast<size_t>(ids[slot])] % replicas
                                                 : routing_hash(ids, weights) % replicas;
        DispatchPart& part = out.parts[owners_[owner + chosen]];
        if (part.rows.empty() || part.rows.back() != row) {
          part.rows.push_back(row);
          part.ids.insert(part.ids.end(), ids.begin(), ids.end());
          part.weights.resize(part.weights.size() + top_k_, 0.0f);
          part.shared_rows.push_back(first_slot && slice == shared_slice ? 1 : 0);
        }
        part.weights[part.weights.size() - top_k_ + slot] = weights[slot];
      }
      first_slot = false;
    }
  }
  return {};
}

void add_partials(Prepared& prepared, std::span<const std::byte* const> partials, uint32_t hidden,
                  DType dtype, std::byte* out) {
  const size_t row_bytes = dtype_bytes(dtype, hidden);
  prepared.cursors.assign(prepared.parts.size(), 0);
  for (uint32_t row = 0; row < prepared.rows; ++row, out += row_bytes) {
    prepared.sources.clear();
    for (size_t i = 0; i < prepared.parts.size(); ++i) {
      size_t& cursor = prepared.cursors[i];
      const std::vector<uint32_t>& rows = prepared.parts[i].rows;
      if (cursor == rows.size() || rows[cursor] != row) continue;
      prepared.sources.push_back(partials[i] + cursor * row_bytes);
      ++cursor;
    }
    if (dtype == DType::f64) {
      add_row<double, double>(prepared.sources, hidden, reinterpret_cast<double*>(out));
    } else if (dtype == DType::f32) {
      add_row<float, float>(prepared.sources, hidden, reinterpret_cast<float*>(out));
    } else {
      add_row<bf16, float>(prepared.sources, hidden, reinterpret_cast<bf16*>(out));
    }
  }
}

}  // namespace tandem
