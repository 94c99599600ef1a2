// LoadRun's side of a cache of packed weights (declared in load_plan_run.h): what it holds, by name, and how
// the weights come out of it again.
#include <fmt/core.h>

#include <cassert>
#include <cstring>

#include "base/checksum.h"
#include "model/load_plan_run.h"

namespace tandem {
namespace {

// Whatever changes the packed bytes must be in this text.
uint64_t id_of(const PackItem& item, PackFormat format, bool quantized, uint32_t phase,
               std::span<const TensorClaim> claims) {
  std::string text = fmt::format(
      "{}{} {} [{}, {}] phase {} from column {}{}", quantized ? "quantised to " : "",
      pack_format_name(format), item.arrangement == PackArrangement::gate_up ? "gate_up" : "plain", item.rows,
      item.cols, phase, item.col_begin, item.transposed ? " transposed" : "");
  for (const SourceRows& source : item.sources)
    text += fmt::format(" {}[{}+{}]", claims[source.claim].tensor, source.begin, source.count) +
            (source.col_begin == 0 ? "" : fmt::format(" from column {}", source.col_begin));
  return checksum64(text);
}

uint64_t id_of(std::string_view kind, const TensorClaim& claim) {
  std::string text = fmt::format("{} {}", kind, claim.tensor);
  for (const uint64_t dim : claim.shape) text += fmt::format(" {}", dim);
  return checksum64(text);
}

template <class T>
PackedCachePart part_of(uint64_t id, const std::vector<T>& values, uint64_t elements) {
  return {id, elements * sizeof(T), false, reinterpret_cast<const std::byte*>(values.data())};
}

template <class T>
void fill(std::vector<T>& out, std::span<const std::byte> bytes) {
  out.resize(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
}

}  // namespace

std::vector<PackedCachePart> LoadRun::cache_parts() const {
  const std::span<const TensorClaim> claims = plan_.claims();
  std::vector<PackedCachePart> parts;
  parts.reserve(packs_.size());
  for (const Pack& pack : packs_)
    parts.push_back({id_of(pack.item, pack.format, pack.quantized, pack.phase, claims), pack.bytes, true,
                     pack.item.out->data});
  for (const CopyItem& item : plan_.copies()) {
    const TensorClaim& claim = claims[item.claim];
    if (!is_held(claim, held_)) continue;
    parts.push_back(item.bits != nullptr && compute_dtype_ == DType::bf16
                        ? part_of(id_of("bf16", claim), *item.bits, claim.elements())
                        : part_of(id_of("f32", claim), *item.values, claim.elements()));
  }
  for (size_t i = 0; i < plan_.tables().size(); ++i) {
    if (tensors_.tables[i] == nullptr) continue;
    const TableItem& item = plan_.tables()[i];
    parts.push_back(part_of(id_of("table", claims[item.claim]), *item.out, claims[item.claim].elements()));
  }
  return parts;
}

void LoadRun::adopt(ModelWeights& weights, const PackedCache& cache, ThreadPool& pool) {
  describe_packed();
  size_t part = 0;
  for (const Pack& pack : packs_) {
    const std::span<const std::byte> bytes = cache.part(part++);
    assert(bytes.size() == pack.bytes);
    pack.item.out->data = bytes.data();
  }
  const size_t first = part;
  std::vector<const CopyItem*> copies;
  for (const CopyItem& item : plan_.copies()) {
    if (is_held(plan_.claims()[item.claim], held_)) copies.push_back(&item);
  }
  pool.run(copies.size(), [&](size_t i, int) {
    const CopyItem& item = *copies[i];
    const std::span<const std::byte> bytes = cache.part(first + i);
    if (item.bits != nullptr && compute_dtype_ == DType::bf16) {
      fill(*item.bits, bytes);
    } else {
      fill(*item.values, bytes);
    }
  });
  part += copies.size();
  for (size_t i = 0; i < plan_.tables().size(); ++i) {
    if (tensors_.tables[i] != nullptr) fill(*plan_.tables()[i].out, cache.part(part++));
  }
  read_expert_biases();
  weights.resident_bytes = resident_bytes_;
}

}  // namespace tandem
