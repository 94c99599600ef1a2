#include "afd/split_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "afd/frame.h"

namespace tandem {
namespace {

constexpr std::string_view kSameModel = "load the same model folder on both sides";
constexpr std::string_view kSameAfd = "give both sides the same afd options";
constexpr std::string_view kSameNumerics =
    "run both sides with the same TANDEM_ISA, or without --deterministic";

// A hello with settings and, where a rank holds every second expert of a large model, some thousand piece
// ranges.
constexpr size_t kMinSlotBytes = size_t{256} << 10;
// Header, descriptors, reply times, alignment, and expert ids and weights: far below this for 64 rows.
constexpr size_t kTileOverheadBytes = 4096;

// A capture size costs buffers on both sides; decode steps have at most some thousand rows.
constexpr uint32_t kMaxCaptureSize = 4096;

std::string placement(bool on_attention) {
  return on_attention ? "attention" : "ffn";
}

// "3-60" or "0,2,4": short for the usual case, complete for every other.
std::string layer_list(const std::vector<uint16_t>& layers) {
  if (layers.size() > 1 && layers.back() - layers.front() + 1u == layers.size()) {
    return fmt::format("{}-{}", layers.front(), layers.back());
  }
  return fmt::format("{}", fmt::join(layers, ","));
}

}  // namespace

SplitSettings SplitSettings::from_model(const ModelConfig& config, uint64_t fingerprint) {
  SplitSettings settings;
  settings.model_fingerprint = fingerprint;
  settings.hidden_size = config.hidden_size;
  settings.num_layers = config.num_layers;
  settings.num_draft_layers = config.num_draft_layers;
  settings.vocab_size = config.vocab_size;
  settings.num_experts = config.router.num_experts;
  settings.top_k = config.router.top_k;
  settings.moe_intermediate_size = config.moe_intermediate_size;
  settings.shared_intermediate_size = config.shared_intermediate_size;
  settings.num_hash_layers = config.num_hash_layers;
  for (uint32_t layer = 0; layer < config.total_layers(); ++layer) {
    if (config.is_moe(layer)) settings.moe_layers.push_back(static_cast<uint16_t>(layer));
  }
  return settings;
}

void SplitSettings::set_dtypes(DType compute, SumMode mode, ActivationFormat format) {
  compute_dtype = compute;
  activation_dtype = value_dtype(format, compute);
  activation_format = format;
  sum_mode = mode;
  reply_dtype = mode == SumMode::deterministic ? DType::f64 : compute;
}

Status SplitSettings::validate() const {
  const auto refuse = [](std::string message) {
    return make_error(ErrorCode::unsupported, std::move(message));
  };
  if (moe_layers.empty())
    return refuse("afd: the model has no MoE layer, there is nothing to split: run it colocated");
  if (hidden_size == 0 || num_experts == 0 || top_k == 0 || top_k > num_experts) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("afd: hidden_size {}, num_experts {}, top_k {}", hidden_size, num_experts, top_k));
  }
  if (num_layers > UINT16_MAX || num_experts > UINT16_MAX) {
    return refuse(
        fmt::format("afd: {} layers, {} experts: the wire numbers both in 16 bits", num_layers, num_experts));
  }
  if (compute_dtype != DType::bf16 && compute_dtype != DType::f32) {
    return refuse(fmt::format("compute dtype {}: bf16 or f32 would do", dtype_name(compute_dtype)));
  }
  if (activation_dtype != value_dtype(activation_format, compute_dtype)) {
    return refuse(fmt::format(
        "activation_dtype {} in format {} with compute dtype {}: send the compute dtype, or fp8, mxfp8 or "
        "int8",
        dtype_name(activation_dtype), activation_format_name(activation_format), dtype_name(compute_dtype)));
  }
  if (is_quantized(activation_format) && !gate_on_attention) {
    return refuse(
        fmt::format("activation_dtype {} with the gate on FFN: the router must see the rows before they are "
                    "rounded; set compute_gate_on_attention, or send bf16",
                    activation_format_name(activation_format)));
  }
  if ((sum_mode == SumMode::deterministic) != (reply_dtype == DType::f64)) {
    return refuse(
        fmt::format("reply dtype {} with {} sums: deterministic sums travel as f64, others as bf16 or f32",
                    dtype_name(reply_dtype), sum_mode == SumMode::deterministic ? "deterministic" : "plain"));
  }
  if (reply_dtype != DType::f64 && reply_dtype != DType::bf16 && reply_dtype != DType::f32) {
    return refuse(fmt::format("reply dtype {}: bf16 or f32 would do", dtype_name(reply_dtype)));
  }
  if (num_ffn_ranks == 0 || num_ffn_ranks > UINT16_MAX) {
    return make_error(ErrorCode::invalid_argument, fmt::format("afd: {} FFN ranks", num_ffn_ranks));
  }
  if (connector != "p2p" && connector != "m2n" && connector != "auto") {
    return refuse(fmt::format("connector {} between processes: p2p, m2n or auto would do", connector));
  }
  if (graph) {
    if (capture_sizes.empty()) return refuse("capture_sizes: none; graph mode needs at least one");
    uint32_t before = 0;
    for (const uint32_t size : capture_sizes) {
      if (size <= before || size > kMaxCaptureSize) {
        return refuse(fmt::format("capture_sizes {}: ascending numbers of rows would do, 1 to {}",
                                  fmt::join(capture_sizes, ","), kMaxCaptureSize));
      }
      before = size;
    }
  }
  if (num_hash_layers != 0 && !gate_on_attention && !token_ids) {
    return refuse(fmt::format(
        "no token ids with the gate on FFN: the model takes the experts of {} layers by token id; "
        "set send_token_ids, or compute_gate_on_attention",
        num_hash_layers));
  }
  if (token_ids && gate_on_attention) {
    return refuse(
        "token ids beside compute_gate_on_attention: the routing already says which experts, send one of "
        "them");
  }
  return {};
}

