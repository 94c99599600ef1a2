#include "moe/moe_block.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/region_time.h"
#include "moe/expert_runner.h"
#include "moe/expert_slice.h"
#include "moe/router.h"

namespace tandem {
namespace {

// MoeBlockOptions::scratch_bytes is by default enough rows that every expert of a 128-expert layer sees tens
// of them, and small enough not to matter beside the weights.
constexpr uint32_t kMinRows = 64;    // one wire tile
constexpr uint32_t kMaxRows = 2048;  // beyond this a piece gains nothing

// Rows that one task of the router selects experts for: some tens of microseconds, against one for handing a
// task out.
constexpr uint32_t kRoutedRows = 16;

std::string layer_text(size_t layer) {
  return "layer " + std::to_string(layer);
}

// The gate of one layer, where this rank holds it. Its numbers are used without further checks.
Status check_gate(const MoeShape& shape, size_t index, const MoeLayerWeights& layer) {
  if (layer.router.empty()) return {};
  const RouterConfig& router = shape.router;
  if (!shape.is_hashed(static_cast<LayerIndex>(index))) {
    if (layer.logit_bias.size() != (router.has_logit_bias ? router.num_experts : 0))
      return make_error(ErrorCode::internal,
                        layer_text(index) + ": the router's logits and their biases differ");
    if (!router.has_bias || layer.router_bias.size() == router.num_experts) return {};
    return make_error(ErrorCode::internal, layer_text(index) + ": the router has no bias");
  }
  if (layer.hash_experts.size() != size_t{shape.vocab_size} * router.top_k) {
    return make_error(ErrorCode::internal, layer_text(index) + ": a table of " +
                                               std::to_string(layer.hash_experts.size()) + " experts for " +
                                               std::to_string(shape.vocab_size) + " tokens with top_k " +
                                               std::to_string(router.top_k));
  }
  for (size_t i = 0; i < layer.hash_experts.size(); ++i) {
    const int32_t id = layer.hash_experts[i];
    if (id >= 0 && static_cast<uint32_t>(id) < router.num_experts) continue;
    return make_error(ErrorCode::internal, layer_text(index) + ": the table gives expert " +
                                               std::to_string(id) + " to token " +
                                               std::to_string(i / router.top_k) + " of " +
                                               std::to_string(router.num_experts) + " experts");
  }
  return {};
}

}  // namespace

struct MoeBlock::Impl {
  MoeShape shape;
  MoeBlockOptions options;
  std::vector<const MoeLayerWeights*> layers;
  KernelRunner* runner = nullptr;
  ExpertRunner experts;
  uint32_t max_rows = 0;
  bool int8_weights = false;
  // [max_rows, hidden] of the compute dtype; none when rows come plain, or go to int8 weights.
  OwnedBuffer dequantized;
  std::vector<float> router_logits;    // [max_rows, num_experts]
  std::vector<int32_t> ids;            // [max_rows, top_k]
  std::vector<float> weights;          // [max_rows, top_k]
  std::vector<uint32_t> next_expert;   // [layers], of a balanced routing
  std::vector<float> held_weights;     // [max_rows, top_k]: 0 where the expert is held elsewhere
  std::vector<uint32_t> shared_index;  // rows of a part whose shared experts are added here
  MoeStats stats;
  // Read by reports while the block runs.
  std::atomic<uint64_t> router_calls{0}, router_nanoseconds{0};

  Status check_layer(LayerIndex layer) const {
    if (layer >= layers.size() || layers[layer] == nullptr) {
      return make_error(ErrorCode::invalid_argument, layer_text(layer) + " has no experts on this rank");
    }
    return {};
  }

  // What the gate of a hash layer needs besides the rows.
  Status check_tokens(LayerIndex layer, uint32_t rows, std::span<const int32_t> tokens) const {
    if (!shape.is_hashed(layer)) return {};
    if (tokens.size() != rows) {
      return make_error(ErrorCode::invalid_argument, layer_text(layer) + " takes experts by token id, and " +
                                                         std::to_string(tokens.size()) + " ids came with " +
                                                         std::to_string(rows) +
                                                         " rows; afd.send_token_ids would do");
    }
    for (uint32_t row = 0; row < rows; ++row) {
      if (tokens[row] >= 0 && static_cast<uint32_t>(tokens[row]) < shape.vocab_size) continue;
      return make_error(ErrorCode::out_of_range, layer_text(layer) + ", row " + std::to_string(row) +
                                                     ": token id " + std::to_string(tokens[row]) +
                                                     " outside a vocabulary of " +
                                                     std::to_string(shape.vocab_size));
    }
    return {};
  }

