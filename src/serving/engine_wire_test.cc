#include "serving/engine_wire.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem {
namespace {

GenerationRequest full_request() {
  GenerationRequest request;
  request.id = "cmpl-7/1";
  request.prompt = {1, 2, 300, 0};
  SamplingParams& sampling = request.sampling;
  sampling.temperature = 0.25f;
  sampling.top_k = -1;
  sampling.top_p = 0.5f;
  sampling.min_p = 0.125f;
  sampling.seed = 0;  // present and zero is not absent
  sampling.stream = 3;
  sampling.frequency_penalty = 0.5f;
  sampling.presence_penalty = -0.5f;
  sampling.repetition_penalty = 1.5f;
  sampling.logit_bias = {{7, -100.0f}, {9, 2.5f}};
  sampling.grammar = {.kind = GrammarKind::regex,
                      .text = "a+",
                      .reasoning_begin = 3,
                      .reasoning_end = 4,
                      .in_reasoning = true,
                      .reasoning_budget = 1024};
  sampling.max_tokens = 99;
  sampling.min_tokens = 4;
  sampling.stop_token_ids = {2, 5};
  sampling.ignore_eos = true;
  sampling.top_logprobs = 0;
  sampling.prompt_logprobs = 5;
  request.deadline = now() + std::chrono::hours(1);
  request.queue_deadline = now() + std::chrono::minutes(1);
  request.hash_logits = true;
  request.bypass_prefix_cache = true;
  request.priority = -3;
  request.cache_salt = "tenant 7";
  return request;
}

TEST(EngineWire, ARequestArrivesAsItWasSent) {
  const GenerationRequest sent = full_request();
  const Instant at = now();
  const auto got = RequestLayout::decode(RequestLayout::encode(sent, at), at + std::chrono::seconds(10));
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->id, sent.id);
  EXPECT_EQ(got->prompt, sent.prompt);
  EXPECT_EQ(got->hash_logits, true);
  EXPECT_EQ(got->bypass_prefix_cache, true);
  EXPECT_EQ(got->priority, -3);
  EXPECT_EQ(got->cache_salt, sent.cache_salt);
  const SamplingParams &a = sent.sampling, &b = got->sampling;
  EXPECT_EQ(a.temperature, b.temperature);
  EXPECT_EQ(a.prompt_logprobs, b.prompt_logprobs);
  EXPECT_EQ(a.top_k, b.top_k);
  EXPECT_EQ(a.top_p, b.top_p);
  EXPECT_EQ(a.min_p, b.min_p);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.stream, b.stream);
  EXPECT_EQ(a.frequency_penalty, b.frequency_penalty);
  EXPECT_EQ(a.presence_penalty, b.presence_penalty);
  EXPECT_EQ(a.repetition_penalty, b.repetition_penalty);
  EXPECT_EQ(a.logit_bias, b.logit_bias);
  EXPECT_EQ(a.max_tokens, b.max_tokens);
  EXPECT_EQ(a.min_tokens, b.min_tokens);
  EXPECT_EQ(a.stop_token_ids, b.stop_token_ids);
  EXPECT_EQ(a.ignore_eos, b.ignore_eos);
  EXPECT_EQ(a.top_logprobs, b.top_logprobs);
  EXPECT_EQ(a.grammar, b.grammar);
  // The time that is left travels, not the instant: the receiver's clock is ten seconds ahead here.
  const auto shift = std::chrono::abs(got->deadline - sent.deadline - std::chrono::seconds(10));
  EXPECT_LT(shift, std::chrono::milliseconds(1));
  const auto queue_shift =
      std::chrono::abs(got->queue_deadline - sent.queue_deadline - std::chrono::seconds(10));
  EXPECT_LT(queue_shift, std::chrono::milliseconds(1));
}

TEST(EngineWire, DefaultsStayDefaults) {
  GenerationRequest request;
  request.prompt = {5};
  const auto bytes = RequestLayout::encode(request, now());
  EXPECT_EQ(bytes.size(), 12u) << "only the prompt is written";
  const auto got = RequestLayout::decode(bytes, now());
  ASSERT_TRUE(got);
  EXPECT_FALSE(got->sampling.seed.has_value());
  EXPECT_EQ(got->deadline, Instant::max());
  EXPECT_EQ(got->queue_deadline, Instant::max());
  EXPECT_EQ(got->sampling.top_logprobs, -1);
}

