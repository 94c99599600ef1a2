// Requests that are right as frames and wrong for this session: an error reply, and the session goes on
// (docs/protocol.md, sections 5 and 7).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

using Change = std::function<void(const RankFacts&, RawFrame&)>;

Case wrong(const std::string& name, const std::string& what, Change change,
           std::function<std::string(const RankFacts&)> skip = {}) {
  return {"value." + name, what + " gets an error reply, and the session goes on",
          [change = std::move(change)](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, Client::serving(lab));
            RawFrame request = client->request(2);
            change(lab.facts, request);
            TANDEM_TRY(client->send(request));
            TANDEM_TRY(expect_error_reply(*client, request));
            return expect_served(*client);
          },
          std::move(skip)};
}

template <class T>
void set(RawFrame& frame, PayloadRole role, size_t index, T value) {
  RawPayload* payload = frame.find(role);
  if (payload != nullptr) std::memcpy(payload->data.data() + index * sizeof value, &value, sizeof value);
}

Change expert(size_t index, int32_t id) {
  return [=](const RankFacts&, RawFrame& f) { set(f, PayloadRole::expert_ids, index, id); };
}
Change weight(size_t index, float value) {
  return [=](const RankFacts&, RawFrame& f) { set(f, PayloadRole::expert_weights, index, value); };
}

RawPayload ids(uint32_t top_k, uint32_t rows = 2) {
  return {PayloadRole::expert_ids, DType::i32, rows, top_k, Bytes(size_t{rows} * top_k * 4)};
}
RawPayload weights(uint32_t top_k, uint32_t rows = 2) {
  return {PayloadRole::expert_weights, DType::f32, rows, top_k,
          bytes_of(std::vector<float>(size_t{rows} * top_k, 0.5f))};
}

void add_layer_cases(std::vector<Case>& cases) {
  cases.push_back(wrong("layer_dense", "a layer without experts", [](const RankFacts& facts, RawFrame& f) {
    uint16_t dense = 0;  // one of the model, or the first behind it
    while (std::ranges::binary_search(facts.moe_layers, dense)) ++dense;
    f.header.layer = dense;
  }));
  cases.push_back(
      wrong("layer_last", "layer 65535", [](const RankFacts&, RawFrame& f) { f.header.layer = UINT16_MAX; }));
  cases.push_back(wrong("width", "an activation of another width", [](const RankFacts& facts, RawFrame& f) {
    RawPayload& rows = f.payloads.front();
    rows.cols = facts.hidden_size + 1;
    rows.data.resize(2 * dtype_bytes(rows.dtype, rows.cols));
    RawPayload* scale = f.find(PayloadRole::activation_scale);
    if (scale == nullptr || scale->log2_block == 0) return;
    scale->cols = (rows.cols + (1u << scale->log2_block) - 1) >> scale->log2_block;
    scale->data.resize(2 * dtype_bytes(scale->dtype, scale->cols));
  }));
  cases.push_back(
      wrong("dtype", "an activation of another dtype than agreed", [](const RankFacts& facts, RawFrame& f) {
        const DType other = facts.activation_dtype == DType::f32 ? DType::bf16 : DType::f32;
        f.drop(PayloadRole::activation_scale);
        f.payloads.front() = {PayloadRole::activation, other, 2, facts.hidden_size,
                              Bytes(2 * dtype_bytes(other, facts.hidden_size))};
      }));
  cases.push_back(
      wrong("program", "a program that is no capture size's", [](const RankFacts& facts, RawFrame& f) {
        f.header.program = facts.graph ? 1 : 8;  // two rows do not fit into a program of one
      }));
}

