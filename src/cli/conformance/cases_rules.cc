// What belongs together in a frame, and which frames belong into a session (docs/protocol.md, sections 1, 2,
// 10): each break is refused and the session ends.
#include <fmt/format.h>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

using Change = std::function<void(const RankFacts&, RawFrame&)>;

Case broken(const std::string& name, const std::string& what, Change change) {
  return {"rule." + name, what + " ends the session with refuse",
          [change = std::move(change)](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, Client::serving(lab));
            RawFrame request = client->request(2);
            change(lab.facts, request);
            TANDEM_TRY(client->send(request));
            return expect_refuse(*client);
          }};
}

RawPayload ids(const RankFacts& facts, DType dtype = DType::i32) {
  return {PayloadRole::expert_ids, dtype, 2, facts.top_k, Bytes(2 * dtype_bytes(dtype, facts.top_k))};
}
RawPayload weights(const RankFacts& facts, uint32_t more = 0) {
  const std::vector<float> ones(size_t{2} * (facts.top_k + more), 1.0f);
  return {PayloadRole::expert_weights, DType::f32, 2, facts.top_k + more, bytes_of(ones)};
}
RawPayload tokens() {
  return {PayloadRole::token_ids, DType::i32, 2, 1, Bytes(8)};
}
RawPayload rows(const RankFacts& facts, DType dtype, uint32_t count = 2) {
  return {PayloadRole::activation, dtype, count, facts.hidden_size,
          Bytes(count * dtype_bytes(dtype, facts.hidden_size))};
}
RawPayload scale(const RankFacts& facts, DType dtype, uint8_t log2_block) {
  const uint32_t cols = log2_block == 0 ? 1 : (facts.hidden_size + (1u << log2_block) - 1) >> log2_block;
  return {PayloadRole::activation_scale, dtype, 2, cols, Bytes(2 * dtype_bytes(dtype, cols)), log2_block};
}
RawPayload shared_rows() {
  return {PayloadRole::shared_rows, DType::u8, 2, 1, Bytes(2, std::byte{1})};
}
RawPayload output(const RankFacts& facts) {
  return {PayloadRole::output, facts.reply_dtype, 2, facts.hidden_size,
          Bytes(2 * dtype_bytes(facts.reply_dtype, facts.hidden_size))};
}
RawPayload times() {
  return {PayloadRole::reply_times, DType::u32, 1, 4, Bytes(16)};
}

// A frame of a kind that no open session takes.
Case stray(const std::string& name, const std::string& what, Channel channel,
           std::function<RawFrame(const RankFacts&, Client&)> frame) {
  return {"rule." + name, what + " ends the session with refuse",
          [channel, frame = std::move(frame)](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, Client::serving(lab));
            TANDEM_TRY(client->send(frame(lab.facts, *client), channel));
            return expect_refuse(*client);
          }};
}

}  // namespace

