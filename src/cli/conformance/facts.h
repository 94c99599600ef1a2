// RankFacts: what the rank under test says of itself in its carrier hello and hello_ack; and requests that
// fit it. Every request and every expectation of the cases follows from these facts, so that the cases need
// no model files. Values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/conformance/connection.h"
#include "cli/conformance/raw_frame.h"
#include "kernels/activation_format.h"

namespace tandem::conformance {

struct RankFacts {
  CarrierNumbers carrier;
  std::vector<std::pair<std::string, std::string>> settings;  // without peer.*, in the rank's order
  std::vector<uint32_t> pieces;                               // [count, 6]
  std::string peer_role, peer_name;
  uint32_t peer_incarnation = 0;

  uint32_t hidden_size = 0, top_k = 0, num_experts = 0, vocab_size = 0, num_layers = 0;
  uint32_t moe_intermediate_size = 0;
  std::vector<uint16_t> moe_layers;
  bool gate_on_attention = false, token_ids = false, shared_on_ffn = false, deterministic = false,
       graph = false;
  DType activation_dtype = DType::bf16, reply_dtype = DType::bf16;
  ActivationFormat activation_format = ActivationFormat::plain;
  std::vector<uint32_t> capture_sizes;

  // Of hello_ack's text. Refused: a value that is none of the page's, or a rank of a deployment of several.
  static Result<RankFacts> parse(const std::string& text);
  std::string value(const std::string& key) const;
  // A hello's text with these settings.
  std::string hello_text(const std::string& role = "attention") const;
};

struct RequestShape {
  std::vector<uint32_t> rows;  // each number is a row of its own: equal numbers are equal rows
  uint16_t layer = 0;
  uint32_t step = 1;
  uint16_t flags = 0;
};

// A request that the rank must serve, session and incarnation left 0. Rows, experts, weights and token ids
// follow from the row's number alone.
RawFrame make_request(const RankFacts& facts, const RequestShape& shape);
// [rows, hidden] as floats of bf16 or float32; empty in a quantised format.
std::vector<float> row_values(const RankFacts& facts, uint32_t row);
std::vector<int32_t> row_experts(const RankFacts& facts, uint32_t row);
std::vector<float> row_weights(const RankFacts& facts, uint32_t row);

}  // namespace tandem::conformance
