// The tcp carrier: hellos, heads, heartbeats (docs/protocol.md, section 12).
#include <fmt/format.h>

#include "cli/conformance/case.h"
#include "transport/hello.h"

namespace tandem::conformance {
namespace {

// The rank says its hello and ends: both sides can name the difference.
Status differs(Lab& lab, const CarrierNumbers& numbers) {
  TANDEM_ASSIGN(const auto client, Client::silent(lab));
  TANDEM_TRY(client->wire().send(carrier_greeting(numbers)));
  const Event hello = client->wire().next(lab.patience());
  if (hello.kind != Event::Kind::hello) return mismatch("the rank's hello before the end", hello.text());
  return expect_end(*client);
}

Case difference(const std::string& name, const std::string& what,
                std::function<void(CarrierNumbers&)> change) {
  return {"carrier." + name,
          "a hello with another " + what + " is answered with the rank's own, then the end",
          [change = std::move(change)](Lab& lab) {
            CarrierNumbers numbers = lab.facts.carrier;
            change(numbers);
            return differs(lab, numbers);
          }};
}

// A serving session breaks its stream with `bytes`: it ends without a message.
Case broken(const std::string& name, const std::string& what, std::function<Bytes(Lab&)> bytes) {
  return {"carrier." + name, what + " ends the connection, without another word",
          [bytes = std::move(bytes)](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, Client::serving(lab));
            TANDEM_TRY(client->wire().send(bytes(lab)));
            return expect_end(*client);
          }};
}

// A heartbeat's head with one byte changed; `sealed`: with the checksum that belongs to it.
Bytes changed_head(size_t at, uint8_t value, bool sealed) {
  Bytes head = carrier_head(TcpFrameKind::heartbeat, Channel::control, 0);
  head[at] = static_cast<std::byte>(value);
  if (!sealed) return head;
  const uint32_t crc = crc32(std::span(head).first(12));
  for (size_t i = 0; i < 4; ++i) head[12 + i] = static_cast<std::byte>(crc >> (8 * i));
  return head;
}

Status half_message(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  const Bytes message = carrier_message(Channel::request, client->request(2).encode());
  TANDEM_TRY(client->wire().send(std::span(message).first(message.size() / 2)));
  client->wire().cut();
  return {};
}

Status heartbeats_come(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  const uint64_t before = client->wire().heartbeats;
  // Five times what the rank has promised; nobody asks it for anything meanwhile.
  const Instant deadline = now() + std::chrono::microseconds(lab.facts.carrier.silence_us) * 5;
  while (client->wire().heartbeats < before + 3) {
    const Event event = client->wire().next(deadline - now());
    if (event.kind != Event::Kind::heartbeat && event.kind != Event::Kind::credit)
      return mismatch("three heartbeats in an idle session", event.text());
  }
  return {};
}

Status silence_ends(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  client->wire().beats = false;
  return expect_end(*client);
}

Status heartbeats_are_enough(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  const Duration twice = std::chrono::microseconds(lab.facts.carrier.silence_us) * 2;
  if (const auto received = client->frame(twice); received) return mismatch("nothing", received->text());
  return expect_served(*client);
}

}  // namespace

