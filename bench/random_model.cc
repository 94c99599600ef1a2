#include "bench/random_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/memory_budget.h"
#include "bench/random_pack.h"

namespace tandem::bench {
namespace {

// Rows of an embedding that a thread fills at a time.
constexpr uint64_t kFillElements = uint64_t{1} << 18;
// Router weights are this much larger than those that keep a row's magnitude: their logits then tell experts
// apart as those of trained models do.
constexpr float kRouterGain = 2.0f;

// Tensors of which a product takes the transpose of some rows: absorbed projections.
class AbsorbedRows {
 public:
  explicit AbsorbedRows(const LoadPlan& plan) {
    for (const PackItem& item : plan.packs()) {
      if (!item.transposed) continue;
      claims_.insert(item.sources.front().claim);
      rows_.insert({item.sources.front().claim, item.sources.front().begin});
    }
  }
  bool has(size_t claim) const { return claims_.contains(claim); }
  // The same rows once more, as they are: for the expanded form, which a step takes instead.
  bool repeats(const PackItem& item) const {
    return !item.transposed && rows_.contains({item.sources.front().claim, item.sources.front().begin});
  }

 private:
  std::set<size_t> claims_;
  std::set<std::pair<size_t, uint64_t>> rows_;
};

PackFormat format_of(const LoadPlan& plan, const AbsorbedRows& absorbed, const PackItem& item,
                     const RandomModelOptions& options) {
  if (item.role == WeightRole::experts) return options.experts;
  // Formats that nobody releases: quantised at load, and so are heads.
  if (item.role == WeightRole::head &&
      (options.weights == PackFormat::int8 || options.weights == PackFormat::mxfp8))
    return options.weights;
  const bool coded = !item.transposed && std::ranges::all_of(item.sources, [&](const SourceRows& source) {
    // What is absorbed is quantised by nobody but released files, in fp8.
    return plan.claims()[source.claim].block_quantized &&
           (options.weights == PackFormat::fp8_block || !absorbed.has(source.claim));
  });
  return coded ? options.weights : PackFormat::bf16;
}

uint64_t packed_bytes(const KernelTable& table, PackFormat format, const PackItem& item) {
  return table.packed_bytes(format, item.arrangement, item.rows, item.cols);
}

uint64_t copy_bytes(const LoadPlan& plan, const CopyItem& item) {
  return plan.claims()[item.claim].elements() * (item.bits != nullptr ? sizeof(uint16_t) : sizeof(float));
}

uint64_t bias_elements(const LoadPlan& plan, const ExpertBiasItem& item) {
  return item.intermediate != 0 ? uint64_t{2} * item.intermediate : plan.claims()[item.claim].shape.back();
}

uint64_t total_bytes(const LoadPlan& plan, const KernelTable& table, const RandomModelOptions& options) {
  const AbsorbedRows absorbed(plan);
  uint64_t total = 0;
  for (const PackItem& item : plan.packs())
    total += packed_bytes(table, format_of(plan, absorbed, item, options), item);
  for (const CopyItem& item : plan.copies()) total += copy_bytes(plan, item);
  for (const ExpertBiasItem& item : plan.expert_biases()) total += bias_elements(plan, item) * sizeof(float);
  for (const TableItem& item : plan.tables()) total += plan.claims()[item.claim].elements() * sizeof(int32_t);
  return total;
}

// One buffer for the packed weights of each layer, as the loader places them.
Status place(const LoadPlan& plan, const KernelTable& table, const RandomModelOptions& options,
             RandomModel& model) {
  const AbsorbedRows absorbed(plan);
  std::map<uint32_t, uint64_t> layer_bytes;
  for (const PackItem& item : plan.packs())
    layer_bytes[item.layer] += packed_bytes(table, format_of(plan, absorbed, item, options), item);
  std::map<uint32_t, std::byte*> next;
  for (const auto& [layer, bytes] : layer_bytes) {
    TANDEM_ASSIGN(OwnedBuffer buffer, OwnedBuffer::allocate(bytes));
    next[layer] = buffer.data();
    model.weights.storage.push_back(std::move(buffer));
  }
  uint32_t expert_layer = 0;  // whose first expert is measured: all are alike
  for (const PackItem& item : plan.packs()) {
    const PackFormat format = format_of(plan, absorbed, item, options);
    const uint64_t bytes = packed_bytes(table, format, item);
    *item.out = {.format = format,
                 .arrangement = item.arrangement,
                 .rows = item.rows,
                 .cols = item.cols,
                 .data = next[item.layer],
                 .bytes = bytes};
    next[item.layer] += bytes;
    if (absorbed.repeats(item)) continue;
    const auto role = static_cast<size_t>(item.role);
    model.role_bytes[role] += bytes;
    if (item.role != WeightRole::experts) {
      model.role_flops[role] += 2.0 * item.rows * item.cols;
    } else if (item.expert == 0) {
      if (model.expert_bytes == 0) expert_layer = item.layer;
      if (item.layer == expert_layer) model.expert_bytes += bytes;
    }
  }
  return {};
}

Status fill_packed(const LoadPlan& plan, const KernelTable& table, ThreadPool& pool,
                   const RandomModelOptions& options) {
  RandomPacker packer(table, pool, options.seed);
  uint64_t seed = options.seed + 1000;
  for (const PackItem& item : plan.packs()) {
    auto* data = const_cast<std::byte*>(item.out->data);
    if (item.role == WeightRole::router) {
      TANDEM_TRY(pack_random(table, pool, item.out->format, item.arrangement, item.rows, item.cols,
                             kRouterGain, ++seed, data));
    } else {
      TANDEM_TRY(packer.fill(item.out->format, item.arrangement, item.rows, item.cols, data));
    }
  }
  return {};
}

float random_unit(uint64_t seed) {  // -1 to 1
  return static_cast<float>(random_bits(seed) >> 40) / 8388608.0f - 1.0f;
}

// Norms are 1; other vectors are small, and as matrices such that a row keeps its magnitude.
void fill_values(const TensorClaim& claim, uint64_t seed, std::vector<float>& values) {
  values.resize(claim.elements());
  const bool norm = claim.role == WeightRole::norm || claim.tensor.find("norm") != std::string::npos;
  const float magnitude =
      claim.shape.size() > 1 ? 1.0f / std::sqrt(static_cast<float>(claim.shape.back())) : 0.1f;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = norm ? 1.0f : random_unit(seed + i) * magnitude;
  }
}

void fill_copies(const LoadPlan& plan, ThreadPool& pool, RandomModel& model, uint64_t seed) {
  for (const CopyItem& item : plan.copies()) {
    const TensorClaim& claim = plan.claims()[item.claim];
    model.role_bytes[static_cast<size_t>(claim.role)] += copy_bytes(plan, item);
    seed += claim.elements();
    if (item.bits == nullptr) {
      fill_values(claim, seed, *item.values);
      continue;
    }
    item.bits->resize(claim.elements());
    pool.run((claim.elements() + kFillElements - 1) / kFillElements, [&](size_t task, int) {
      const uint64_t begin = task * kFillElements;
      fill_random_bf16(item.bits->data() + begin, std::min(kFillElements, claim.elements() - begin), 1.0f,
                       seed + begin);
    });
  }
  for (const ExpertBiasItem& item : plan.expert_biases()) {
    item.out->resize(bias_elements(plan, item));
    for (float& value : *item.out) value = random_unit(++seed) * 0.1f;
    model.role_bytes[static_cast<size_t>(WeightRole::experts)] += item.out->size() * sizeof(float);
  }
  for (const TableItem& item : plan.tables()) {
    const TensorClaim& claim = plan.claims()[item.claim];
    item.out->resize(claim.elements());
    for (size_t i = 0; i < item.out->size(); ++i)
      (*item.out)[i] = static_cast<int32_t>(random_bits(seed + i) % item.limit);
  }
}

}  // namespace

uint64_t random_model_bytes(const ModelConfig& config, const KernelTable& table,
                            const RandomModelOptions& options) {
  ModelWeights weights;
  return total_bytes(make_load_plan(config, weights), table, options);
}

Result<std::unique_ptr<RandomModel>> make_random_model(const ModelConfig& config, const KernelTable& table,
                                                       ThreadPool& pool, const RandomModelOptions& options) {
  auto model = std::make_unique<RandomModel>();
  const LoadPlan plan = make_load_plan(config, model->weights);
  const uint64_t need = total_bytes(plan, table, options);
  const MemoryBudget have = MemoryBudget::detect();
  if (need > (options.most_bytes != 0 ? options.most_bytes : have.available())) {
    return make_error(ErrorCode::resource_exhausted,
                      fmt::format("the weights of {} layers take {} as {} and {} are available; a smaller "
                                  "measure.layers or narrower measure.weights would do",
                                  config.num_layers, bytes_text(need), pack_format_name(options.experts),
                                  options.most_bytes != 0 ? bytes_text(options.most_bytes) : have.text()));
  }
  TANDEM_TRY(place(plan, table, options, *model));
  TANDEM_TRY(fill_packed(plan, table, pool, options));
  fill_copies(plan, pool, *model, options.seed);
  model->weights.resident_bytes = need;
  return model;
}

}  // namespace tandem::bench