TEST(EngineWire, RequestsThatAreNoneAreRefused) {
  const std::vector<std::byte> good = RequestLayout::encode(full_request(), now());
  for (size_t size = 1; size < good.size(); ++size) {
    // A cut between two fields is a shorter request; everywhere else it is an error, and never a crash.
    (void)RequestLayout::decode(std::span(good).first(size), now());
  }
  std::vector<std::byte> cut(good.begin(), good.end() - 1);
  EXPECT_EQ(RequestLayout::decode(cut, now()).error().code, ErrorCode::data_loss);
  std::vector<std::byte> unknown = {std::byte{200}, std::byte{0}, std::byte{1}, std::byte{0},
                                    std::byte{0},   std::byte{0}, std::byte{0}, std::byte{0}};
  EXPECT_NE(RequestLayout::decode(unknown, now()).error().message.find("field 200 must be understood"),
            std::string::npos);
  unknown[2] = std::byte{0};
  EXPECT_TRUE(RequestLayout::decode(unknown, now())) << "a field that need not be understood is skipped";
}

struct Collector final : EventLayout::Visitor {
  void on_token(uint64_t request, const TokenEvent& event) override {
    text +=
        "t" + std::to_string(request) + ":" + std::to_string(event.token) + "," + std::to_string(event.index);
    for (const TokenLogprob& top : event.top_logprobs) text += "/" + std::to_string(top.token);
    text += " ";
  }
  void on_prompt_token(uint64_t request, const TokenEvent& event) override {
    text += "p";
    on_token(request, event);
    text += "r" + std::to_string(event.rank) + " ";
  }
  void on_finish(uint64_t request, const Finish& finish) override {
    text += "f" + std::to_string(request) + ":" + std::to_string(static_cast<int>(finish.reason)) + "," +
            std::to_string(finish.completion_tokens) + "," + std::to_string(finish.logits_hash) + "," +
            finish.error.message + " ";
  }
  std::string text;
};

TEST(EngineWire, EventsArriveInOrderAndWhole) {
  std::vector<std::byte> records;
  EventLayout::append(
      4, TokenEvent{.token = 7, .logprob = -1, .top_logprobs = {{7, -1}, {8, -2}}, .index = 0}, records);
  EventLayout::append(5, TokenEvent{.token = 9, .logprob = 0, .top_logprobs = {}, .index = 3}, records);
  const size_t two = records.size();
  EventLayout::append_prompt(
      4, TokenEvent{.token = 3, .logprob = -1, .top_logprobs = {}, .index = 1, .rank = 9}, records);
  Finish end;
  end.reason = FinishReason::error;
  end.error = {ErrorCode::unavailable, "FFN rank 0 is gone"};
  end.completion_tokens = 12;
  end.logits_hash = 77;
  EventLayout::append(4, end, records);
  EXPECT_EQ(EventLayout::whole_records(records, records.size() - 1), two + 32);
  EXPECT_EQ(EventLayout::whole_records(records, 1 << 20), records.size());
  Collector got;
  ASSERT_TRUE(EventLayout::visit(records, got));
  EXPECT_EQ(got.text, "t4:7,0/7/8 t5:9,3 pt4:3,1 r9 f4:3,12,77,FFN rank 0 is gone ");
  for (size_t size = 0; size < records.size(); ++size) {
    Collector part;
    const Status visited = EventLayout::visit(std::span(records).first(size), part);
    const bool whole = size == 0 || size == two || size == two - 32 || size == two + 32;
    EXPECT_EQ(visited.has_value(), whole) << size;
  }
}

TEST(EngineWire, NoBytesOfAPeerAreTrusted) {
  std::vector<std::byte> records;
  EventLayout::append(4, TokenEvent{.token = 7, .logprob = -1, .top_logprobs = {{7, -1}}, .index = 0},
                      records);
  EventLayout::append(4, Finish{}, records);
  const auto state = StateLayout::encode({});
  const auto request = RequestLayout::encode(full_request(), now());
  std::mt19937 random(5);
  for (int i = 0; i < 20000; ++i) {
    for (const auto& good : {records, state, request}) {
      std::vector<std::byte> bad = good;
      for (int flips = 0; flips < 3; ++flips) bad[random() % bad.size()] = static_cast<std::byte>(random());
      Collector sink;
      (void)EventLayout::visit(bad, sink);
      (void)StateLayout::decode(bad);
      (void)RequestLayout::decode(bad, now());
      (void)EngineHead::parse(bad);
      (void)IdentityLayout::decode(bad);
      (void)SubmitPartLayout::decode(bad);
    }
  }
}

