// The engine protocol: heads, identities, errors, parts. Requests, events and states: engine_wire_payload.cc.
#include "serving/engine_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "serving/tagged_fields.h"

namespace tandem {
namespace {

constexpr size_t kMaxIdentityLines = 128;  // 20 today; bounds the work that a stranger can cause
constexpr size_t kErrorHeadBytes = 1;
constexpr size_t kMaxErrorBytes = 2048;

std::unexpected<Error> invalid(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

// A peer's text goes into logs and replies: one line stays one line.
std::string clean(std::string_view text) {
  std::string out(text.substr(0, kMaxErrorBytes));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string find(const std::vector<std::pair<std::string, std::string>>& list, const std::string& key,
                 const char* otherwise) {
  for (const auto& [name, value] : list) {
    if (name == key) return value;
  }
  return otherwise;
}

// Where the limits stand among the facts.
struct LimitKey {
  const char* key;
  uint32_t EngineLimits::* member;
};
constexpr LimitKey kLimits[] = {{"limit.max_context_tokens", &EngineLimits::max_context_tokens},
                                {"limit.kv_pool_tokens", &EngineLimits::kv_pool_tokens},
                                {"limit.vocab_size", &EngineLimits::vocab_size},
                                {"limit.max_num_seqs", &EngineLimits::max_num_seqs},
                                {"limit.max_queue", &EngineLimits::max_queue}};
static_assert(sizeof(EngineLimits) == std::size(kLimits) * sizeof(uint32_t),
              "a new limit needs its key here");

}  // namespace

// ---- heads ----

void EngineHead::write(EngineMessage kind, std::span<std::byte> message) {
  store_number<uint32_t>(&message[0], kMagic);
  store_number<uint8_t>(&message[4], kMajor);
  store_number<uint8_t>(&message[5], kMinor);
  store_number<uint16_t>(&message[6], static_cast<uint16_t>(kind));
  store_number<uint32_t>(&message[8], static_cast<uint32_t>(message.size()));
  store_number<uint32_t>(&message[12], 0);
}

std::vector<std::byte> EngineHead::wrap(EngineMessage kind, std::span<const std::byte> body) {
  std::vector<std::byte> message(kBytes + body.size());
  write(kind, message);
  if (!body.empty()) std::memcpy(&message[kBytes], body.data(), body.size());
  return message;
}

Result<EngineHead::View> EngineHead::parse(std::span<const std::byte> message) {
  if (message.size() < kBytes || load_number<uint32_t>(&message[0]) != kMagic) {
    return make_error(ErrorCode::data_loss,
                      "not a message of the engine protocol: is this the address of an attention rank "
                      "(afd.attention_listen), and not of an FFN rank?");
  }
  const auto major = load_number<uint8_t>(&message[4]);
  if (major != kMajor) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("engine protocol {}.x, this build speaks {}.{}: run the same release on "
                                  "both sides",
                                  major, kMajor, kMinor));
  }
  const auto total = load_number<uint32_t>(&message[8]);
  if (total != message.size()) {
    return make_error(ErrorCode::data_loss,
                      fmt::format("a message of {} bytes says that it has {}", message.size(), total));
  }
  return View{static_cast<EngineMessage>(load_number<uint16_t>(&message[6])), message.subspan(kBytes)};
}

// ---- identities ----

std::string EngineIdentity::text() const {
  return role == "front" ? fmt::format("front ({})", name) : fmt::format("{} rank {} ({})", role, rank, name);
}
std::string EngineIdentity::fact(const std::string& key) const {
  return find(told, key, "");
}
std::string EngineIdentity::value(const std::string& key) const {
  return find(shared, key, kUnknownValue);
}

std::vector<std::byte> IdentityLayout::encode(EngineMessage kind, const EngineIdentity& identity) {
  std::string text = fmt::format("peer.role={}\npeer.rank={}\npeer.name={}\npeer.incarnation={}\n",
                                 identity.role, identity.rank, identity.name, identity.incarnation);
  for (const auto& [key, value] : identity.shared) text += fmt::format("shared.{}={}\n", key, value);
  for (const auto& [key, value] : identity.told) text += fmt::format("told.{}={}\n", key, value);
  return EngineHead::wrap(kind, std::as_bytes(std::span(text)));
}

Result<EngineIdentity> IdentityLayout::decode(std::span<const std::byte> body) {
  std::string_view text = text_of(body);
  EngineIdentity identity;
  std::vector<std::string> seen;
  std::optional<uint32_t> rank;
  std::optional<uint64_t> incarnation;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const size_t equals = line.find('=');
    if (end == std::string_view::npos || equals == 0 || equals == std::string_view::npos) {
      return invalid(fmt::format("hello: line \"{}\" is not key=value", clean(line.substr(0, 80))));
    }
    text = text.substr(end + 1);
    const std::string key = clean(line.substr(0, equals));
    std::string value = clean(line.substr(equals + 1));
    if (std::ranges::find(seen, key) != seen.end())
      return invalid(fmt::format("hello: {} is given twice", key));
    if (seen.size() == kMaxIdentityLines)
      return invalid(fmt::format("hello: more than {} lines", kMaxIdentityLines));
    seen.push_back(key);
    if (key == "peer.role") identity.role = value;
    if (key == "peer.name") identity.name = value;
    if (key == "peer.rank") rank = parse_number<uint32_t>(value);
    if (key == "peer.incarnation") incarnation = parse_number<uint64_t>(value);
    if (key.starts_with("shared.")) identity.shared.emplace_back(key.substr(7), std::move(value));
    if (key.starts_with("told.")) identity.told.emplace_back(key.substr(5), std::move(value));
  }
  if (identity.role.empty() || identity.name.empty() || !rank || !incarnation)
    return invalid("hello: peer.role, peer.rank, peer.name and peer.incarnation must all be there");
  identity.rank = *rank;
  identity.incarnation = *incarnation;
  return identity;
}