  // Every row by itself, from router_logits: in one thread they would be some percent of a long prefill.
  void route_all(const MoeLayerWeights& layer, uint32_t rows, std::span<int32_t> out_ids,
                 std::span<float> out_weights) {
    const uint32_t num_experts = shape.router.num_experts, top_k = shape.router.top_k;
    runner->pool().run((rows + kRoutedRows - 1) / kRoutedRows, [&](size_t task, int) {
      const uint32_t first = static_cast<uint32_t>(task) * kRoutedRows;
      const uint32_t count = std::min(kRoutedRows, rows - first);
      if (!layer.logit_bias.empty()) {
        for (size_t i = 0; i < size_t{count} * num_experts; ++i)
          router_logits[size_t{first} * num_experts + i] += layer.logit_bias[i % num_experts];
      }
      route(shape.router,
            std::span(router_logits).subspan(size_t{first} * num_experts, size_t{count} * num_experts),
            layer.router_bias, count, out_ids.subspan(size_t{first} * top_k, size_t{count} * top_k),
            out_weights.subspan(size_t{first} * top_k, size_t{count} * top_k));
    });
  }

  // `tokens` [rows], checked; unused but in hash layers.
  void route_piece(LayerIndex index, uint32_t rows, ActivationView in, std::span<const int32_t> tokens,
                   std::span<int32_t> out_ids, std::span<float> out_weights) {
    const MoeLayerWeights& layer = *layers[index];
    const Instant start = now();
    MatmulArgs args;
    args.weights = {&layer.router, 1};
    args.in = in;
    args.out = {DType::f32, router_logits.data(), shape.router.num_experts};
    args.rows = rows;
    {
      const TimeProfile::Scope scope(runner->profile(), "router");
      runner->run(runner->table().matmul, args);
    }
    const TimeProfile::Scope scope(runner->profile(), "top_k");
    if (shape.is_hashed(index)) {
      const RegionTimer timer;
      route_by_token(shape.router, router_logits, tokens, layer.hash_experts, rows, out_ids, out_weights);
    } else {
      route_all(layer, rows, out_ids, out_weights);
    }
    const RegionTimer timer;
    // The router runs all the same: what it costs belongs to what a benchmark measures.
    if (options.balanced_routing) {
      uint32_t& next = next_expert[index];
      next = route_balanced(shape.router, next, rows, out_ids, out_weights);
    }
    router_calls.fetch_add(1, std::memory_order_relaxed);
    router_nanoseconds.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(now() - start).count()),
                                 std::memory_order_relaxed);
  }

  void combine(uint32_t rows, uint32_t top_k, const float* slot_weights, const float* shared,
               const uint8_t* shared_rows, std::byte* out) {
    CombineArgs args;
    args.mode = options.sum_mode;
    args.rows = rows;
    args.hidden = shape.hidden_size;
    args.top_k = top_k;
    args.slots = experts.slot_outputs();
    args.exact_slots = experts.exact_slot_outputs();
    args.weights = slot_weights;
    args.shared = shared;
    args.shared_rows = shared_rows;
    args.out_dtype = options.reply_dtype;
    args.out = out;
    const TimeProfile::Scope scope(runner->profile(), "combine");
    runner->run(runner->table().combine, args);
  }

  // Rows whose expert lives on another rank weigh nothing here.
  const float* weights_of_held(const MoeLayerWeights& layer, const RoutingView& routing) {
    for (size_t i = 0; i < routing.ids.size(); ++i) {
      held_weights[i] =
          layer.experts[static_cast<size_t>(routing.ids[i])].empty() ? 0.0f : routing.weights[i];
    }
    return held_weights.data();
  }

  // Applies the shared experts to the rows that count here; whether there are any.
  bool run_shared_rows(const MoeLayerWeights& layer, uint32_t rows, ActivationView in, bool partial,
                       std::span<const uint8_t> shared_rows) {
    if (!options.runs_shared_experts || shape.shared_intermediate_size == 0) return false;
    const TimeProfile::Scope scope(runner->profile(), "shared");
    if (!partial) {
      experts.run_mlp(layer.shared, rows, in, layer.shared_gate);
      return true;
    }
    shared_index.clear();
    for (uint32_t row = 0; row < shared_rows.size(); ++row) {
      if (shared_rows[row] != 0) shared_index.push_back(row);
    }
    if (!shared_index.empty()) experts.run_mlp(layer.shared, shared_index, in, layer.shared_gate);
    return !shared_index.empty();
  }

  void run_piece(const MoeLayerWeights& layer, uint32_t rows, ActivationView in, const RoutingView& routing,
                 bool partial, std::span<const uint8_t> shared_rows, const std::function<void()>* between,
                 std::byte* out) {
    ExpertRunner::Ran ran;
    {
      const TimeProfile::Scope scope(runner->profile(), "routed");
      ran = experts.run_routed(layer.experts, rows, in, routing, between);
    }
    stats.experts_read += ran.experts;
    stats.expert_rows += ran.slots;
    stats.bytes_read += ran.bytes;
    const bool shared = run_shared_rows(layer, rows, in, partial, shared_rows);
    if (shared) stats.bytes_read += layer.shared.gate_up.bytes + layer.shared.down.bytes;
    combine(rows, routing.top_k, weights_of_held(layer, routing), shared ? experts.mlp_outputs() : nullptr,
            partial ? shared_rows.data() : nullptr, out);
  }

  // Calls body(first row, rows of the piece) until all rows are done.
  template <class Body>
  void for_pieces(uint32_t rows, Body&& body) {
    for (uint32_t first = 0; first < rows; first += max_rows) body(first, std::min(max_rows, rows - first));
  }

  // The rows of a piece as the experts take them: where they lie, or dequantised.
  ActivationView load_rows(const ActivationView& in, uint32_t first, uint32_t rows) {
    if (!is_quantized(in.format) || int8_weights) return rows_from(in, first);
    DequantizeArgs args;
    args.in = rows_from(in, first);
    args.out = {options.compute_dtype, dequantized.data(), shape.hidden_size};
    args.rows = rows;
    args.cols = shape.hidden_size;
    runner->run(runner->table().dequantize_rows, args);
    return {options.compute_dtype, dequantized.data(), shape.hidden_size};
  }
  size_t reply_offset(uint32_t first) const {
    return dtype_bytes(options.reply_dtype, size_t{first} * shape.hidden_size);
  }

  Status check_rows(uint32_t rows, const ActivationView& in, ActivationFormat format,
                    const Buffer& out) const {
    if (const Status fits = check_activation(in, format, options.compute_dtype, shape.hidden_size); !fits)
      return make_error(fits.error().code, "experts: " + fits.error().message);
    if (out.space == MemorySpace::device)
      return make_error(ErrorCode::unsupported, "experts: a device buffer on a CPU rank");
    if (out.bytes < reply_offset(rows)) {
      return make_error(ErrorCode::invalid_argument, "experts: " + std::to_string(out.bytes) +
                                                         " bytes for a reply of " +
                                                         std::to_string(reply_offset(rows)));
    }
    return {};
  }
};

