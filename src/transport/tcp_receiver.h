// TcpReceiver: everything that one side of a tcp connection reads. Each message is received into a slot that
// was there before the credit for it: nothing is allocated for what a peer says. Owns the slots and lends
// them as leases.
//
// Threads: release is for any thread; the rest is for the poller.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "transport/endpoint.h"
#include "transport/free_slots.h"
#include "transport/tcp_frame.h"
#include "transport/tcp_sender.h"

namespace tandem {

class TcpReceiver final : public Lease::Owner, public std::enable_shared_from_this<TcpReceiver> {
 public:
  static Result<std::shared_ptr<TcpReceiver>> create(std::shared_ptr<TcpSender> sender,
                                                     const EndpointOptions& options);

  struct Progress {
    bool heard = false;  // bytes came
    bool ended = false;  // no more will: `reason` says how the peer left
    std::string reason;
    bool orderly = false;  // it said goodbye
  };
  // Reads what the socket has, up to a bound. data_loss naming what the peer did wrong.
  Result<Progress> read();
  // The next whole message, in the order of arrival.
  std::optional<Incoming> next();
  bool has_waiting() const { return ready_begin_ != ready_.size(); }

  void release(uint64_t token) override;

 private:
  struct Message {
    Channel channel = Channel::control;
    uint32_t slot = 0;
    uint32_t bytes = 0;
  };
  TcpReceiver(std::shared_ptr<TcpSender> sender, OwnedBuffer slots, OwnedBuffer staging,
              const EndpointOptions& options);
  std::byte* slot_data(const Message& message) const;
  Result<void> begin_message(const TcpFrame& frame);
  Result<void> take_staged(Progress& progress);
  std::string why_lost(int error_number) const;

  std::shared_ptr<TcpSender> sender_;  // for credits; also keeps the socket's epoll alive while leases live
  OwnedBuffer slots_buffer_;
  const uint32_t slots_;
  const size_t slot_bytes_;
  const size_t slot_stride_;

  std::mutex mutex_;
  FreeSlots free_[kNumChannels];  // under mutex_

  // Poller. Bytes of frame headers (and what came with them) pass through staging; the rest of a message is
  // read straight into its slot.
  OwnedBuffer staging_;
  size_t staged_ = 0;
  Message partial_;
  size_t partial_received_ = 0;
  bool in_message_ = false;
  std::vector<Message> ready_;
  size_t ready_begin_ = 0;
};

}  // namespace tandem