void add_routing_cases(std::vector<Case>& cases) {
  cases.push_back(wrong(
      "unrouted", "rows alone, and the gate is on attention",
      [](const RankFacts&, RawFrame& f) {
        f.drop(PayloadRole::expert_ids);
        f.drop(PayloadRole::expert_weights);
      },
      [](const RankFacts& facts) {
        if (!facts.gate_on_attention) return std::string("the gate is on FFN");
        return std::string(
            facts.activation_format == ActivationFormat::plain ? "" : "rounded rows always have a routing");
      }));
  cases.push_back(wrong(
      "routed", "rows with a routing, and the gate is on FFN",
      [](const RankFacts& facts, RawFrame& f) {
        f.drop(PayloadRole::token_ids);
        f.payloads.push_back(ids(facts.top_k));
        f.payloads.push_back(weights(facts.top_k));
      },
      with_routing));
  cases.push_back(wrong(
      "part_from_attention", "a part, and the gate is on FFN",
      [](const RankFacts& facts, RawFrame& f) {
        f.header.flags = kFramePartial;
        f.drop(PayloadRole::token_ids);
        f.payloads.push_back(ids(facts.top_k));
        f.payloads.push_back(weights(facts.top_k));
      },
      with_routing));
  cases.push_back(wrong(
      "tokens_unwanted", "token ids that were not agreed upon",
      [](const RankFacts&, RawFrame& f) {
        f.drop(PayloadRole::expert_ids);
        f.drop(PayloadRole::expert_weights);
        f.payloads.push_back({PayloadRole::token_ids, DType::i32, 2, 1, Bytes(8)});
      },
      [](const RankFacts& facts) {
        if (facts.activation_format != ActivationFormat::plain)
          return std::string("rounded rows always have a routing");
        return std::string(facts.token_ids ? "token ids travel in this placement" : "");
      }));
  cases.push_back(wrong(
      "tokens_missing", "no token ids where they were agreed upon",
      [](const RankFacts&, RawFrame& f) { f.drop(PayloadRole::token_ids); }, without_token_ids));
  cases.push_back(wrong(
      "token_high", "a token id that the vocabulary does not have",
      [](const RankFacts& facts, RawFrame& f) {
        set(f, PayloadRole::token_ids, 1, static_cast<int32_t>(facts.vocab_size));
      },
      without_token_ids));
  cases.push_back(wrong(
      "token_negative", "a token id below 0",
      [](const RankFacts&, RawFrame& f) { set(f, PayloadRole::token_ids, 0, int32_t{-1}); },
      without_token_ids));
  cases.push_back(wrong(
      "expert_high", "an expert that the model does not have",
      [](const RankFacts& facts, RawFrame& f) {
        set(f, PayloadRole::expert_ids, facts.top_k, static_cast<int32_t>(facts.num_experts));
      },
      without_routing));
  cases.push_back(wrong("expert_negative", "an expert below 0", expert(0, -1), without_routing));
  cases.push_back(wrong("expert_far", "expert 2147483647", expert(1, INT32_MAX), without_routing));
  cases.push_back(wrong(
      "expert_high_weight_0", "an unknown expert with weight 0",
      [](const RankFacts& facts, RawFrame& f) {
        set(f, PayloadRole::expert_ids, 0, static_cast<int32_t>(facts.num_experts));
        set(f, PayloadRole::expert_weights, 0, 0.0f);
      },
      without_routing));
  cases.push_back(wrong("weight_nan", "a weight that is no number",
                        weight(0, std::numeric_limits<float>::quiet_NaN()), without_routing));
  cases.push_back(wrong("weight_infinite", "a weight that is infinite",
                        weight(1, std::numeric_limits<float>::infinity()), without_routing));
  cases.push_back(wrong(
      "weights_zero", "a row that goes nowhere",
      [](const RankFacts& facts, RawFrame& f) {
        for (uint32_t i = 0; i < facts.top_k; ++i) set(f, PayloadRole::expert_weights, facts.top_k + i, 0.0f);
      },
      without_routing));
  cases.push_back(wrong(
      "top_k", "another top_k than the model's",
      [](const RankFacts& facts, RawFrame& f) {
        *f.find(PayloadRole::expert_ids) = ids(facts.top_k + 1);
        *f.find(PayloadRole::expert_weights) = weights(facts.top_k + 1);
      },
      without_routing));
  cases.push_back(wrong(
      "ids_padded", "expert ids with gaps between rows",
      [](const RankFacts& facts, RawFrame& f) {
        RawPayload& payload = *f.find(PayloadRole::expert_ids);
        payload.row_stride = facts.top_k * 4 + 8;
        payload.data.resize(2 * payload.row_stride);
      },
      without_routing));
}

void add_part_cases(std::vector<Case>& cases) {
  cases.push_back(wrong("by_map", "by_map from attention", [](const RankFacts& facts, RawFrame& f) {
    f.header.flags = kFramePartial | kFrameByMap;
    f.header.map_epoch = 0x12345678;
    if (f.find(PayloadRole::expert_ids) != nullptr) return;
    f.drop(PayloadRole::token_ids);
    f.payloads.push_back(ids(facts.top_k));
    f.payloads.push_back(weights(facts.top_k));
  }));
  cases.push_back(wrong(
      "part_idle_row", "a row of a part without work",
      [](const RankFacts& facts, RawFrame& f) {
        f.header.flags = kFramePartial;
        for (uint32_t i = 0; i < facts.top_k; ++i) set(f, PayloadRole::expert_weights, i, 0.0f);
      },
      without_routing));
  cases.push_back(wrong(
      "shared_two", "shared_rows that is neither 0 nor 1",
      [](const RankFacts&, RawFrame& f) {
        f.header.flags = kFramePartial;
        f.payloads.push_back({PayloadRole::shared_rows, DType::u8, 2, 1, {std::byte{1}, std::byte{2}}});
      },
      without_routing));
  cases.push_back(wrong(
      "shared_unwanted", "shared_rows, and FFN adds no shared experts",
      [](const RankFacts&, RawFrame& f) {
        f.header.flags = kFramePartial;
        f.payloads.push_back({PayloadRole::shared_rows, DType::u8, 2, 1, Bytes(2)});
      },
      [](const RankFacts& facts) {
        if (!facts.gate_on_attention) return std::string("the gate is on FFN");
        return std::string(facts.shared_on_ffn ? "FFN adds shared experts" : "");
      }));
}

}  // namespace

void add_value_cases(std::vector<Case>& cases) {
  add_layer_cases(cases);
  add_routing_cases(cases);
  add_part_cases(cases);
  cases.push_back(
      {"value.many", "twenty wrong requests in a row leave the session serving", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::serving(lab));
         for (int i = 0; i < 20; ++i) {
           RawFrame request = client->request(1);
           request.header.layer = UINT16_MAX;
           TANDEM_TRY(client->send(request));
           TANDEM_TRY(expect_error_reply(*client, request));
         }
         return expect_served(*client);
       }});
}

}  // namespace tandem::conformance