MoeBlock::MoeBlock(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MoeBlock::~MoeBlock() = default;
const MoeShape& MoeBlock::shape() const {
  return impl_->shape;
}
const MoeBlockOptions& MoeBlock::options() const {
  return impl_->options;
}
const MoeStats& MoeBlock::stats() const {
  return impl_->stats;
}
RouterTimes MoeBlock::router_times() const {
  return {impl_->router_calls.load(std::memory_order_relaxed),
          impl_->router_nanoseconds.load(std::memory_order_relaxed)};
}

Result<std::unique_ptr<MoeBlock>> MoeBlock::create(const MoeShape& shape,
                                                   std::span<const MoeLayerWeights* const> layers,
                                                   const MoeBlockOptions& options, KernelRunner& runner) {
  TANDEM_TRY(validate_router_config(shape.router));
  if ((options.sum_mode == SumMode::deterministic) != (options.reply_dtype == DType::f64)) {
    return make_error(ErrorCode::invalid_argument,
                      "experts: deterministic sums need float64 replies, and only they do");
  }
  if (options.routes && is_quantized(options.activation_format)) {
    return make_error(ErrorCode::unsupported,
                      "experts: " + std::string(activation_format_name(options.activation_format)) +
                          " activations where the router is: it must see the rows before they are rounded; "
                          "set compute_gate_on_attention, or send bf16");
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == nullptr) continue;
    if (!layers[i]->experts.empty() && layers[i]->experts.size() != shape.router.num_experts) {
      return make_error(ErrorCode::internal,
                        layer_text(i) + " has " + std::to_string(layers[i]->experts.size()) +
                            " expert entries for " + std::to_string(shape.router.num_experts));
    }
    for (const MlpWeights& expert : layers[i]->experts) {
      if (!expert.empty() && !is_slice(shape.moe_intermediate_size, {expert.row_begin, expert.row_end()})) {
        return make_error(ErrorCode::internal, layer_text(i) + ": rows " + std::to_string(expert.row_begin) +
                                                   ".." + std::to_string(expert.row_end()) +
                                                   " are no slice of " +
                                                   std::to_string(shape.moe_intermediate_size));
      }
    }
    if (options.routes && layers[i]->router.empty()) {
      return make_error(ErrorCode::internal,
                        layer_text(i) + ": this rank routes but holds no router weights");
    }
    TANDEM_TRY(check_gate(shape, i, *layers[i]));
    if (options.runs_shared_experts && shape.shared_intermediate_size > 0 && layers[i]->shared.empty()) {
      return make_error(ErrorCode::internal,
                        layer_text(i) + ": this rank runs the shared expert but does not hold it");
    }
    if (shape.gates_shared_expert && !layers[i]->shared.empty() &&
        layers[i]->shared_gate.size() != shape.hidden_size) {
      return make_error(ErrorCode::internal,
                        layer_text(i) + ": a gate of " + std::to_string(layers[i]->shared_gate.size()) +
                            " values for the shared expert of a row of " + std::to_string(shape.hidden_size));
    }
  }

  auto impl = std::make_unique<Impl>();
  impl->shape = shape;
  impl->options = options;
  impl->layers.assign(layers.begin(), layers.end());
  impl->runner = &runner;

  ExpertRunner::Sizes sizes;
  sizes.hidden_size = shape.hidden_size;
  sizes.intermediate_size = std::max(shape.moe_intermediate_size, shape.shared_intermediate_size);
  sizes.num_experts = shape.router.num_experts;
  sizes.top_k = shape.router.top_k;
  sizes.compute_dtype = options.compute_dtype;
  sizes.piece_limit = options.piece_limit;
  sizes.swiglu_limit = shape.swiglu_limit;
  sizes.swiglu_alpha = shape.swiglu_alpha;
  if (options.sum_mode == SumMode::deterministic) {
    sizes.contribution_rows = slice_granule(shape.moe_intermediate_size);
  }
  for (const MoeLayerWeights* layer : layers) {
    if (layer == nullptr) continue;
    const auto is_int8 = [](const MlpWeights& mlp) {
      return mlp.gate_up.format == PackFormat::int8 || mlp.down.format == PackFormat::int8;
    };
    impl->int8_weights |= is_int8(layer->shared) || std::ranges::any_of(layer->experts, is_int8);
  }
  if (impl->int8_weights) {
    if (options.activation_format == ActivationFormat::fp8 ||
        options.activation_format == ActivationFormat::mxfp8) {
      return make_error(
          ErrorCode::unsupported,
          "experts: " + std::string(activation_format_name(options.activation_format)) +
              " activations and int8 weights: rows would be rounded twice; int8 or bf16 would do");
    }
    sizes.int8_block_cols = slice_granule(shape.moe_intermediate_size);
  }
  sizes.max_rows = static_cast<uint32_t>(
      std::clamp<size_t>(options.scratch_bytes / ExpertRunner::bytes_per_row(sizes), kMinRows, kMaxRows));
  impl->max_rows = sizes.max_rows;
  TANDEM_ASSIGN(impl->experts, ExpertRunner::create(sizes, runner));
  if (is_quantized(options.activation_format) && !impl->int8_weights) {
    TANDEM_ASSIGN(impl->dequantized, OwnedBuffer::allocate(dtype_bytes(
                                         options.compute_dtype, size_t{sizes.max_rows} * shape.hidden_size)));
  }
  impl->router_logits.resize(size_t{sizes.max_rows} * shape.router.num_experts);
  impl->next_expert.resize(layers.size());
  impl->ids.resize(size_t{sizes.max_rows} * shape.router.top_k);
  impl->weights.resize(size_t{sizes.max_rows} * shape.router.top_k);
  impl->held_weights.resize(size_t{sizes.max_rows} * shape.router.top_k);
  impl->shared_index.reserve(sizes.max_rows);
  return std::unique_ptr<MoeBlock>(new MoeBlock(std::move(impl)));
}