TEST(EngineWire, AStateHasCountsAndHealth) {
  EngineState state;
  state.stats.waiting = 3;
  state.stats.kv_blocks_used = 17;
  state.stats.preempted = 2;
  state.stats.mixed_steps = 41;
  state.stats.step_seconds = 1.5;
  state.stats.ffn_round_trip_seconds = 0.75;
  state.stats.ffn_residence_seconds = 0.5;
  state.stats.ffn_queue_seconds = 0.0625;
  state.stats.ffn_compute_seconds = 0.375;
  state.stats.ffn_exchange_seconds = 0.03125;
  state.stats.lane_busy_seconds = 1.25;
  state.stats.decode_lanes = 3;
  state.stats.execution = {11, 12, 13, 14, 15, 16, 17, 1.25, 2.5};
  state.stats.router_calls = 5;
  state.stats.router_seconds = 0.25;
  state.stats.speculation = {2, 31, 21, {14, 6, 1}, 9, 0.125};
  state.stats.prefix = {1000, 600, 40};
  state.stats.queue.observe(0.02);
  state.stats.queue.observe(1000);
  state.stats.batch = {1, 2, 3, 4};
  state.stats.overdue = 5;
  state.health = make_error(ErrorCode::unavailable, "FFN rank 1 at tcp://b:7000: connection closed");
  const auto message = StateLayout::encode(state);
  const auto head = EngineHead::parse(message);
  ASSERT_TRUE(head);
  const auto got = StateLayout::decode(head->body);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->stats.waiting, 3u);
  EXPECT_EQ(got->stats.kv_blocks_used, 17u);
  EXPECT_EQ(got->stats.preempted, 2u);
  EXPECT_EQ(got->stats.mixed_steps, 41u);
  EXPECT_EQ(got->stats.step_seconds, 1.5);
  EXPECT_EQ(got->stats.ffn_round_trip_seconds, 0.75);
  EXPECT_EQ(got->stats.ffn_residence_seconds, 0.5);
  EXPECT_EQ(got->stats.ffn_queue_seconds, 0.0625);
  EXPECT_EQ(got->stats.ffn_compute_seconds, 0.375);
  EXPECT_EQ(got->stats.ffn_exchange_seconds, 0.03125);
  EXPECT_EQ(got->stats.lane_busy_seconds, 1.25);
  EXPECT_EQ(got->stats.decode_lanes, 3u);
  EXPECT_EQ(got->stats.execution, state.stats.execution);
  EXPECT_EQ(got->stats.router_calls, 5u);
  EXPECT_EQ(got->stats.router_seconds, 0.25);
  EXPECT_EQ(got->stats.speculation, state.stats.speculation);
  EXPECT_EQ(got->stats.prefix, state.stats.prefix);
  EXPECT_EQ(got->stats.queue, state.stats.queue);
  EXPECT_EQ(got->stats.batch, state.stats.batch);
  EXPECT_EQ(got->stats.overdue, 5u);
  EXPECT_EQ(got->health.error().message, "FFN rank 1 at tcp://b:7000: connection closed");
}

EngineIdentity identity(const std::string& role, uint32_t rank, const std::string& fingerprint) {
  EngineIdentity value;
  value.role = role;
  value.rank = rank;
  value.name = "host:1";
  value.shared = {{"model_fingerprint", fingerprint}, {"tokenizer", "t1"}};
  return value;
}

TEST(EngineWire, IdentitiesArriveAndAreCompared) {
  EngineIdentity sent = identity("attention", 2, "abc");
  tell_limits(
      {.max_context_tokens = 9, .kv_pool_tokens = 8, .vocab_size = 7, .max_num_seqs = 6, .max_queue = 5},
      sent);
  const auto message = IdentityLayout::encode(EngineMessage::hello_ack, sent);
  const auto got = IdentityLayout::decode(EngineHead::parse(message)->body);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->text(), "attention rank 2 (host:1)");
  EXPECT_EQ(told_limits(*got)->max_queue, 5u);
  EXPECT_TRUE(match_identities(identity("front", 0, "abc"), *got));
  EXPECT_TRUE(match_identities(identity("front", 0, kUnknownValue), *got)) << "a front without weights";
  EXPECT_EQ(
      match_identities(identity("front", 0, "xyz"), *got).error().message,
      "model_fingerprint is xyz on front (host:1) and abc on attention rank 2 (host:1): give both the same "
      "model folder and settings");
  EXPECT_NE(told_limits(identity("attention", 0, "abc")).error().message.find("limit.max_context_tokens"),
            std::string::npos);
}

TEST(EngineWire, AnotherMajorVersionIsRefusedByNumber) {
  auto message = CancelLayout::encode(3);
  EXPECT_TRUE(EngineHead::parse(message));
  message[4] = std::byte{9};
  EXPECT_NE(EngineHead::parse(message).error().message.find("engine protocol 9.x, this build speaks 1.0"),
            std::string::npos);
  message[0] = std::byte{0};
  EXPECT_NE(EngineHead::parse(message).error().message.find("not a message of the engine protocol"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem
