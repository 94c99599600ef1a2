#include "moe/expert_runner.h"

#include <algorithm>
#include <numeric>

#include "moe/shared_gate.h"

namespace tandem {

namespace {

// Weight of the newest piece in the measured speed: a machine that gets slower is seen within some pieces.
constexpr double kMeasureWeight = 0.25;
// Rows for which computing takes about as long as reading the weights.
constexpr double kRowsPerRead = 16;

// In weights read: a piece reads each weight, and computes with it for every row.
double group_work(const ExpertGroup& group) {
  const double weights = static_cast<double>(group.gate_up->rows) * group.gate_up->cols +
                         static_cast<double>(group.down->rows) * group.down->cols;
  return weights * (1 + group.count / kRowsPerRead);
}

}  // namespace

namespace {

const float* bias_of(const std::vector<float>& bias) {
  return bias.empty() ? nullptr : bias.data();
}

size_t slot_output_bytes(const ExpertRunner::Sizes& sizes) {
  return sizes.hidden_size * (sizes.contribution_rows != 0 ? sizeof(double) : sizeof(float));
}

size_t int8_blocks(const ExpertRunner::Sizes& sizes) {
  return (size_t{sizes.intermediate_size} + sizes.int8_block_cols - 1) / sizes.int8_block_cols;
}

}  // namespace

size_t ExpertRunner::bytes_per_row(const Sizes& sizes) {
  const size_t slots = std::max(sizes.top_k, 1u);
  return slots * (dtype_bytes(sizes.compute_dtype, sizes.intermediate_size) + 2 * sizeof(uint32_t)) +
         size_t{sizes.top_k} * slot_output_bytes(sizes) + sizes.hidden_size * sizeof(float) +
         (sizes.int8_block_cols == 0
              ? 0
              : sizes.hidden_size + sizeof(float) +
                    slots * (sizes.intermediate_size + int8_blocks(sizes) * sizeof(float)));
}

Result<ExpertRunner> ExpertRunner::create(const Sizes& sizes, KernelRunner& runner) {
  ExpertRunner created;
  created.sizes_ = sizes;
  created.runner_ = &runner;
  const size_t slots = size_t{sizes.max_rows} * std::max(sizes.top_k, 1u);
  TANDEM_ASSIGN(created.intermediate_,
                OwnedBuffer::allocate(slots * dtype_bytes(sizes.compute_dtype, sizes.intermediate_size)));
  TANDEM_ASSIGN(created.slot_outputs_,
                OwnedBuffer::allocate(size_t{sizes.max_rows} * sizes.top_k * slot_output_bytes(sizes)));
  TANDEM_ASSIGN(created.mlp_outputs_,
                OwnedBuffer::allocate(size_t{sizes.max_rows} * sizes.hidden_size * sizeof(float)));
  if (created.int8()) {
    TANDEM_ASSIGN(created.int8_input_, OwnedBuffer::allocate(size_t{sizes.max_rows} * sizes.hidden_size));
    TANDEM_ASSIGN(created.int8_input_scales_, OwnedBuffer::allocate(sizes.max_rows * sizeof(float)));
    TANDEM_ASSIGN(created.int8_intermediate_, OwnedBuffer::allocate(slots * sizes.intermediate_size));
    TANDEM_ASSIGN(created.int8_intermediate_scales_,
                  OwnedBuffer::allocate(slots * int8_blocks(sizes) * sizeof(float)));
  }
  created.counts_.resize(sizes.num_experts);
  created.offsets_.resize(sizes.num_experts + 1);
  created.row_index_.resize(slots);
  created.slot_index_.resize(slots);
  created.identity_.resize(sizes.max_rows);
  std::iota(created.identity_.begin(), created.identity_.end(), 0u);
  created.groups_.reserve(std::max(sizes.num_experts, 1u) + slots / kPieceRows);
  return created;
}

void ExpertRunner::run_in_pieces(uint32_t intermediate_size, ActivationView in, GroupedDownArgs down,
                                 const std::function<void()>& between) {
  const double limit = std::chrono::duration<double>(sizes_.piece_limit).count();
  for (size_t begin = 0; begin < groups_.size();) {
    double work = group_work(groups_[begin]);
    size_t end = begin + 1;
    // Before anything was measured a piece is one group.
    while (seconds_per_work_ > 0 && end < groups_.size() &&
           (work + group_work(groups_[end])) * seconds_per_work_ <= limit) {
      work += group_work(groups_[end++]);
    }
    const Instant start = now();
    run_groups(std::span(groups_).subspan(begin, end - begin), intermediate_size, in, down);
    const double measured = seconds_since(start) / work;
    seconds_per_work_ += (measured - seconds_per_work_) * (seconds_per_work_ > 0 ? kMeasureWeight : 1);
    begin = end;
    if (begin < groups_.size()) between();
  }
}

ExpertRunner::Ran ExpertRunner::run_routed(std::span<const MlpWeights> experts, uint32_t rows,
                                           ActivationView in, const RoutingView& routing,
                                           const std::function<void()>* between) {
  const uint32_t slots = rows * routing.top_k;
  std::fill(counts_.begin(), counts_.end(), 0u);
  for (uint32_t slot = 0; slot < slots; ++slot) {
    if (routing.weights[slot] != 0.0f) ++counts_[static_cast<size_t>(routing.ids[slot])];
  }
  std::partial_sum(counts_.begin(), counts_.end(), offsets_.begin() + 1);

  // Counting sort: rows of one expert in ascending order, so that a tile reads its activations forwards.
  std::copy(offsets_.begin(), offsets_.end() - 1, counts_.begin());
  for (uint32_t slot = 0; slot < slots; ++slot) {
    if (routing.weights[slot] == 0.0f) continue;  // the sum leaves it out, or another rank has it
    const uint32_t at = counts_[static_cast<size_t>(routing.ids[slot])]++;
    row_index_[at] = slot / routing.top_k;
    slot_index_[at] = slot;
  }

  groups_.clear();
  Ran ran;
  uint32_t intermediate = 0;
  for (size_t e = 0; e < experts.size(); ++e) {
    const uint32_t count = offsets_[e + 1] - offsets_[e];
    if (count == 0 || experts[e].empty()) continue;
    const uint32_t most = between != nullptr ? kPieceRows : count;
    for (uint32_t first = 0; first < count; first += most) {
      groups_.push_back({&experts[e].gate_up, &experts[e].down, &row_index_[offsets_[e] + first],
                         &slot_index_[offsets_[e] + first], std::min(most, count - first),
                         bias_of(experts[e].gate_up_bias), bias_of(experts[e].down_bias)});
    }
    ++ran.experts;
    ran.bytes += experts[e].gate_up.bytes + experts[e].down.bytes;
    intermediate = std::max(intermediate, experts[e].down.cols);
    ran.slots += count;
  }
  if (!groups_.empty()) in = quantized_input(*groups_.front().gate_up, rows, nullptr, in);
  GroupedDownArgs down;
  if (exact()) {
    down.contribution_cols = sizes_.contribution_rows;
    down.weights = routing.weights.data();
    down.exact_out = slot_outputs_.as<double>();
  } else {
    down.out = slot_outputs_.as<float>();
  }
  if (between != nullptr) {
    run_in_pieces(intermediate, in, down, *between);
  } else {
    run_groups(groups_, intermediate, in, down);
  }
  return ran;
}

void ExpertRunner::run_mlp(const MlpWeights& mlp, uint32_t rows, ActivationView in,
                           std::span<const float> gate) {
  run_mlp(mlp, std::span(identity_).first(rows), in, gate);
}

void ExpertRunner::run_mlp(const MlpWeights& mlp, std::span<const uint32_t> row_index, ActivationView in,
                           std::span<const float> gate) {
  const ExpertGroup group{&mlp.gate_up,
                          &mlp.down,
                          row_index.data(),
                          row_index.data(),
                          static_cast<uint32_t>(row_index.size()),
                          bias_of(mlp.gate_up_bias),
                          bias_of(mlp.down_bias)};
  GroupedDownArgs down;
  down.out = mlp_outputs_.as<float>();
  run_groups({&group, 1}, mlp.down.cols, quantized_input(mlp.gate_up, group.count, row_index.data(), in),
             down);
  if (!gate.empty()) gate_rows(gate, row_index, in, runner_->pool(), down.out);
}

ActivationView ExpertRunner::quantized_input(const PackedWeight& weight, uint32_t rows,
                                             const uint32_t* row_index, ActivationView in) {
  if (weight.format != PackFormat::int8 || in.format == ActivationFormat::int8) return in;
  const TimeProfile::Scope scope(runner_->profile(), "quantize");
  QuantizeArgs args;
  args.in = in;
  args.format = ActivationFormat::int8;
  args.values = int8_input_.data();
  args.scales = int8_input_scales_.data();
  args.rows = rows;
  args.cols = sizes_.hidden_size;
  args.row_index = row_index;
  runner_->run(runner_->table().quantize_rows, args);
  return {DType::i8, args.values, sizes_.hidden_size, args.format, args.scales, 1};
}

ActivationView ExpertRunner::quantized_intermediate(std::span<const ExpertGroup> groups,
                                                    uint32_t intermediate_size) {
  const TimeProfile::Scope scope(runner_->profile(), "quantize");
  QuantizeArgs args;
  args.in = {sizes_.compute_dtype, intermediate_.data(), intermediate_size};
  args.format = ActivationFormat::int8;
  args.values = int8_intermediate_.data();
  args.scales = int8_intermediate_scales_.data();
  args.cols = intermediate_size;
  args.block_cols = sizes_.int8_block_cols;
  // The slots of all groups lie one behind the other but for those of experts that are not here.
  for (size_t begin = 0; begin < groups.size();) {
    args.row_index = groups[begin].slots;
    args.rows = 0;
    for (; begin < groups.size() && groups[begin].slots == args.row_index + args.rows; ++begin)
      args.rows += groups[begin].count;
    runner_->run(runner_->table().quantize_rows, args);
  }
  const size_t blocks = (intermediate_size + args.block_cols - 1) / args.block_cols;
  return {DType::i8, args.values, intermediate_size, args.format, args.scales, blocks};
}

void ExpertRunner::run_groups(std::span<const ExpertGroup> groups, uint32_t intermediate_size,
                              ActivationView in, GroupedDownArgs down) {
  if (groups.empty()) return;
  GroupedGateUpArgs gate_up;
  gate_up.groups = groups;
  gate_up.kind = sizes_.swiglu_alpha > 0   ? MlpKind::scaled_swiglu
                 : sizes_.swiglu_limit > 0 ? MlpKind::clamped_swiglu
                                           : MlpKind::swiglu;
  gate_up.limit = sizes_.swiglu_limit;
  gate_up.alpha = sizes_.swiglu_alpha;
  gate_up.in = in;
  gate_up.intermediate = {sizes_.compute_dtype, intermediate_.data(), intermediate_size};
  {
    const TimeProfile::Scope scope(runner_->profile(), "gate_up");
    runner_->run(runner_->table().grouped_gate_up, gate_up);
  }

  down.groups = groups;
  down.intermediate = groups.front().down->format == PackFormat::int8
                          ? quantized_intermediate(groups, intermediate_size)
                          : ActivationView{sizes_.compute_dtype, intermediate_.data(), intermediate_size};
  down.scale_block_cols = sizes_.int8_block_cols;
  down.out_stride = sizes_.hidden_size;
  const TimeProfile::Scope scope(runner_->profile(), "down");
  runner_->run(runner_->table().grouped_down, down);
}

}  // namespace tandem
