// What cases say.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

// Long enough for an answer that a rank owes nobody to show on a busy machine, short enough for a suite.
constexpr Duration kQuiet = std::chrono::milliseconds(250);

// invalid_argument, out_of_range, unsupported, data_loss: which of them says more to people than to programs.
bool names_a_fault(uint32_t code) {
  return code == 1 || code == 2 || code == 3 || code == 8;
}

// What a reply repeats of its request.
std::string echoed(const FrameHeader& h) {
  return fmt::format(
      "session {:#x} incarnation {:#x} step {} layer {} lane {} tile {} of {} epoch {} rows {} capacity {} "
      "attempt {} "
      "class {} program {} flags {}",
      h.session, h.incarnation, h.step, h.layer, h.lane, h.tile, h.tiles, h.map_epoch, h.rows, h.capacity,
      h.attempt, h.row_class, h.program, h.flags);
}

Result<Received> expect_reply_frame(Client& client, const RawFrame& request, const std::string& wanted) {
  auto reply = client.frame();
  if (!reply) return mismatch(wanted, reply.error().message);
  if (reply->view.header.kind != FrameKind::ffn_reply) return mismatch(wanted, reply->text());
  const Channel channel = Channel::request;
  if (reply->channel != channel) return mismatch(wanted + " over request", "one over another channel");
  if (echoed(reply->view.header) != echoed(request.header))
    return mismatch("a reply that repeats " + echoed(request.header), echoed(reply->view.header));
  return reply;
}

}  // namespace

std::unexpected<Error> mismatch(const std::string& expected, const std::string& got) {
  return make_error(ErrorCode::internal, "expected " + expected + "; got " + got);
}

Result<Received> expect_reply(Client& client, const RawFrame& request) {
  TANDEM_ASSIGN(Received reply, expect_reply_frame(client, request, "a reply"));
  const Descriptor* output = reply.view.find(PayloadRole::output);
  if (output == nullptr) return mismatch("a reply with an output", reply.text());
  const auto shape = [](DType dtype, uint32_t cols) {
    return fmt::format("an output of {} values a row in {}", cols, dtype_name(dtype));
  };
  const RankFacts& facts = client.facts();
  if (output->dtype != facts.reply_dtype || output->cols != facts.hidden_size)
    return mismatch(shape(facts.reply_dtype, facts.hidden_size), shape(output->dtype, output->cols));
  const auto times = reply.view.payload(PayloadRole::reply_times);
  uint32_t durations[4] = {};
  std::memcpy(durations, times.data(), std::min(sizeof durations, times.size()));
  if (uint64_t{durations[3]} + 1 < durations[1]) {  // either may have been rounded
    return mismatch("a residence time that has the computing time in it",
                    fmt::format("{} us of {} us", durations[3], durations[1]));
  }
  return reply;
}

Status expect_error_reply(Client& client, const RawFrame& request) {
  TANDEM_ASSIGN(const Received reply, expect_reply_frame(client, request, "a reply with an error"));
  if (reply.code() == 0) return mismatch("a reply with an error", "a reply with an output");
  if (!names_a_fault(reply.code()) || reply.code() == 8)
    return mismatch("an error with code 1, 2 or 3", reply.text());
  if (reply.reason().empty()) return mismatch("an error that says what is wrong", "one without words");
  return {};
}

Status expect_refuse(Client& client, std::string_view word) {
  const std::string wanted = word.empty() ? "refuse" : fmt::format("refuse that names '{}'", word);
  const auto refusal = client.frame();
  if (!refusal) return mismatch(wanted, refusal.error().message);
  if (refusal->view.header.kind != FrameKind::refuse) return mismatch(wanted, refusal->text());
  if (refusal->channel != Channel::control)
    return mismatch(wanted + " over control", "one over another channel");
  if (!names_a_fault(refusal->code())) return mismatch("refuse with code 1, 2, 3 or 8", refusal->text());
  if (refusal->reason().empty()) return mismatch("refuse that says what is wrong", "one without words");
  if (refusal->reason().find(word) == std::string::npos) return mismatch(wanted, refusal->text());
  return {};
}

Status expect_end(Client& client, Duration limit) {
  const std::string wanted = "the end of the connection";
  const Instant deadline = now() + (limit == Duration::zero() ? client.wire().patience() : limit);
  bool said_bye = false;
  while (true) {
    const Event event =
        client.wire().next(std::max<Duration>(deadline - now(), std::chrono::milliseconds(1)));
    if (event.kind == Event::Kind::ended) return {};
    if (event.kind == Event::Kind::nothing) return mismatch(wanted, said_bye ? "a bye alone" : "an open one");
    if (said_bye) return mismatch(wanted, event.text() + " behind a bye");
    said_bye = event.kind == Event::Kind::bye;
    const bool on_its_way = event.kind == Event::Kind::credit || event.kind == Event::Kind::heartbeat;
    if (!said_bye && !on_its_way) return mismatch(wanted, event.text());
  }
}

Status expect_quiet(Client& client) {
  const auto received = client.frame(kQuiet);
  if (received) return mismatch("no answer", received->text());
  if (received.error().message == Event{}.text()) return {};
  return mismatch("a session that stays", received.error().message);
}

Status expect_served(Client& client) {
  const RawFrame request = client.request(2);
  if (const Status sent = client.send(request); !sent)
    return mismatch("a session that is served", sent.error().message);
  TANDEM_ASSIGN([[maybe_unused]] const Received reply, expect_reply(client, request));
  return {};
}

Bytes output_bytes(const Received& reply) {
  const Descriptor* d = reply.view.find(PayloadRole::output);
  Bytes bytes;
  if (d == nullptr) return bytes;
  const size_t row = dtype_bytes(d->dtype, d->cols);
  for (uint32_t i = 0; i < d->rows; ++i) {
    const auto from =
        reply.bytes.begin() + static_cast<std::ptrdiff_t>(d->offset + size_t{i} * d->row_stride);
    bytes.insert(bytes.end(), from, from + static_cast<std::ptrdiff_t>(row));
  }
  return bytes;
}

std::vector<double> output_values(const Received& reply, const RankFacts& facts) {
  return values_of(output_bytes(reply), facts);
}

std::vector<double> values_of(const Bytes& bytes, const RankFacts& facts) {
  const size_t size = dtype_bytes(facts.reply_dtype, 1);
  std::vector<double> values(bytes.size() / size);
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* at = &bytes[i * size];
    if (facts.reply_dtype == DType::f64) {
      std::memcpy(&values[i], at, size);
    } else if (facts.reply_dtype == DType::f32) {
      float value;
      std::memcpy(&value, at, size);
      values[i] = value;
    } else {
      bf16 value;
      std::memcpy(&value, at, size);
      values[i] = to_float(value);
    }
  }
  return values;
}

std::string without_routing(const RankFacts& facts) {
  return facts.gate_on_attention ? "" : "the gate is on FFN";
}
std::string without_token_ids(const RankFacts& facts) {
  return facts.token_ids ? "" : "no token ids travel in this placement";
}
std::string with_routing(const RankFacts& facts) {
  return facts.gate_on_attention ? "the gate is on attention" : "";
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_handshake_cases(cases);
  add_setting_cases(cases);
  add_carrier_cases(cases);
  add_credit_cases(cases);
  add_frame_cases(cases);
  add_rule_cases(cases);
  add_request_cases(cases);
  add_value_cases(cases);
  add_session_cases(cases);
  add_number_cases(cases);
  add_key_cases(cases);
  add_tls_cases(cases);
  return cases;
}

}  // namespace tandem::conformance