bool SplitSettings::is_captured(uint32_t program) const {
  return graph && std::ranges::binary_search(capture_sizes, program);
}

FfnTraits SplitSettings::traits() const {
  return FfnTraits{.routes = !gate_on_attention,
                   .runs_shared_experts = !shared_experts_on_attention,
                   .wants_token_ids = token_ids,
                   .activation_dtype = activation_dtype,
                   .activation_format = activation_format,
                   .reply_dtype = reply_dtype,
                   .sum_mode = sum_mode};
}

ExpertMapShape SplitSettings::map_shape() const {
  return ExpertMapShape{
      .moe_layers = moe_layers, .num_experts = num_experts, .intermediate_size = moe_intermediate_size};
}

bool SplitSettings::is_moe_layer(uint32_t layer) const {
  return layer <= UINT16_MAX && std::ranges::binary_search(moe_layers, static_cast<uint16_t>(layer));
}

EndpointOptions SplitSettings::endpoint_options(uint32_t slots) const {
  EndpointOptions options;
  options.slots_per_channel = slots;
  // float64 replies are the largest tiles. The size follows from the model alone and in powers of two, so
  // that a difference of options reaches the handshake, which names it, instead of failing as a difference of
  // slot sizes.
  const size_t tile = size_t{kMaxTileRows} * (hidden_size * sizeof(double) + top_k * 8) + kTileOverheadBytes;
  options.slot_bytes = std::max(kMinSlotBytes, std::bit_ceil(tile));
  options.slot_bytes_remedy = kSameModel;
  return options;
}

std::vector<Setting> list_settings(const SplitSettings& s) {
  return {
      {"protocol", fmt::format("{}.{}", kProtocolMajor, kProtocolMinor),
       "run the same release on both sides"},
      {"model_fingerprint", fmt::format("{:016x}", s.model_fingerprint), kSameModel},
      {"hidden_size", fmt::format("{}", s.hidden_size), kSameModel},
      {"num_layers", fmt::format("{}", s.num_layers), kSameModel},
      {"draft_layers", fmt::format("{}", s.num_draft_layers), "set speculative alike on both sides"},
      {"moe_layers", layer_list(s.moe_layers), kSameModel},
      {"hash_layers", fmt::format("{}", s.num_hash_layers), kSameModel},
      {"num_experts", fmt::format("{}", s.num_experts), kSameModel},
      {"top_k", fmt::format("{}", s.top_k), kSameModel},
      {"moe_intermediate_size", fmt::format("{}", s.moe_intermediate_size), kSameModel},
      {"shared_intermediate_size", fmt::format("{}", s.shared_intermediate_size), kSameModel},
      {"vocab_size", fmt::format("{}", s.vocab_size), kSameModel},
      {"gate", placement(s.gate_on_attention), "set compute_gate_on_attention alike on both sides"},
      {"shared_experts", placement(s.shared_experts_on_attention),
       "set compute_shared_experts_on_attention alike on both sides"},
      {"num_ffn_ranks", fmt::format("{}", s.num_ffn_ranks), "name the same FFN ranks on all ranks"},
      {"connector", s.num_ffn_ranks > 1 ? s.connector : "any", "set connector alike on all ranks"},
      {"routing", s.balanced_routing ? "balanced" : "model", "set balanced_routing alike on both sides"},
      {"token_ids", s.token_ids ? "yes" : "no", "set send_token_ids alike on both sides"},
      {"compute_dtype", std::string(dtype_name(s.compute_dtype)), "set compute_dtype alike on both sides"},
      {"weights", s.weights, "set weights alike on both sides"},
      {"activation_dtype",
       std::string(is_quantized(s.activation_format) ? activation_format_name(s.activation_format)
                                                     : dtype_name(s.activation_dtype)),
       "set activation_dtype alike on both sides"},
      {"reply_dtype", std::string(dtype_name(s.reply_dtype)), kSameAfd},
      {"deterministic", s.sum_mode == SumMode::deterministic ? "yes" : "no",
       "set deterministic alike on both sides"},
      {"execution", s.graph ? "graph" : "eager", "set execution alike on both sides"},
      {"capture_sizes", s.graph ? fmt::format("{}", fmt::join(s.capture_sizes, ",")) : "none",
       "set capture_sizes alike on both sides"},
      {"tile_rows", fmt::format("{}", kMaxTileRows), "run the same release on both sides"},
      {"numerics_id", fmt::format("{:016x}", s.numerics_id), kSameNumerics},
  };
}

}  // namespace tandem
