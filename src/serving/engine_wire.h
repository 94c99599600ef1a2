// The engine protocol: what a front and an attention rank say to each other (docs/protocol.md, section
// "Engine protocol"). One class for each format, the only place that knows its bytes. Fields are tagged: an
// unknown one is skipped, unless its sender says that it must be understood. Pure functions, any thread.
//
//   front                                attention rank
//   hello: identity                 ->
//                                   <-   hello_ack: identity, limits, facts   (or refuse, naming the key)
//                                   <-   state: health and counts, and again at every interval
//   submit parts of a request       ->
//   cancel                          ->
//                                   <-   events: tokens and ends of any requests, as many as fit
//                                   <-   drain, when the rank stops
//   goodbye                         <->
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/engine.h"

namespace tandem {

enum class EngineMessage : uint16_t {
  hello = 1,
  hello_ack = 2,
  refuse = 3,
  submit_part = 4,
  cancel = 5,
  events = 6,
  state = 7,
  drain = 8,
  goodbye = 9,
};

// In front of every message, little-endian: 0 magic u32 "TENG" | 4 major u8 | 5 minor u8 | 6 kind u16 |
// 8 total_bytes u32 | 12 zero u32. Another major is refused, naming both.
struct EngineHead {
  static constexpr size_t kBytes = 16;
  static constexpr uint32_t kMagic = 0x474e4554;
  static constexpr uint8_t kMajor = 1, kMinor = 0;

  // `body` behind a head.
  static std::vector<std::byte> wrap(EngineMessage kind, std::span<const std::byte> body);
  static void write(EngineMessage kind, std::span<std::byte> message);  // the head of a whole message
  struct View {
    EngineMessage kind = EngineMessage::hello;
    std::span<const std::byte> body;
  };
  // data_loss: not such a message; unsupported: another major version.
  static Result<View> parse(std::span<const std::byte> message);
};

// Who speaks, and what both must have in common. `shared` are compared as text in both directions; a value
// "-" means that this side does not know, and compares with everything. `told` are facts for the other side.
struct EngineIdentity {
  std::string role;  // "front" or "attention"
  uint32_t rank = 0;
  std::string name;          // "host:pid"
  uint64_t incarnation = 0;  // different at every start
  std::vector<std::pair<std::string, std::string>> shared;
  std::vector<std::pair<std::string, std::string>> told;

  std::string text() const;                         // "attention rank 0 (host:pid)"
  std::string fact(const std::string& key) const;   // of `told`; empty when absent
  std::string value(const std::string& key) const;  // of `shared`; "-" when absent
};
inline constexpr const char* kUnknownValue = "-";

// Lines key=value: "peer.", "shared." and "told." keys.
struct IdentityLayout {
  static std::vector<std::byte> encode(EngineMessage kind, const EngineIdentity& identity);
  // invalid_argument naming the line.
  static Result<EngineIdentity> decode(std::span<const std::byte> body);
};

// invalid_argument naming every shared key that differs, both values and both sides.
Status match_identities(const EngineIdentity& ours, const EngineIdentity& theirs);

// The limits as facts of a hello_ack, and back. invalid_argument names the one that is missing.
void tell_limits(const EngineLimits& limits, EngineIdentity& identity);
Result<EngineLimits> told_limits(const EngineIdentity& identity);

struct ErrorLayout {
  static std::vector<std::byte> encode(const Error& error);
  static Error decode(std::span<const std::byte> body);
};

// A request as tagged fields; only what differs from the defaults is written. Instants do not travel: the
// time that is left does.
struct RequestLayout {
  static std::vector<std::byte> encode(const GenerationRequest& request, Instant at);
  // invalid_argument or unsupported, naming the field.
  static Result<GenerationRequest> decode(std::span<const std::byte> bytes, Instant at);
};

// A piece of an encoded request: 0 request u64 | 8 total u32 | 12 offset u32 | 16 bytes. Parts come in order,
// and those of one request follow each other.
struct SubmitPartLayout {
  static constexpr size_t kHeadBytes = EngineHead::kBytes + 16;
  struct Part {
    uint64_t request = 0;
    uint32_t total = 0, offset = 0;
    std::span<const std::byte> bytes;
  };
  // How long the message of `bytes` is that fits `limit`, and writing it: the whole message.
  static size_t message_bytes(size_t bytes, size_t limit);
  static void write(const Part& part, std::span<std::byte> message);
  static Result<Part> decode(std::span<const std::byte> body);
};

struct CancelLayout {
  static std::vector<std::byte> encode(uint64_t request);
  static Result<uint64_t> decode(std::span<const std::byte> body);
};

// Records behind each other: 0 type u16 | 2 count u16 | 4 record_bytes u32 | 8 request u64, then
// token: 16 token i32 | 20 logprob f32 | 24 index u32 | 28 rank u32 | 32 count x (token i32, logprob f32)
// prompt token: the same, of another type
// finish: 16 reason u8 | 17 code u8 | 18 zero u16 | 20 prompt u32 | 24 cached u32 | 28 completion u32 |
//         32 logits_hash u64 | 40 text
struct EventLayout {
  static constexpr size_t kMaxTopLogprobs = 1024;  // far above what the API takes: keeps a record in a slot
  static constexpr size_t kMaxTextBytes = 2048;
  static void append(uint64_t request, const TokenEvent& event, std::vector<std::byte>& out);
  static void append_prompt(uint64_t request, const TokenEvent& event, std::vector<std::byte>& out);
  static void append(uint64_t request, const Finish& finish, std::vector<std::byte>& out);
  // Bytes of as many whole records as fit `limit`, of what `append` wrote.
  static size_t whole_records(std::span<const std::byte> records, size_t limit);

  class Visitor {
   public:
    virtual ~Visitor() = default;
    virtual void on_token(uint64_t request, const TokenEvent& event) = 0;
    virtual void on_prompt_token(uint64_t request, const TokenEvent& event) = 0;
    virtual void on_finish(uint64_t request, const Finish& finish) = 0;
  };
  // data_loss at the first record that is none; those before it have been visited.
  static Status visit(std::span<const std::byte> body, Visitor& visitor);
};

struct EngineState {
  EngineStats stats;
  Status health;
};

struct StateLayout {
  static std::vector<std::byte> encode(const EngineState& state);
  static Result<EngineState> decode(std::span<const std::byte> body);
};

}  // namespace tandem
