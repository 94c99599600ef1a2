// For tests: a client of an FFN worker that sends what it likes.
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "afd/handshake.h"
#include "ffn/split_testing.h"

namespace tandem::split_testing {

struct Served {
  explicit Served(const Placement& placement = {}, std::string_view scheme = "inproc",
                  const std::function<void(FfnWorkerOptions&)>& change = {})
      : ffn(placement), reference(placement) {
    FfnWorkerOptions options = ffn.worker_options(fresh_address(scheme));
    if (change) change(options);
    auto created = FfnWorker::create(options, ffn.block());
    EXPECT_TRUE(created.has_value()) << created.error().message;
    worker = std::move(*created);
  }
  SplitModel ffn, reference;
  std::unique_ptr<FfnWorker> worker;
};

// A client that sends what it likes.
class RawClient {
 public:
  RawClient(Served& served, bool handshake) : settings_(served.reference.settings()) {
    auto connected = connect(served.worker->address(), settings_.endpoint_options(8));
    EXPECT_TRUE(connected.has_value()) << connected.error().message;
    endpoint_ = std::move(*connected);
    if (!handshake) return;
    auto opened = open_session(*endpoint_, "raw", settings_, make_identity("attention", 9),
                               now() + std::chrono::seconds(10), stop_);
    EXPECT_TRUE(opened.has_value()) << opened.error().message;
    facts = *opened;
  }

  void send(Channel channel, std::span<const std::byte> bytes) {
    auto slot = endpoint_->acquire(channel, bytes.size());
    ASSERT_TRUE(slot.has_value()) << slot.error().message;
    std::memcpy(slot->bytes.data(), bytes.data(), bytes.size());
    ASSERT_TRUE(endpoint_->commit(*slot, bytes.size()).has_value());
  }
  // The next frame as a copy; empty when the connection ends first.
  std::vector<std::byte> receive() {
    const Instant limit = now() + std::chrono::seconds(20);
    while (now() < limit) {
      Incoming incoming;
      if (endpoint_->poll({&incoming, 1}) == 1) {
        const auto bytes = incoming.lease.bytes();
        return {bytes.begin(), bytes.end()};
      }
      if (endpoint_->peer() != PeerState::alive) return {};
      if (endpoint_->arm()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "nothing came";
    return {};
  }
  // The reason of the refusal that must come next; afterwards the connection ends.
  std::string refusal() {
    const auto bytes = receive();
    const auto frame = parse_frame(bytes);
    if (!frame) return "no frame: " + frame.error().message;
    if (frame->header.kind != FrameKind::refuse)
      return "no refusal but " + std::string(frame_kind_name(frame->header.kind));
    EXPECT_TRUE(receive().empty());
    return read_error(*frame).message;
  }

  FrameHeader header(uint32_t rows) const {
    FrameHeader made;
    made.kind = FrameKind::ffn_request;
    made.session = facts.session;
    made.incarnation = facts.incarnation;
    made.layer = 1;
    made.tiles = 1;
    made.rows = made.capacity = rows;
    return made;
  }
  std::vector<std::byte> request(const FrameHeader& head, int32_t first_id = 0) const {
    const std::vector<bf16> rows(size_t{head.rows} * kHidden, to_bf16(0.5f));
    std::vector<int32_t> ids(size_t{head.rows} * kTopK, 1);
    if (!ids.empty()) ids[0] = first_id;
    const std::vector<float> weights(ids.size(), 0.5f);
    TileView tile{.header = head, .in = {DType::bf16, rows.data(), kHidden}, .routing = NoRouting{}};
    if (settings_.gate_on_attention) tile.routing = RoutingView{ids, weights, kTopK};
    const auto layout = request_layout(head, settings_).value();
    std::vector<std::byte> frame(layout.total_bytes());
    write_request(tile, layout, settings_, frame);
    return frame;
  }

  // Sends heartbeats and nothing else, and reads nothing.
  void stay_deaf() { endpoint_->poll({}); }
  // Whether a request finds a credit.
  bool may_send(size_t bytes) {
    const auto slot = endpoint_->acquire(Channel::request, bytes);
    if (!slot) return false;
    EXPECT_TRUE(endpoint_->commit(*slot, 0).has_value());
    return true;
  }

  FfnRankFacts facts;

 private:
  SplitSettings settings_;
  std::atomic<bool> stop_{false};
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace tandem::split_testing
