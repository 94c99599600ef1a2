// Requests that are right, and what comes back (docs/protocol.md, section 5).
#include <fmt/format.h>

#include <map>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

// Sends a request that `change` made of a right one; its reply.
Case served(const std::string& name, const std::string& expects, uint32_t rows,
            std::function<void(const RankFacts&, RawFrame&)> change = {}) {
  return {"request." + name, expects, [rows, change = std::move(change)](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, Client::serving(lab));
            RawFrame request = client->request(rows);
            if (change) change(lab.facts, request);
            TANDEM_TRY(client->send(request));
            TANDEM_ASSIGN([[maybe_unused]] const Received reply, expect_reply(*client, request));
            return {};
          }};
}

// Sends all, then takes as many replies: each request has exactly one, in whatever order.
Status each_has_one(Client& client, const std::vector<RawFrame>& requests) {
  const auto name = [](const FrameHeader& h) {
    return fmt::format("step {} lane {} tile {} attempt {}", h.step, h.lane, h.tile, h.attempt);
  };
  std::map<std::string, int> wanted;
  for (const RawFrame& request : requests) {
    ++wanted[name(request.header)];
    TANDEM_TRY(client.send(request));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto reply = client.frame();
    if (!reply) return mismatch(fmt::format("{} replies", requests.size()), reply.error().message);
    const std::string of = name(reply->view.header);
    if (reply->view.header.kind != FrameKind::ffn_reply || reply->code() != 0 || --wanted[of] < 0)
      return mismatch("one reply to each request", fmt::format("{} ({})", reply->text(), of));
  }
  return expect_quiet(client);
}

Status tiles_in_any_order(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  std::vector<RawFrame> tiles;
  for (const uint16_t tile : {3, 0, 2, 1}) {
    tiles.push_back(client->request(2));
    tiles.back().header.step = 1;
    tiles.back().header.tile = tile;
    tiles.back().header.tiles = 4;
  }
  return each_has_one(*client, tiles);
}

Status variants(Lab& lab, std::function<void(FrameHeader&, uint16_t)> change) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  std::vector<RawFrame> requests;
  for (uint16_t i = 0; i < 3; ++i) {
    requests.push_back(client->request(1));
    requests.back().header.step = 1;
    change(requests.back().header, i);
  }
  return each_has_one(*client, requests);
}

Status header_repeated(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::serving(lab));
  RawFrame request = client->request(3);
  FrameHeader& header = request.header;
  header.step = 0xfedcba98;
  header.lane = 0xabcd;
  header.tile = 0x1234;
  header.tiles = 0xffff;
  header.map_epoch = 0x87654321;
  header.capacity = 64;
  header.attempt = 0xfffe;
  header.row_class = 2;
  TANDEM_TRY(client->send(request));
  TANDEM_ASSIGN([[maybe_unused]] const Received reply, expect_reply(*client, request));
  return {};
}

}  // namespace