Status MoeBlock::run(const MoeRequest& request) {
  Impl& impl = *impl_;
  TANDEM_TRY(impl.check_layer(request.layer));
  TANDEM_TRY(impl.check_rows(request.rows, request.in, impl.options.activation_format, request.out));
  const MoeLayerWeights& layer = *impl.layers[request.layer];
  if (layer.experts.empty()) {
    return make_error(ErrorCode::internal, layer_text(request.layer) + ": this rank holds no routed experts");
  }
  const uint32_t top_k = impl.shape.router.top_k;
  const auto* external = std::get_if<RoutingView>(&request.routing);
  const bool wants_routing = request.partial || !impl.options.routes;
  if ((external != nullptr) != wants_routing) {
    return make_error(ErrorCode::invalid_argument,
                      request.partial ? "experts: a part of rows without a routing"
                      : impl.options.routes
                          ? "experts: a routing came along, but the gate is on this side"
                          : "experts: no routing came along, and the gate is on the attention side");
  }
  if (external != nullptr) {
    if (external->top_k != top_k || external->ids.size() != size_t{request.rows} * top_k) {
      return make_error(ErrorCode::invalid_argument,
                        "experts: a routing of " + std::to_string(external->ids.size()) + " ids, top_k " +
                            std::to_string(external->top_k) + ", for " + std::to_string(request.rows) +
                            " rows and top_k " + std::to_string(top_k));
    }
    TANDEM_TRY(validate_routing(impl.shape.router.num_experts, top_k, external->ids, external->weights,
                                request.partial ? EmptyRows::allowed : EmptyRows::refused));
  }
  const auto* token_ids = std::get_if<TokenIds>(&request.routing);
  // Other layers have no use for them.
  const bool hashed = token_ids != nullptr && impl.shape.is_hashed(request.layer);
  const std::span<const int32_t> tokens = hashed ? token_ids->ids : std::span<const int32_t>();
  if (external == nullptr) TANDEM_TRY(impl.check_tokens(request.layer, request.rows, tokens));
  if (!request.shared_rows.empty() && request.shared_rows.size() != request.rows) {
    return make_error(ErrorCode::invalid_argument, "experts: shared_rows of " +
                                                       std::to_string(request.shared_rows.size()) + " for " +
                                                       std::to_string(request.rows) + " rows");
  }
  ++impl.stats.calls;
  impl.stats.rows += request.rows;
  impl.for_pieces(request.rows, [&](uint32_t first, uint32_t rows) {
    const ActivationView in = impl.load_rows(request.in, first, rows);
    const size_t begin = size_t{first} * top_k;
    const size_t count = size_t{rows} * top_k;
    RoutingView routing;
    routing.top_k = top_k;
    if (external != nullptr) {
      routing.ids = external->ids.subspan(begin, count);
      routing.weights = external->weights.subspan(begin, count);
    } else {
      const std::span<int32_t> ids(impl.ids.data(), count);
      const std::span<float> weights(impl.weights.data(), count);
      impl.route_piece(request.layer, rows, in, tokens.empty() ? tokens : tokens.subspan(first, rows), ids,
                       weights);
      routing.ids = ids;
      routing.weights = weights;
    }
    const auto shared_rows =
        request.shared_rows.empty() ? request.shared_rows : request.shared_rows.subspan(first, rows);
    impl.run_piece(layer, rows, in, routing, request.partial, shared_rows, request.between,
                   request.out.data + impl.reply_offset(first));
  });
  return {};
}

