// TcpSender: everything that one side of a tcp connection writes, and the socket itself. Messages wait in
// their slots until the socket takes them; credits and heartbeats go ahead of waiting messages, at the next
// frame border.
//
// Threads: acquire, commit and give_credit are for any thread; the rest is for the poller. One mutex; no call
// blocks (a commit copies its message into the socket's buffer as far as that has room, and leaves the rest
// to the poller).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/buffer.h"
#include "transport/endpoint.h"
#include "transport/free_slots.h"
#include "transport/tcp_frame.h"
#include "transport/tcp_stream.h"
#include "transport/unique_fd.h"

namespace tandem {

class TcpSender {
 public:
  // Takes a connection whose handshake is done.
  static Result<std::shared_ptr<TcpSender>> create(TcpStream stream, const EndpointOptions& options);

  Result<SendSlot> acquire(Channel channel, size_t bytes);
  // unavailable: the socket is dead (the reader will say so too). The slot is given back.
  Result<void> commit(const SendSlot& slot, size_t bytes, bool send);
  // A received slot was given back. Told to the peer at once when the poller sleeps or half of the channel's
  // credits have gathered, else by the poller's next flush.
  void give_credit(Channel channel);

  // The reader reads it; everything else is for the sender.
  TcpStream& stream() { return stream_; }
  int epoll() const { return epoll_.get(); }
  // The peer sent a message: false when it had no credit for it.
  bool take_granted(Channel channel);
  // The peer gave credits back. data_loss: more than are out.
  Result<void> add_credits(Channel channel, uint32_t count);
  void beat();
  void flush();
  // False when a credit came back that an acquire had missed; else the poller counts as asleep until wake().
  bool sleep();
  void wake();
  // Tries to send what waits and a goodbye, once and without waiting, and closes. Twice does nothing.
  void close(bool say_bye);

 private:
  struct WireFrame {
    std::array<std::byte, TcpFrameLayout::kHeaderBytes> header;
    std::span<const std::byte> payload;  // empty for credits and heartbeats
    Channel channel;
    uint32_t slot;
  };
  struct Ring {
    std::vector<bool> acquired;  // [slots]
    FreeSlots free;              // slots that are neither acquired nor waiting for the socket
    uint32_t credits = 0;        // messages that the peer has room for
    uint32_t granted = 0;        // messages that we have room for, as the peer knows
    uint32_t to_grant = 0;       // given back here, not yet told
    bool starved = false;        // an acquire missed a credit
  };

  TcpSender(TcpStream stream, UniqueFd epoll, OwnedBuffer buffer, const EndpointOptions& options);
  void insert_control(const TcpFrame& frame);
  void flush_locked();
  void advance(size_t written);
  void watch_writable(bool wanted);

  TcpStream stream_;
  UniqueFd epoll_;  // holds the socket; readable when the poller has work
  OwnedBuffer buffer_;
  const uint32_t slots_;
  const size_t slot_bytes_;
  const size_t slot_stride_;

  std::mutex mutex_;
  Ring rings_[kNumChannels];
  std::vector<WireFrame> queue_;
  size_t front_written_ = 0;  // bytes of queue_[0] that the socket has taken
  bool beat_waits_ = false;
  bool asleep_ = false;
  bool credit_news_ = false;
  bool watching_writable_ = false;
  bool dead_ = false;
};

}  // namespace tandem