Status match_identities(const EngineIdentity& ours, const EngineIdentity& theirs) {
  std::string message;
  const auto differ = [&](const std::string& key, const std::string& mine, const std::string& other) {
    if (mine == other || mine == kUnknownValue || other == kUnknownValue) return;
    message += fmt::format("{}{} is {} on {} and {} on {}", message.empty() ? "" : "; ", key, mine,
                           ours.text(), other, theirs.text());
  };
  for (const auto& [key, value] : ours.shared) differ(key, value, theirs.value(key));
  if (message.empty()) return {};
  return invalid(message + ": give both the same model folder and settings");
}

void tell_limits(const EngineLimits& limits, EngineIdentity& identity) {
  for (const auto& [key, member] : kLimits) identity.told.emplace_back(key, std::to_string(limits.*member));
}

Result<EngineLimits> told_limits(const EngineIdentity& identity) {
  EngineLimits limits;
  for (const auto& [key, member] : kLimits) {
    const auto value = parse_number<uint32_t>(identity.fact(key));
    if (!value) return invalid(fmt::format("{} does not state its {}", identity.text(), key));
    limits.*member = *value;
  }
  return limits;
}

// ---- errors, parts, cancels ----

std::vector<std::byte> ErrorLayout::encode(const Error& error) {
  const std::string text = error.message.substr(0, kMaxErrorBytes);
  std::vector<std::byte> body(kErrorHeadBytes + text.size());
  body[0] = static_cast<std::byte>(error.code);
  std::memcpy(body.data() + kErrorHeadBytes, text.data(), text.size());
  return EngineHead::wrap(EngineMessage::refuse, body);
}

Error ErrorLayout::decode(std::span<const std::byte> body) {
  if (body.empty()) return {ErrorCode::data_loss, "refused without a reason"};
  const auto code = std::to_integer<uint8_t>(body[0]);
  return {
      code <= static_cast<uint8_t>(ErrorCode::internal) ? static_cast<ErrorCode>(code) : ErrorCode::internal,
      clean(text_of(body.subspan(kErrorHeadBytes)))};
}

size_t SubmitPartLayout::message_bytes(size_t bytes, size_t limit) {
  return std::min(kHeadBytes + bytes, limit);
}

void SubmitPartLayout::write(const Part& part, std::span<std::byte> message) {
  EngineHead::write(EngineMessage::submit_part, message);
  std::byte* at = &message[EngineHead::kBytes];
  store_number<uint64_t>(at, part.request);
  store_number<uint32_t>(at + 8, part.total);
  store_number<uint32_t>(at + 12, part.offset);
  std::memcpy(&message[kHeadBytes], part.bytes.data(), part.bytes.size());
}

Result<SubmitPartLayout::Part> SubmitPartLayout::decode(std::span<const std::byte> body) {
  constexpr size_t kFixed = kHeadBytes - EngineHead::kBytes;
  if (body.size() <= kFixed) return make_error(ErrorCode::data_loss, "submit: no bytes");
  Part part{load_number<uint64_t>(&body[0]), load_number<uint32_t>(&body[8]),
            load_number<uint32_t>(&body[12]), body.subspan(kFixed)};
  if (part.offset > part.total || part.bytes.size() > part.total - part.offset) {
    return make_error(ErrorCode::data_loss, fmt::format("submit: {} bytes at {} of {}", part.bytes.size(),
                                                        part.offset, part.total));
  }
  return part;
}

std::vector<std::byte> CancelLayout::encode(uint64_t request) {
  std::byte body[8];
  store_number(body, request);
  return EngineHead::wrap(EngineMessage::cancel, body);
}

Result<uint64_t> CancelLayout::decode(std::span<const std::byte> body) {
  if (body.size() != 8) return make_error(ErrorCode::data_loss, "cancel: names no request");
  return load_number<uint64_t>(body.data());
}

}  // namespace tandem