void add_carrier_cases(std::vector<Case>& cases) {
  cases.push_back({"carrier.hello", "a hello with the rank's own numbers is answered with the same",
                   [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::silent(lab));
                     TANDEM_TRY(client->wire().send(carrier_greeting(lab.facts.carrier)));
                     const Event hello = client->wire().next(lab.patience());
                     if (hello.kind != Event::Kind::hello) return mismatch("the rank's hello", hello.text());
                     if (hello.bytes != lab.facts.carrier.hello())
                       return mismatch("the numbers that it said before", "others");
                     return {};
                   }});
  cases.push_back(
      {"carrier.hello_numbers", "version 1, carrier 0, slots that hold a tile and a rank that is not hurried",
       [](Lab& lab) -> Status {
         const CarrierNumbers& numbers = lab.facts.carrier;
         const RankFacts& facts = lab.facts;
         const uint64_t tile = 64ull * (8 * facts.hidden_size + 8 * facts.top_k) + 4096;
         if (numbers.version == 1 && numbers.carrier == 0 && numbers.slots > 0 &&
             numbers.slot_bytes >= tile && numbers.slot_bytes >= 256 << 10 && numbers.heartbeat_us > 0 &&
             numbers.silence_us > numbers.heartbeat_us)
           return {};
         return mismatch(
             fmt::format("slots of {} bytes or more", tile),
             fmt::format("version {}, {} slots of {} bytes, heartbeat {} us, silence {} us", numbers.version,
                         numbers.slots, numbers.slot_bytes, numbers.heartbeat_us, numbers.silence_us));
       }});
  cases.push_back(
      {"carrier.hello_byte_by_byte", "a hello that comes in single bytes is a hello", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::silent(lab));
         TANDEM_TRY(client->wire().send_byte_by_byte(carrier_greeting(lab.facts.carrier)));
         const Event hello = client->wire().next(lab.patience());
         return hello.kind == Event::Kind::hello ? Status{} : mismatch("the rank's hello", hello.text());
       }});
  cases.push_back(difference("version", "version", [](CarrierNumbers& n) { ++n.version; }));
  cases.push_back(difference("slots", "number of slots", [](CarrierNumbers& n) { ++n.slots; }));
  cases.push_back(difference("slot_bytes", "size of slots", [](CarrierNumbers& n) { n.slot_bytes *= 2; }));
  cases.push_back(
      difference("heartbeat_interval", "heartbeat interval", [](CarrierNumbers& n) { ++n.heartbeat_us; }));
  cases.push_back(difference("silence_limit", "silence limit", [](CarrierNumbers& n) { ++n.silence_us; }));
  cases.push_back(difference("ucx", "carrier", [](CarrierNumbers& n) { n.carrier = 1; }));
  // Another of none, key and TLS than the rank has.
  cases.push_back(
      difference("security", "security", [](CarrierNumbers& n) { n.security = (n.security + 1) % 3; }));
  cases.push_back({"carrier.adopts",
                   "a hello that takes each of the rank's numbers (0) is answered with them",
                   [](Lab& lab) -> Status {
                     for (uint32_t taken = 1; taken < 16; ++taken) {
                       CarrierNumbers numbers = lab.facts.carrier;
                       if ((taken & 1) != 0) numbers.slots = 0;
                       if ((taken & 2) != 0) numbers.slot_bytes = 0;
                       if ((taken & 4) != 0) numbers.heartbeat_us = 0;
                       if ((taken & 8) != 0) numbers.silence_us = 0;
                       TANDEM_ASSIGN(const auto client, Client::silent(lab));
                       const auto hello = client->greet(numbers);
                       if (!hello) return mismatch("the rank's numbers", hello.error().message);
                       if (*hello != lab.facts.carrier.hello())
                         return mismatch("the rank's numbers", "others");
                       TANDEM_TRY(client->say_hello(lab.facts.hello_text()));
                       const auto ack = client->hello_ack();
                       if (!ack) return mismatch("hello_ack behind it", ack.error().message);
                     }
                     return {};
                   }});
  cases.push_back({"carrier.garbage", "what is no hello ends the connection", [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::silent(lab));
                     constexpr std::string_view kText = "GET / HTTP/1.1\r\nHost: example\r\n\r\n";
                     TANDEM_TRY(client->wire().send(std::as_bytes(std::span(kText))));
                     return expect_end(*client);
                   }});
  cases.push_back(
      {"carrier.message_first", "a message before the hello ends the connection", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::silent(lab));
         Bytes bytes = carrier_message(Channel::control, client->plain(FrameKind::goodbye).encode());
         TANDEM_TRY(client->wire().send(bytes));
         const Event event = client->wire().next(lab.patience());
         // The rank's own hello may come first: it answers what has a hello's length.
         const bool over = event.kind == Event::Kind::ended || event.kind == Event::Kind::bye;
         return event.kind == Event::Kind::hello ? expect_end(*client)
                : over                           ? Status{}
                                                 : mismatch("the end", event.text());
       }});
  cases.push_back({"carrier.half_hello", "half a hello and an end trouble nobody", [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::silent(lab));
                     const Bytes hello = carrier_greeting(lab.facts.carrier);
                     TANDEM_TRY(client->wire().send(std::span(hello).first(40)));
                     client->wire().cut();
                     return {};
                   }});
  cases.push_back(
      broken("second_hello", "a second hello", [](Lab& lab) { return carrier_greeting(lab.facts.carrier); }));
  cases.push_back(
      broken("head_magic", "a head with another magic", [](Lab&) { return changed_head(0, 0x55, true); }));
  cases.push_back(broken("head_checksum", "a head with a wrong checksum",
                         [](Lab&) { return changed_head(8, 1, false); }));
  cases.push_back(
      broken("head_kind", "a head of an unknown kind", [](Lab&) { return changed_head(4, 77, true); }));
  cases.push_back(broken("head_channel", "a head of a channel that is none",
                         [](Lab&) { return changed_head(5, 3, true); }));
  cases.push_back(
      broken("head_zero", "a head with its zero bytes set", [](Lab&) { return changed_head(6, 1, true); }));
  cases.push_back(
      broken("heartbeat_value", "a heartbeat with a value", [](Lab&) { return changed_head(8, 1, true); }));
  cases.push_back(
      broken("heartbeat_channel", "a heartbeat of a channel", [](Lab&) { return changed_head(5, 1, true); }));
  cases.push_back(broken("ucx_kind", "a word of ucx", [](Lab&) {
    return carrier_head(TcpFrameKind::messages_sent, Channel::control, 1);
  }));
  cases.push_back(broken("message_empty", "a message of 0 bytes",
                         [](Lab&) { return carrier_head(TcpFrameKind::data, Channel::request, 0); }));
  cases.push_back(broken("message_too_large", "a message larger than a slot", [](Lab& lab) {
    return carrier_head(TcpFrameKind::data, Channel::request,
                        static_cast<uint32_t>(lab.facts.carrier.slot_bytes) + 1);
  }));
  cases.push_back(
      {"carrier.byte_by_byte", "a request that comes in single bytes is served", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::serving(lab));
         const RawFrame request = client->request(1);
         TANDEM_TRY(client->wire().send_byte_by_byte(carrier_message(Channel::request, request.encode())));
         TANDEM_ASSIGN([[maybe_unused]] const Received reply, expect_reply(*client, request));
         return {};
       }});
  cases.push_back(
      {"carrier.two_at_once", "two requests and a heartbeat in one write are served", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::serving(lab));
         const RawFrame first = client->request(1);
         Bytes bytes = carrier_message(Channel::request, first.encode());
         const Bytes beat = carrier_head(TcpFrameKind::heartbeat, Channel::control, 0);
         bytes.insert(bytes.end(), beat.begin(), beat.end());
         const Bytes again = carrier_message(Channel::request, first.encode());
         bytes.insert(bytes.end(), again.begin(), again.end());
         TANDEM_TRY(client->wire().send(bytes));
         for (int i = 0; i < 2; ++i) {
           TANDEM_ASSIGN([[maybe_unused]] const Received reply, expect_reply(*client, first));
         }
         return {};
       }});
  cases.push_back({"carrier.half_message", "half a message and an end trouble nobody", half_message});
  cases.push_back({"carrier.heartbeats_come", "an idle session hears heartbeats", heartbeats_come});
  cases.push_back(
      {"carrier.heartbeats_are_enough", "a session that only sends heartbeats stays", heartbeats_are_enough});
  cases.push_back({"carrier.silence_ends", "a session without heartbeats ends", silence_ends});
  cases.push_back({"carrier.bye_ends", "a bye ends the connection", [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::serving(lab));
                     TANDEM_TRY(client->wire().send_head(TcpFrameKind::bye, Channel::control, 0));
                     return expect_end(*client);
                   }});
}

}  // namespace tandem::conformance