Status MoeBlock::route_rows(LayerIndex layer, uint32_t rows, ActivationView in, std::span<int32_t> ids,
                            std::span<float> weights, std::span<const int32_t> tokens) {
  Impl& impl = *impl_;
  TANDEM_TRY(impl.check_layer(layer));
  if (impl.layers[layer]->router.empty()) {
    return make_error(ErrorCode::internal, layer_text(layer) + ": this rank holds no router weights");
  }
  if (!impl.shape.is_hashed(layer)) tokens = {};
  TANDEM_TRY(impl.check_tokens(layer, rows, tokens));
  const uint32_t top_k = impl.shape.router.top_k;
  impl.for_pieces(rows, [&](uint32_t first, uint32_t count) {
    impl.route_piece(layer, count, rows_from(in, first),
                     tokens.empty() ? tokens : tokens.subspan(first, count),
                     ids.subspan(size_t{first} * top_k, size_t{count} * top_k),
                     weights.subspan(size_t{first} * top_k, size_t{count} * top_k));
  });
  return {};
}

Status MoeBlock::run_shared(LayerIndex layer, uint32_t rows, ActivationView in, Buffer out) {
  Impl& impl = *impl_;
  TANDEM_TRY(impl.check_layer(layer));
  TANDEM_TRY(impl.check_rows(rows, in, ActivationFormat::plain, out));
  if (impl.layers[layer]->shared.empty()) {
    return make_error(ErrorCode::internal, layer_text(layer) + ": this rank holds no shared expert");
  }
  impl.for_pieces(rows, [&](uint32_t first, uint32_t count) {
    impl.experts.run_mlp(impl.layers[layer]->shared, count, rows_from(in, first),
                         impl.layers[layer]->shared_gate);
    impl.combine(count, 0, nullptr, impl.experts.mlp_outputs(), nullptr, out.data + impl.reply_offset(first));
  });
  return {};
}

}  // namespace tandem
