// UcxConnection: the messages of one ucx connection: slots and credits of both directions around a UcxWorker.
// Leases keep it alive.
//
// Threads: acquire, commit and release are for any thread, the rest is for the poller. Two locks. `state_` is
// held for some instructions at a time. `worker_lock_` is held over every call into UCX, which may copy a
// whole message; so no call but the poller's waits for it: who finds it taken leaves the message in the
// outbox, and who holds it looks there after giving it up. Order: worker_lock_, then state_.
//
// Credits travel in the header of every message, as counts; a frame of their own is sent only when half of a
// channel's slots have gathered untold, or when the peer has said that it misses one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "transport/endpoint.h"
#include "transport/free_slots.h"
#include "transport/ucx_frame.h"
#include "transport/ucx_worker.h"
#include "transport/unique_fd.h"

namespace tandem {

class UcxConnection final : public Lease::Owner,
                            public std::enable_shared_from_this<UcxConnection>,
                            private UcxWorker::Events {
 public:
  static Result<std::shared_ptr<UcxConnection>> create(const EndpointOptions& options, const UcxPath& path);
  ~UcxConnection() override;

  // Handshake: exchange the addresses, then poll until wired: a message has come through each way.
  std::span<const std::byte> address() const { return worker_->address(); }
  Result<void> connect(std::span<const std::byte> peer_address);
  bool wired() const { return wired_ && hello_sent_; }

  Result<SendSlot> acquire(Channel channel, size_t bytes);
  Result<void> commit(const SendSlot& slot, size_t bytes, bool send);
  void release(uint64_t token) override;

  struct Progress {
    std::string lost;  // why UCX gave the path up
    std::string lie;   // what the peer sent that is not the protocol
  };
  Progress progress();
  // The next whole message in its channel's order, the channels in turn.
  std::optional<Incoming> next();
  bool has_waiting();
  // True: the poller may wait for the descriptors, and counts as asleep until the next progress.
  bool sleep();
  int ucx_fd() const { return worker_->fd(); }  // until close
  int wake_fd() const { return wake_.get(); }
  int timer_fd() const { return timer_.get(); }

  // Messages of each channel that have left, and whether as many have come.
  using Totals = std::array<uint32_t, kNumChannels>;
  Totals sent_totals();
  bool has_received(const Totals& totals);

  // Tries once, without waiting, to send what waits.
  void flush();
  // Drops everything but what was received. Twice does nothing.
  void close();

 private:
  struct Outgoing {
    Channel channel = Channel::control;
    uint32_t slot = 0;
    uint32_t bytes = 0;
    uint32_t sequence = 0;
  };
  enum class Arrival : uint8_t { none, begun, whole };
  struct Message {
    Arrival arrival = Arrival::none;
    uint32_t slot = 0;
    uint32_t bytes = 0;
  };
  struct Ticket {  // of a message that the peer keeps until it is fetched
    void* data;
    Channel channel;
    uint32_t sequence;
  };
  struct Ring {
    // Sending.
    std::vector<bool> acquired;  // [slots]
    FreeSlots send_free;         // slots that are neither acquired nor with UCX
    uint32_t credits = 0;        // messages that the peer has room for
    uint32_t sent = 0;           // committed since the start
    uint32_t left = 0;           // of these, those that UCX has no more to do for
    uint32_t peer_freed = 0;     // slots that the peer has given back since the start
    bool starved = false;        // an acquire missed a credit
    bool starved_told = false;
    // Receiving.
    FreeSlots receive_free;
    std::vector<Message> window;  // [slots], by sequence % slots
    uint32_t next_sequence = 0;   // of the next message to hand out
    uint32_t received = 0;        // whole messages
    uint32_t freed = 0;           // given back since the start
    uint32_t told = 0;            // of these, as the peer knows
    bool peer_starved = false;
  };

  UcxConnection(OwnedBuffer send_buffer, OwnedBuffer receive_buffer, UniqueFd wake, UniqueFd timer,
                const EndpointOptions& options);

  bool on_message(std::span<const std::byte> header, void* data, size_t bytes, bool rendezvous) override;
  void on_sent(size_t operation, bool ok) override;
  void on_received(size_t operation, bool ok) override;
  void on_lost(const std::string& reason) override;

  // Under state_.
  Result<void> take_credits(const UcxFrame& frame);
  Result<Message*> begin_message(const UcxFrame& frame, size_t bytes);
  std::array<std::byte, UcxFrameLayout::kBytes> make_header(UcxFrame frame);
  bool has_outgoing() const { return !outbox_.empty() || (control_due_ && !control_under_way_); }
  void free_send_slot(Channel channel, uint32_t slot);
  void credit_came(Ring& ring);

  // Under worker_lock_.
  void push_out();
  void fetch(const Ticket& ticket);

  void drain();  // under none
  bool try_to_sleep();
  void wake_poller();
  void lie(std::string what);

  size_t index(Channel channel, uint32_t slot) const { return static_cast<size_t>(channel) * slots_ + slot; }
  std::byte* send_data(Channel channel, uint32_t slot) const {
    return send_buffer_.data() + index(channel, slot) * slot_stride_;
  }
  std::byte* receive_data(Channel channel, uint32_t slot) const {
    return receive_buffer_.data() + index(channel, slot) * slot_stride_;
  }
  size_t control_operation() const { return kNumChannels * slots_; }

  OwnedBuffer send_buffer_;
  OwnedBuffer receive_buffer_;
  UniqueFd wake_;   // the poller has work that UCX's descriptor does not tell of
  UniqueFd timer_;  // see sleep()
  const uint32_t slots_;
  const size_t slot_bytes_;
  const size_t slot_stride_;

  std::mutex state_;
  Ring rings_[kNumChannels];
  std::vector<Outgoing> outbox_;
  bool control_due_ = false;
  bool control_under_way_ = false;
  bool credit_news_ = false;  // a credit or slot came back that an acquire had missed

  std::mutex worker_lock_;
  std::unique_ptr<UcxWorker> worker_;  // null when closed
  std::vector<Outgoing> batch_;
  std::vector<std::array<std::byte, UcxFrameLayout::kBytes>> headers_;  // one an operation: UCX reads it late
  std::vector<Ticket> tickets_;
  std::vector<uint32_t> fetching_;  // sequence of the message being fetched into a slot, one an operation
  size_t under_way_ = 0;            // sends that have not ended
  std::string lost_;
  std::string lie_;
  bool hello_due_ = false;
  bool hello_sent_ = false;
  bool hello_received_ = false;
  bool wired_ = false;

  std::atomic<bool> asleep_ = false;
  // Poller.
  bool slept_ = false;
  bool timer_set_ = false;
  int busy_arms_ = 0;
  size_t next_channel_ = 0;
};

}  // namespace tandem
