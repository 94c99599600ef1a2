// Sessions: their numbers, cancels, ends, and that they do not harm each other (docs/protocol.md, sections 5,
// 7 and 10).
#include <fmt/format.h>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

Case wrong_header(const std::string& name, const std::string& what,
                  std::function<void(Lab&, FrameHeader&)> change) {
  return {"session." + name, what + " ends the session with refuse",
          [change = std::move(change)](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, Client::serving(lab));
            RawFrame request = client->request(2);
            change(lab, request.header);
            TANDEM_TRY(client->send(request));
            return expect_refuse(*client);
          }};
}

// A reply with an output to one of the `sent` tiles; `count`: the how manieth.
Status tile_reply(const Bytes& bytes, uint32_t count, uint32_t sent) {
  const auto frame = parse_frame(bytes);
  if (!frame) return mismatch("a reply", frame.error().message);
  if (frame->header.kind != FrameKind::ffn_reply || !frame->payload(PayloadRole::error_code).empty())
    return mismatch("replies of tiles that were computed, and silence about the others",
                    std::string(frame_kind_name(frame->header.kind)));
  if (count > sent) return mismatch(fmt::format("at most {} replies", sent), "more");
  return {};
}

Status cancel_in_flight(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  const uint32_t slots = lab.facts.carrier.slots;
  RawFrame tile = client->request(64);
  tile.header.tiles = static_cast<uint16_t>(slots);
  tile.header.row_class = 2;
  for (uint32_t i = 0; i < slots; ++i) {
    tile.header.tile = static_cast<uint16_t>(i);
    TANDEM_TRY(client->send(tile));
  }
  TANDEM_TRY(client->send(client->plain(FrameKind::cancel, &tile), Channel::control));
  // Answered or dropped, every tile gives its slot back, however long those take that are computed.
  const uint32_t& back = client->wire().credits[static_cast<size_t>(Channel::request)];
  const Instant deadline = now() + lab.patience();
  uint32_t replies = 0;
  while (back < slots) {
    const Event event = client->wire().next(deadline - now());
    if (event.kind == Event::Kind::message) {
      TANDEM_TRY(tile_reply(event.bytes, ++replies, slots));
    } else if (event.kind == Event::Kind::nothing) {
      return mismatch(fmt::format("all {} slots back", slots), fmt::format("{}", back));
    } else if (event.kind != Event::Kind::credit && event.kind != Event::Kind::heartbeat) {
      return mismatch("an open session", event.text());
    }
  }
  // Replies may come behind their slots.
  const RawFrame next = client->request(2);
  TANDEM_TRY(client->send(next));
  while (true) {
    const auto reply = client->frame();
    if (!reply) return mismatch("a session that is served", reply.error().message);
    if (reply->view.header.step == next.header.step && reply->code() == 0) return {};
    TANDEM_TRY(tile_reply(reply->bytes, ++replies, slots));
  }
}

Status cancel_overtakes(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  const RawFrame request = client->request(2);
  TANDEM_TRY(client->send(client->plain(FrameKind::cancel, &request), Channel::control));
  TANDEM_TRY(client->send(request));
  TANDEM_ASSIGN([[maybe_unused]] const Received reply, expect_reply(*client, request));
  return {};
}

Status cancel_of_another_attempt(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  const RawFrame request = client->request(2);
  RawFrame other = request;
  ++other.header.attempt;
  TANDEM_TRY(client->send(request));
  TANDEM_TRY(client->send(client->plain(FrameKind::cancel, &other), Channel::control));
  TANDEM_ASSIGN([[maybe_unused]] const Received reply, expect_reply(*client, request));
  return {};
}

Status many_cancels(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  const auto control = static_cast<size_t>(Channel::control);
  for (int i = 0; i < 40; ++i) {
    const Instant deadline = now() + lab.patience();
    while (client->wire().credits[control] == 0) {
      const Event event = client->wire().next(deadline - now());
      if (event.kind != Event::Kind::credit && event.kind != Event::Kind::heartbeat)
        return mismatch("a slot of control for each cancel", event.text());
    }
    TANDEM_TRY(client->send(client->plain(FrameKind::cancel), Channel::control));
  }
  return expect_served(*client);
}

