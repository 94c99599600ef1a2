#include "cli/conformance/facts.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <sstream>

#include "base/bf16.h"

namespace tandem::conformance {
namespace {

std::optional<uint32_t> number(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::unexpected<Error> unfit(const std::string& key, const std::string& value, const std::string& wanted) {
  return make_error(ErrorCode::invalid_argument, fmt::format("hello_ack says {}={}, expected {}", key,
                                                             value.empty() ? "(nothing)" : value, wanted));
}

// "3-6" or "0,2,4".
Result<std::vector<uint16_t>> parse_layers(const std::string& text) {
  std::vector<uint16_t> layers;
  const size_t dash = text.find('-');
  if (dash != std::string::npos) {
    const auto first = number(text.substr(0, dash)), last = number(text.substr(dash + 1));
    if (!first || !last || *last > UINT16_MAX || *first > *last)
      return unfit("moe_layers", text, "first-last");
    for (uint32_t layer = *first; layer <= *last; ++layer) layers.push_back(static_cast<uint16_t>(layer));
    return layers;
  }
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto layer = number(word);
    if (!layer || *layer > UINT16_MAX) return unfit("moe_layers", text, "numbers with commas between them");
    layers.push_back(static_cast<uint16_t>(*layer));
  }
  if (layers.empty()) return unfit("moe_layers", text, "at least one layer");
  return layers;
}

uint32_t hash(uint32_t a, uint32_t b) {
  uint32_t x = a * 2654435761u ^ (b + 0x9e3779b9u) * 2246822519u;
  x ^= x >> 15;
  x *= 2654435761u;
  return x ^ x >> 13;
}

void append_float(Bytes& bytes, float value, DType dtype) {
  if (dtype == DType::f32) {
    const auto raw = std::as_bytes(std::span(&value, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  } else {
    const bf16 rounded = to_bf16(value);
    const auto raw = std::as_bytes(std::span(&rounded, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  }
}

// -1 to 1; of bf16's values.
float value_of(uint32_t row, uint32_t col) {
  return to_float(to_bf16(static_cast<float>(hash(row, col) % 2001) / 1000.0f - 1.0f));
}

RawPayload activation_of(const RankFacts& facts, const std::vector<uint32_t>& rows) {
  RawPayload payload{.role = PayloadRole::activation,
                     .dtype = facts.activation_dtype,
                     .rows = static_cast<uint32_t>(rows.size()),
                     .cols = facts.hidden_size};
  for (const uint32_t row : rows) {
    for (uint32_t col = 0; col < facts.hidden_size; ++col) {
      if (facts.activation_format == ActivationFormat::plain) {
        append_float(payload.data, value_of(row, col), facts.activation_dtype);
      } else {  // e4m3: up to 0x3f, which is 1.875; int8: small numbers; either sign
        const uint32_t bits = hash(row, col);
        const bool int8 = facts.activation_format == ActivationFormat::int8;
        const auto magnitude = static_cast<uint8_t>(bits % 0x40);
        const bool negative = (bits >> 8 & 1) != 0;
        payload.data.push_back(static_cast<std::byte>(int8 ? (negative ? -magnitude : magnitude)
                                                           : (negative ? magnitude | 0x80 : magnitude)));
      }
    }
  }
  return payload;
}

RawPayload scales_of(const RankFacts& facts, uint32_t rows) {
  const uint32_t cols = scale_cols(facts.activation_format, facts.hidden_size);
  RawPayload payload{.role = PayloadRole::activation_scale,
                     .dtype = scale_dtype(facts.activation_format),
                     .rows = rows,
                     .cols = cols,
                     .data = {},
                     .log2_block = log2_scale_block(facts.activation_format)};
  const bool int8 = facts.activation_format == ActivationFormat::int8;
  for (uint32_t i = 0; i < rows * cols; ++i) {
    if (payload.dtype == DType::f8_e8m0) {
      payload.data.push_back(std::byte{127});  // 1
    } else {
      append_float(payload.data, int8 ? 1.0f / 64 : 1.0f, DType::f32);
    }
  }
  return payload;
}

}  // namespace

Result<RankFacts> RankFacts::parse(const std::string& text) {
  RankFacts facts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0) {
      return make_error(ErrorCode::invalid_argument,
                        "hello_ack has the line '" + line + "', expected key=value");
    }
    const std::string key = line.substr(0, equals), value = line.substr(equals + 1);
    if (key == "peer.role") facts.peer_role = value;
    if (key == "peer.name") facts.peer_name = value;
    if (key == "peer.incarnation") facts.peer_incarnation = number(value).value_or(0);
    if (!key.starts_with("peer.")) facts.settings.emplace_back(key, value);
  }
  if (facts.peer_role != "ffn") return unfit("peer.role", facts.peer_role, "ffn");
  const std::pair<const char*, uint32_t*> numbers[] = {
      {"hidden_size", &facts.hidden_size}, {"top_k", &facts.top_k},
      {"num_experts", &facts.num_experts}, {"vocab_size", &facts.vocab_size},
      {"num_layers", &facts.num_layers},   {"moe_intermediate_size", &facts.moe_intermediate_size}};
  for (const auto& [key, to] : numbers) {
    const auto value = number(facts.value(key));
    if (!value || *value == 0) return unfit(key, facts.value(key), "a number above 0");
    *to = *value;
  }
  TANDEM_ASSIGN(facts.moe_layers, parse_layers(facts.value("moe_layers")));
  if (facts.value("num_ffn_ranks") != "1") {
    return make_error(ErrorCode::unsupported,
                      "the rank is one of " + facts.value("num_ffn_ranks") +
                          " FFN ranks: conformance tests a rank that holds all experts, start one alone");
  }
  const auto is = [&](const char* key, const char* wanted) { return facts.value(key) == wanted; };
  facts.gate_on_attention = is("gate", "attention");
  facts.token_ids = is("token_ids", "yes");
  facts.shared_on_ffn = is("shared_experts", "ffn") && !is("shared_intermediate_size", "0");
  facts.deterministic = is("deterministic", "yes");
  facts.graph = is("execution", "graph");
  const std::string activation = facts.value("activation_dtype");
  for (const auto format : {ActivationFormat::fp8, ActivationFormat::mxfp8, ActivationFormat::int8}) {
    if (activation == activation_format_name(format)) facts.activation_format = format;
  }
  const DType compute = is("compute_dtype", "f32") ? DType::f32 : DType::bf16;
  facts.activation_dtype = value_dtype(facts.activation_format, compute);
  if (facts.activation_format == ActivationFormat::plain && activation != dtype_name(compute))
    return unfit("activation_dtype", activation, "compute_dtype, fp8, mxfp8 or int8");
  const auto reply = dtype_from_name(facts.value("reply_dtype"));
  if (!reply || (*reply != DType::bf16 && *reply != DType::f32 && *reply != DType::f64))
    return unfit("reply_dtype", facts.value("reply_dtype"), "bf16, f32 or f64");
  facts.reply_dtype = *reply;
  std::istringstream sizes(facts.graph ? facts.value("capture_sizes") : "");
  for (std::string size; std::getline(sizes, size, ',');)
    facts.capture_sizes.push_back(number(size).value_or(0));
  if (facts.graph && (facts.capture_sizes.empty() || facts.capture_sizes.front() == 0))
    return unfit("capture_sizes", facts.value("capture_sizes"), "numbers of rows, with execution=graph");
  return facts;
}

std::string RankFacts::value(const std::string& key) const {
  for (const auto& [name, value] : settings) {
    if (name == key) return value;
  }
  return {};
}

std::string RankFacts::hello_text(const std::string& role) const {
  std::string text =
      fmt::format("peer.role={}\npeer.rank=0\npeer.name=conformance:1\npeer.incarnation=1\n", role);
  for (const auto& [key, value] : settings) {
    if (!key.starts_with("may.")) text += fmt::format("{}={}\n", key, value);
  }
  return text;
}

std::vector<float> row_values(const RankFacts& facts, uint32_t row) {
  std::vector<float> values;
  if (facts.activation_format != ActivationFormat::plain) return values;
  for (uint32_t col = 0; col < facts.hidden_size; ++col) values.push_back(value_of(row, col));
  return values;
}

std::vector<int32_t> row_experts(const RankFacts& facts, uint32_t row) {
  std::vector<int32_t> ids;
  const uint32_t first = hash(row, 7) % facts.num_experts;
  for (uint32_t i = 0; i < facts.top_k; ++i)
    ids.push_back(static_cast<int32_t>((first + i) % facts.num_experts));
  return ids;
}

std::vector<float> row_weights(const RankFacts& facts, uint32_t row) {
  std::vector<float> weights;
  for (uint32_t i = 0; i < facts.top_k; ++i)
    weights.push_back(static_cast<float>(1 + hash(row, 100 + i) % 8) / 8.0f);
  return weights;
}

RawFrame make_request(const RankFacts& facts, const RequestShape& shape) {
  const auto rows = static_cast<uint32_t>(shape.rows.size());
  RawFrame frame;
  FrameHeader& header = frame.header;
  header.kind = FrameKind::ffn_request;
  header.flags = shape.flags;
  header.step = shape.step;
  header.layer = shape.layer != 0 ? shape.layer : facts.moe_layers.front();
  header.tiles = 1;
  header.map_epoch = 1;
  header.rows = header.capacity = rows;
  header.attempt = 1;
  frame.payloads.push_back(activation_of(facts, shape.rows));
  if (facts.activation_format != ActivationFormat::plain) frame.payloads.push_back(scales_of(facts, rows));
  if (facts.gate_on_attention || (shape.flags & kFramePartial) != 0) {
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (const uint32_t row : shape.rows) {
      for (const int32_t id : row_experts(facts, row)) ids.push_back(id);
      for (const float weight : row_weights(facts, row)) weights.push_back(weight);
    }
    frame.payloads.push_back({PayloadRole::expert_ids, DType::i32, rows, facts.top_k, bytes_of(ids)});
    frame.payloads.push_back({PayloadRole::expert_weights, DType::f32, rows, facts.top_k, bytes_of(weights)});
  } else if (facts.token_ids) {
    std::vector<int32_t> tokens;
    for (const uint32_t row : shape.rows)
      tokens.push_back(static_cast<int32_t>(hash(row, 3) % facts.vocab_size));
    frame.payloads.push_back({PayloadRole::token_ids, DType::i32, rows, 1, bytes_of(tokens)});
  }
  return frame;
}

}  // namespace tandem::conformance