void add_request_cases(std::vector<Case>& cases) {
  cases.push_back(served("one_row", "a request of one row is answered with one", 1));
  cases.push_back(served("no_rows", "a tile without rows is answered", 0));
  cases.push_back(served("no_rows_with_capacity", "a tile without rows and with a capacity is answered", 0,
                         [](const RankFacts&, RawFrame& f) { f.header.capacity = 64; }));
  cases.push_back(served("full_tile", "a tile of 64 rows is answered with 64", 64));
  cases.push_back(served("odd_rows", "a tile of 37 rows is answered with 37", 37));
  cases.push_back(served("capacity", "spare rows of the capacity are neither sent nor answered", 3,
                         [](const RankFacts&, RawFrame& f) { f.header.capacity = 64; }));
  cases.push_back(
      {"request.header_repeated", "a reply repeats every field of the request's header", header_repeated});
  cases.push_back({"request.every_layer", "every layer with experts answers", [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::serving(lab));
                     for (const uint16_t layer : lab.facts.moe_layers) {
                       RequestShape shape;
                       shape.rows = {1, 2};
                       shape.layer = layer;
                       RawFrame request = client->request(shape);
                       request.header.layer = layer;
                       TANDEM_TRY(client->send(request));
                       TANDEM_ASSIGN([[maybe_unused]] const Received reply, expect_reply(*client, request));
                     }
                     return {};
                   }});
  for (const auto& [row_class, name] :
       {std::pair<uint8_t, const char*>{0, "decode"}, {1, "draft"}, {2, "prefill"}, {3, "profile"}}) {
    cases.push_back(
        served(fmt::format("class_{}", name), fmt::format("rows of class {} are served", name), 2,
               [row_class = row_class](const RankFacts&, RawFrame& f) { f.header.row_class = row_class; }));
  }
  cases.push_back({"request.tiles_in_any_order", "tiles of a request are served in whatever order they come",
                   tiles_in_any_order});
  cases.push_back({"request.duplicates", "a request that comes three times is answered three times",
                   [](Lab& lab) { return variants(lab, [](FrameHeader&, uint16_t) {}); }});
  cases.push_back({"request.attempts", "attempts of a request are requests of their own", [](Lab& lab) {
                     return variants(lab, [](FrameHeader& h, uint16_t i) { h.attempt = i; });
                   }});
  cases.push_back({"request.lanes", "lanes are independent",
                   [](Lab& lab) { return variants(lab, [](FrameHeader& h, uint16_t i) { h.lane = i; }); }});
  cases.push_back({"request.steps_backwards", "steps may come in any order", [](Lab& lab) {
                     return variants(lab, [](FrameHeader& h, uint16_t i) { h.step = 9u - i; });
                   }});
  cases.push_back(
      {"request.layers_at_once", "requests of several layers at once are served", [](Lab& lab) -> Status {
         return variants(lab, [&](FrameHeader& h, uint16_t i) {
           h.layer = lab.facts.moe_layers[i % lab.facts.moe_layers.size()];
           h.attempt = i;
         });
       }});
  cases.push_back(
      {"request.classes_at_once", "decode and prefill at once are served", [](Lab& lab) -> Status {
         return variants(lab, [](FrameHeader& h, uint16_t i) {
           h.row_class = static_cast<uint8_t>(i);
           h.attempt = i;
         });
       }});
  cases.push_back(served("epoch", "whole rows are served whatever their map_epoch", 2,
                         [](const RankFacts&, RawFrame& f) { f.header.map_epoch = 0xdeadbeef; }));
  Case program =
      served("program", "a decode step that names a program is served", 1,
             [](const RankFacts& facts, RawFrame& f) { f.header.program = facts.capture_sizes.front(); });
  program.skip = [](const RankFacts& facts) {
    return std::string(facts.graph ? "" : "the session is eager");
  };
  cases.push_back(std::move(program));
  Case part = served("part", "a part of a rank that holds all experts is served", 2,
                     [](const RankFacts&, RawFrame& f) { f.header.flags = kFramePartial; });
  part.skip = without_routing;
  cases.push_back(std::move(part));
  Case zero_slot =
      served("part_zero_slots", "slots of weight 0 are left out", 2, [](const RankFacts& facts, RawFrame& f) {
        f.header.flags = kFramePartial;
        std::vector<float> weights(size_t{2} * facts.top_k);
        weights.front() = weights.back() = 0.5f;
        f.find(PayloadRole::expert_weights)->data = bytes_of(weights);
      });
  zero_slot.skip = without_routing;
  cases.push_back(std::move(zero_slot));
  Case repeated = served("expert_twice", "an expert in two slots of a row counts twice", 1,
                         [](const RankFacts& facts, RawFrame& f) {
                           f.find(PayloadRole::expert_ids)->data =
                               bytes_of(std::vector<int32_t>(facts.top_k, 0));
                         });
  repeated.skip = without_routing;
  cases.push_back(std::move(repeated));
}

}  // namespace tandem::conformance