Status many_sessions(Lab& lab) {
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<RawFrame> requests;
  for (int i = 0; i < 6; ++i) {
    TANDEM_ASSIGN(auto client, Client::serving(lab));
    clients.push_back(std::move(client));
  }
  for (auto& client : clients) {
    requests.push_back(client->request(3));
    TANDEM_TRY(client->send(requests.back()));
  }
  for (size_t i = 0; i < clients.size(); ++i) {
    TANDEM_ASSIGN([[maybe_unused]] const Received reply, expect_reply(*clients[i], requests[i]));
  }
  return {};
}

Status reconnects(Lab& lab) {
  for (int i = 0; i < 10; ++i) {
    TANDEM_ASSIGN(const auto client, Client::serving(lab));
    if (i % 2 == 0) {
      TANDEM_TRY(client->send(client->request(8)));  // and does not wait for the answer
    } else {
      TANDEM_TRY(expect_served(*client));
    }
    client->wire().cut();
  }
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  return expect_served(*client);
}

Status old_session(Lab& lab) {
  TANDEM_ASSIGN(auto before, Client::serving(lab));
  const uint64_t session = before->session;
  before.reset();
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  RawFrame request = client->request(1);
  request.header.session = session;
  TANDEM_TRY(client->send(request));
  return expect_refuse(*client);
}

}  // namespace

void add_session_cases(std::vector<Case>& cases) {
  cases.push_back(wrong_header("wrong_session", "a request of a session that is none",
                               [](Lab&, FrameHeader& h) { h.session ^= 0xffff; }));
  cases.push_back(
      wrong_header("session_zero", "a request of session 0", [](Lab&, FrameHeader& h) { h.session = 0; }));
  cases.push_back(wrong_header("of_another", "a request in somebody else's name",
                               [](Lab& lab, FrameHeader& h) { h.session = lab.bystander->session; }));
  cases.push_back(
      {"session.of_the_past", "a request of a session that has ended ends this one too", old_session});
  cases.push_back(wrong_header("wrong_incarnation", "a request for another incarnation",
                               [](Lab&, FrameHeader& h) { ++h.incarnation; }));
  cases.push_back({"session.cancel_of_another",
                   "a cancel in somebody else's name ends the session with refuse", [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::serving(lab));
                     RawFrame cancel = client->plain(FrameKind::cancel);
                     cancel.header.session = lab.bystander->session;
                     TANDEM_TRY(client->send(cancel, Channel::control));
                     return expect_refuse(*client);
                   }});
  cases.push_back(
      {"session.cancel_of_nothing", "a cancel of what is not there is not answered", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::serving(lab));
         TANDEM_TRY(client->send(client->plain(FrameKind::cancel), Channel::control));
         TANDEM_TRY(expect_quiet(*client));
         return expect_served(*client);
       }});
  cases.push_back({"session.cancel_in_flight",
                   "a cancelled request's tiles are answered or dropped, and give their slots back",
                   cancel_in_flight});
  cases.push_back({"session.cancel_overtakes", "a cancel before its request does nothing", cancel_overtakes});
  cases.push_back({"session.cancel_of_another_attempt",
                   "a cancel of another attempt leaves the request alone", cancel_of_another_attempt});
  cases.push_back({"session.many_cancels", "forty cancels in a row are taken", many_cancels});
  cases.push_back({"session.goodbye", "a goodbye ends the session", [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::serving(lab));
                     TANDEM_TRY(client->send(client->plain(FrameKind::goodbye), Channel::control));
                     return expect_end(*client);
                   }});
  cases.push_back({"session.refuse", "a refuse of the client ends the session", [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::serving(lab));
                     RawFrame refuse = client->plain(FrameKind::refuse);
                     refuse.payloads.push_back(
                         {PayloadRole::error_code, DType::u32, 1, 1, bytes_of(std::vector<uint32_t>{9})});
                     refuse.payloads.push_back(
                         text_payload(PayloadRole::error_text, "conformance has had enough"));
                     TANDEM_TRY(client->send(refuse, Channel::control));
                     return expect_end(*client);
                   }});
  cases.push_back({"session.many", "six sessions at once are served", many_sessions});
  cases.push_back({"session.reconnects",
                   "clients that come and go, and leave requests behind, trouble nobody", reconnects});
}

}  // namespace tandem::conformance
