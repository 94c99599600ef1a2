// SplitSettings: everything that an attention rank and an FFN rank must agree on, as values; and as the
// ordered key/value list that the handshake compares. Each side derives its own from its model folder and its
// options; nothing is copied from the peer. Values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "model/model_config.h"
#include "moe/expert_map.h"
#include "moe/ffn_port.h"
#include "transport/endpoint.h"

namespace tandem {

struct SplitSettings {
  uint64_t model_fingerprint = 0;
  uint32_t hidden_size = 0, num_layers = 0, vocab_size = 0;
  uint32_t num_draft_layers = 0;  // behind the model's layers; moe_layers has them too
  uint32_t num_experts = 0, top_k = 0;
  uint32_t moe_intermediate_size = 0, shared_intermediate_size = 0;
  std::vector<uint16_t> moe_layers;  // ascending
  uint32_t num_hash_layers = 0;      // layers below this take their experts by token id

  bool gate_on_attention = false;
  bool shared_experts_on_attention = false;
  // FFN ranks of the deployment, and how attention reaches their experts (with one rank there is one way).
  uint32_t num_ffn_ranks = 1;
  std::string connector = "p2p";  // p2p, m2n or auto
  bool balanced_routing = false;  // a benchmark's routing instead of the gate's
  // Token ids travel beside the activation; only with the gate on FFN, and then always where the model has
  // hash layers: in every layer, so that a request has one layout for the whole run.
  bool token_ids = false;
  DType compute_dtype = DType::bf16;
  // In which numbers the experts are multiplied: as stored, dequantized, or the format that both sides
  // quantise to at load.
  std::string weights = "as stored";
  DType activation_dtype =
      DType::bf16;  // of the values on the wire; the compute dtype when the format is plain
  ActivationFormat activation_format = ActivationFormat::plain;
  DType reply_dtype = DType::bf16;  // bf16 or f32; f64 exactly when the sums are deterministic
  SumMode sum_mode = SumMode::plain;
  // Graph mode: attention captures decode programs of these sizes (rows), ascending, and FFN prepares for
  // them.
  bool graph = false;
  std::vector<uint32_t> capture_sizes;
  uint64_t numerics_id =
      0;  // of the kernel table. Must be equal for deterministic sums; otherwise a difference is logged

  // The part that the model decides; placement, dtypes and numerics stay at their defaults.
  static SplitSettings from_model(const ModelConfig& config, uint64_t fingerprint);
  // The dtypes that follow from compute dtype, sum mode and the format of activations.
  void set_dtypes(DType compute, SumMode mode, ActivationFormat format = ActivationFormat::plain);

  // A combination that is not supported is refused by name.
  Status validate() const;
  FfnTraits traits() const;
  ExpertMapShape map_shape() const;
  bool is_moe_layer(uint32_t layer) const;
  // The model has shared experts, and FFN ranks add them.
  bool shared_experts_on_ffn() const { return !shared_experts_on_attention && shared_intermediate_size > 0; }
  // Whether a request may name this program: a capture size of graph mode.
  bool is_captured(uint32_t program) const;

  // Endpoint options for these settings: slots that hold the largest tile in either direction and a
  // handshake. `slots`: credits in each direction.
  EndpointOptions endpoint_options(uint32_t slots) const;
};

struct Setting {
  std::string key, value;
  std::string_view remedy;  // what to do about a difference; local, never sent
};

std::vector<Setting> list_settings(const SplitSettings& settings);

}  // namespace tandem
