// Credits (docs/protocol.md, sections 6 and 12): who may send how much, and who waits for whom.
#include <fmt/format.h>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

// Tiles that are small: a case sends many.
constexpr uint32_t kRows = 1;

constexpr auto kRequest = static_cast<size_t>(Channel::request);

Status send_requests(Client& client, uint32_t count, std::vector<RawFrame>& sent) {
  for (uint32_t i = 0; i < count; ++i) {
    sent.push_back(client.request(kRows));
    TANDEM_TRY(client.send(sent.back()));
  }
  return {};
}

// `count` replies, whichever requests they answer.
Status take_replies(Client& client, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const auto reply = client.frame();
    if (!reply) return mismatch(fmt::format("reply {} of {}", i + 1, count), reply.error().message);
    if (reply->view.header.kind != FrameKind::ffn_reply || reply->code() != 0)
      return mismatch("a reply with an output", reply->text());
  }
  return {};
}

// A client whose replies' slots are not given back: the rank has sent as many replies as there are slots, and
// as many requests again wait there with their slots.
Result<std::unique_ptr<Client>> stuffed(Lab& lab) {
  const uint32_t slots = lab.facts.carrier.slots;
  TANDEM_ASSIGN(auto client, Client::serving(lab));
  client->wire().returns_credits = false;
  std::vector<RawFrame> sent;
  for (int round = 0; round < 2; ++round) {
    TANDEM_TRY(send_requests(*client, slots, sent));
    if (round == 0) TANDEM_TRY(take_replies(*client, slots));
    // The slots of answered requests come back without anything in return.
    const Instant deadline = now() + lab.patience();
    while (round == 0 && client->wire().credits[kRequest] < slots) {
      const Event event = client->wire().next(deadline - now());
      if (event.kind == Event::Kind::credit || event.kind == Event::Kind::heartbeat) continue;
      return mismatch("the slots of answered requests", event.text());
    }
  }
  return client;
}

Status wrong_credit(Lab& lab, Channel channel, uint32_t count) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  // All that the handshake has used is given back by now.
  TANDEM_TRY(client->wire().send_head(TcpFrameKind::credit, channel, count));
  return expect_end(*client);
}

}  // namespace

void add_credit_cases(std::vector<Case>& cases) {
  cases.push_back({"credits.come_back", "each answered request gives its slot back", [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::serving(lab));
                     const uint32_t slots = lab.facts.carrier.slots;
                     for (uint32_t i = 0; i < 3 * slots; ++i) {
                       const Instant deadline = now() + lab.patience();
                       while (client->wire().credits[kRequest] == 0) {
                         const Event event = client->wire().next(deadline - now());
                         if (event.kind != Event::Kind::credit && event.kind != Event::Kind::heartbeat)
                           return mismatch(fmt::format("a credit for request {}", i + 1), event.text());
                       }
                       TANDEM_TRY(expect_served(*client));
                     }
                     return {};
                   }});
  cases.push_back(
      {"credits.never_too_many", "no more slots come back than were used", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::serving(lab));
         std::vector<RawFrame> sent;
         TANDEM_TRY(send_requests(*client, 4, sent));
         TANDEM_TRY(take_replies(*client, 4));
         TANDEM_TRY(expect_quiet(*client));
         for (const uint32_t credits : client->wire().credits) {
           if (credits > lab.facts.carrier.slots)
             return mismatch(fmt::format("{} slots", lab.facts.carrier.slots), fmt::format("{}", credits));
         }
         return {};
       }});
  cases.push_back({"credits.all_slots_at_once", "as many requests as there are slots are all served",
                   [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::serving(lab));
                     std::vector<RawFrame> sent;
                     TANDEM_TRY(send_requests(*client, lab.facts.carrier.slots, sent));
                     return take_replies(*client, lab.facts.carrier.slots);
                   }});
  cases.push_back(
      {"credits.gathered", "slots of replies that are given back in one frame count", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::serving(lab));
         client->wire().returns_credits = false;
         for (int round = 0; round < 3; ++round) {
           std::vector<RawFrame> sent;
           TANDEM_TRY(send_requests(*client, lab.facts.carrier.slots, sent));
           TANDEM_TRY(take_replies(*client, lab.facts.carrier.slots));
           TANDEM_TRY(client->wire().give_credits(Channel::request));
           const Instant deadline = now() + lab.patience();
           while (client->wire().credits[kRequest] < lab.facts.carrier.slots) {
             const Event event = client->wire().next(deadline - now());
             if (event.kind != Event::Kind::credit && event.kind != Event::Kind::heartbeat)
               return mismatch("all slots back", event.text());
           }
         }
         return {};
       }});
  cases.push_back({"credits.replies_need_slots", "replies without a slot wait, and others are served",
                   [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, stuffed(lab));
                     TANDEM_TRY(expect_quiet(*client));
                     return expect_served(*lab.bystander);
                   }});
  cases.push_back({"credits.slow_reader", "replies that waited come when their slots are given back",
                   [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, stuffed(lab));
                     TANDEM_TRY(client->wire().give_credits(Channel::request));
                     TANDEM_TRY(take_replies(*client, lab.facts.carrier.slots));
                     TANDEM_TRY(client->wire().give_credits(Channel::request));
                     return expect_served(*client);
                   }});
  cases.push_back(
      {"credits.held_with_replies", "a request whose reply waits keeps its slot", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, stuffed(lab));
         TANDEM_TRY(expect_quiet(*client));
         if (client->wire().credits[kRequest] == 0) return {};
         return mismatch("no slots while replies wait", fmt::format("{}", client->wire().credits[kRequest]));
       }});
  cases.push_back(
      {"credits.data_without", "a message without a credit ends the connection", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, stuffed(lab));
         TANDEM_TRY(client->send(client->request(kRows)));
         return expect_end(*client);
       }});
  cases.push_back(
      {"credits.unread", "a client that does not read for a while finds its replies", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::serving(lab));
         std::vector<RawFrame> sent;
         TANDEM_TRY(send_requests(*client, lab.facts.carrier.slots, sent));
         for (int i = 0; i < 4; ++i) TANDEM_TRY(expect_served(*lab.bystander));
         return take_replies(*client, lab.facts.carrier.slots);
       }});
  cases.push_back({"credits.overflow", "a credit that is not out ends the connection",
                   [](Lab& lab) { return wrong_credit(lab, Channel::request, lab.facts.carrier.slots); }});
  cases.push_back({"credits.wrong_channel", "a credit of a channel that carried nothing ends the connection",
                   [](Lab& lab) { return wrong_credit(lab, Channel::exchange, 1); }});
  cases.push_back(
      {"credits.more_than_slots", "more credits than a channel has slots end the connection",
       [](Lab& lab) { return wrong_credit(lab, Channel::control, lab.facts.carrier.slots + 1); }});
  cases.push_back({"credits.zero", "a credit of 0 ends the connection",
                   [](Lab& lab) { return wrong_credit(lab, Channel::request, 0); }});
}

}  // namespace tandem::conformance