void add_rule_cases(std::vector<Case>& cases) {
  cases.push_back(broken("no_activation", "a request without rows", [](const RankFacts& facts, RawFrame& f) {
    f.payloads = {ids(facts), weights(facts)};
  }));
  cases.push_back(broken("nothing", "a request without any payload",
                         [](const RankFacts&, RawFrame& f) { f.payloads.clear(); }));
  cases.push_back(broken("activation_f16", "an f16 activation", [](const RankFacts& facts, RawFrame& f) {
    f.payloads = {rows(facts, DType::f16), ids(facts), weights(facts)};
  }));
  cases.push_back(broken("activation_e5m2", "an f8_e5m2 activation", [](const RankFacts& facts, RawFrame& f) {
    f.payloads = {rows(facts, DType::f8_e5m2), scale(facts, DType::f32, 7), ids(facts), weights(facts)};
  }));
  cases.push_back(broken("activation_rows", "an activation of more rows than the tile",
                         [](const RankFacts& facts, RawFrame& f) {
                           f.payloads = {rows(facts, DType::bf16, 3), ids(facts), weights(facts)};
                         }));
  cases.push_back(
      broken("tokens_beside_routing", "token ids beside a routing", [](const RankFacts& facts, RawFrame& f) {
        f.payloads = {rows(facts, DType::bf16), tokens(), ids(facts), weights(facts)};
      }));
  cases.push_back(broken("ids_alone", "expert ids without weights", [](const RankFacts& facts, RawFrame& f) {
    f.payloads = {rows(facts, DType::bf16), ids(facts)};
  }));
  cases.push_back(
      broken("weights_alone", "weights without expert ids", [](const RankFacts& facts, RawFrame& f) {
        f.payloads = {rows(facts, DType::bf16), weights(facts)};
      }));
  cases.push_back(
      broken("ids_beside_weights", "more weights than ids", [](const RankFacts& facts, RawFrame& f) {
        f.payloads = {rows(facts, DType::bf16), ids(facts), weights(facts, 1)};
      }));
  cases.push_back(broken("ids_i64", "expert ids of 64 bits", [](const RankFacts& facts, RawFrame& f) {
    f.payloads = {rows(facts, DType::bf16), ids(facts, DType::i64), weights(facts)};
  }));
  cases.push_back(
      broken("scale_beside_bf16", "a scale beside bf16 rows", [](const RankFacts& facts, RawFrame& f) {
        f.payloads = {rows(facts, DType::bf16), scale(facts, DType::f32, 7), ids(facts), weights(facts)};
      }));
  cases.push_back(broken("scale_alone", "a scale without rows", [](const RankFacts& facts, RawFrame& f) {
    f.payloads = {scale(facts, DType::f32, 7), ids(facts), weights(facts)};
  }));
  cases.push_back(
      broken("fp8_without_scale", "e4m3 rows without a scale", [](const RankFacts& facts, RawFrame& f) {
        f.payloads = {rows(facts, DType::f8_e4m3), ids(facts), weights(facts)};
      }));
  cases.push_back(broken("fp8_block", "f32 scales of blocks of 32", [](const RankFacts& facts, RawFrame& f) {
    f.payloads = {rows(facts, DType::f8_e4m3), scale(facts, DType::f32, 5), ids(facts), weights(facts)};
  }));
  cases.push_back(
      broken("mxfp8_block", "e8m0 scales of blocks of 128", [](const RankFacts& facts, RawFrame& f) {
        f.payloads = {rows(facts, DType::f8_e4m3), scale(facts, DType::f8_e8m0, 7), ids(facts),
                      weights(facts)};
      }));
  cases.push_back(
      broken("fp8_scale_columns", "more scales than blocks", [](const RankFacts& facts, RawFrame& f) {
        RawPayload wide = scale(facts, DType::f32, 7);
        ++wide.cols;
        wide.data.resize(2 * dtype_bytes(DType::f32, wide.cols));
        f.payloads = {rows(facts, DType::f8_e4m3), std::move(wide), ids(facts), weights(facts)};
      }));
  cases.push_back(broken("int8_scale", "an e8m0 scale of int8 rows", [](const RankFacts& facts, RawFrame& f) {
    f.payloads = {rows(facts, DType::i8), scale(facts, DType::f8_e8m0, 0), ids(facts), weights(facts)};
  }));
  cases.push_back(
      broken("quantised_unrouted", "rounded rows without a routing", [](const RankFacts& facts, RawFrame& f) {
        f.payloads = {rows(facts, DType::f8_e4m3), scale(facts, DType::f32, 7)};
      }));
  cases.push_back(
      broken("part_unrouted", "a part without a routing", [](const RankFacts& facts, RawFrame& f) {
        f.header.flags = kFramePartial;
        f.payloads = {rows(facts, DType::bf16)};
      }));
  cases.push_back(
      broken("shared_rows_whole", "shared_rows beside whole rows", [](const RankFacts& facts, RawFrame& f) {
        f.payloads = {rows(facts, DType::bf16), ids(facts), weights(facts), shared_rows()};
      }));
  cases.push_back(
      broken("shared_rows_by_map", "shared_rows beside by_map", [](const RankFacts& facts, RawFrame& f) {
        f.header.flags = kFramePartial | kFrameByMap;
        f.payloads = {rows(facts, DType::bf16), ids(facts), weights(facts), shared_rows()};
      }));
  cases.push_back(broken("output", "an output in a request",
                         [](const RankFacts& facts, RawFrame& f) { f.payloads.push_back(output(facts)); }));
  cases.push_back(
      stray("reply", "a reply from a client", Channel::control, [](const RankFacts& facts, Client& client) {
        RawFrame frame = client.request(2);
        frame.header.kind = FrameKind::ffn_reply;
        frame.payloads = {output(facts), times()};
        return frame;
      }));
  cases.push_back(stray("hello", "a hello in an open session", Channel::control,
                        [](const RankFacts& facts, Client& client) {
                          RawFrame frame = client.plain(FrameKind::hello);
                          frame.payloads = {text_payload(PayloadRole::settings, facts.hello_text())};
                          return frame;
                        }));
  cases.push_back(stray("canary", "a canary in an open session", Channel::request,
                        [](const RankFacts&, Client& client) { return client.canary(0); }));
  cases.push_back(stray("drain", "a drain from a client", Channel::control,
                        [](const RankFacts&, Client& client) { return client.plain(FrameKind::drain); }));
  cases.push_back(stray("flag_without_rows", "a flag where no rows are", Channel::control,
                        [](const RankFacts&, Client& client) {
                          RawFrame frame = client.plain(FrameKind::goodbye);
                          frame.header.flags = kFramePartial;
                          return frame;
                        }));
  cases.push_back(stray("cancel_payload", "a cancel with a payload", Channel::control,
                        [](const RankFacts&, Client& client) {
                          RawFrame frame = client.plain(FrameKind::cancel);
                          frame.payloads = {text_payload(PayloadRole::error_text, "no")};
                          return frame;
                        }));
  cases.push_back(stray("request_over_control", "a request over control", Channel::control,
                        [](const RankFacts&, Client& client) { return client.request(2); }));
  cases.push_back(stray("request_over_exchange", "attention's request over exchange", Channel::exchange,
                        [](const RankFacts&, Client& client) { return client.request(2); }));
  cases.push_back(stray("cancel_over_request", "a cancel over request", Channel::request,
                        [](const RankFacts&, Client& client) { return client.plain(FrameKind::cancel); }));
}

}  // namespace tandem::conformance
