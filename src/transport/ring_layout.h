// RingLayout: where everything lies in the memory that the two ends of an inproc or shm connection share.
//
//   side blocks | ring controls and entries, by direction and channel | slots, by direction and channel, on
//   own pages
//
// Side 0 connected, side 1 accepted; direction d carries the messages of side d. All words are little-endian
// atomics of one machine; the memory starts zeroed, which is the valid empty state of each. Pure arithmetic,
// any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/endpoint.h"

namespace tandem {

// Written by one side, read by the other: each on its own cache line, so that sending and releasing do not
// collide.
struct RingControl {
  alignas(64) std::atomic<uint64_t> sent;     // messages published by the sender since the start
  alignas(64) std::atomic<uint64_t> freed;    // slots given back by the receiver since the start
  alignas(64) std::atomic<uint32_t> starved;  // the sender missed a credit and wants to be woken by the next
};
struct SideBlock {
  alignas(64) std::atomic<uint32_t> armed;   // this side sleeps and wants to be woken by the next message
  alignas(64) std::atomic<uint64_t> beats;   // inproc: grows with every heartbeat of this side
  alignas(64) std::atomic<uint32_t> closed;  // inproc: this side ended the connection
};
using SentEntry = std::atomic<uint64_t>;   // slot << 32 | bytes: one load sees both
using FreedEntry = std::atomic<uint32_t>;  // slot
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

class RingLayout {
 public:
  RingLayout(uint32_t slots, size_t slot_bytes)
      : slots_(slots),
        slot_stride_(round_up(slot_bytes, kPageBytes)),
        ring_stride_(round_up(sizeof(RingControl) + slots * (sizeof(SentEntry) + sizeof(FreedEntry)), 64)),
        slots_begin_(round_up(2 * sizeof(SideBlock) + 2 * kNumChannels * ring_stride_, kPageBytes)) {}

  uint32_t slots() const { return slots_; }
  size_t total_bytes() const { return slots_begin_ + 2 * kNumChannels * slots_ * slot_stride_; }

  size_t side(int side) const { return static_cast<size_t>(side) * sizeof(SideBlock); }
  size_t control(int direction, Channel channel) const {
    return 2 * sizeof(SideBlock) + ring(direction, channel) * ring_stride_;
  }
  size_t sent_entry(int direction, Channel channel, uint64_t count) const {
    return control(direction, channel) + sizeof(RingControl) + count % slots_ * sizeof(SentEntry);
  }
  size_t freed_entry(int direction, Channel channel, uint64_t count) const {
    return control(direction, channel) + sizeof(RingControl) + slots_ * sizeof(SentEntry) +
           count % slots_ * sizeof(FreedEntry);
  }
  size_t slot(int direction, Channel channel, uint32_t index) const {
    return slots_begin_ + (ring(direction, channel) * slots_ + index) * slot_stride_;
  }

 private:
  static constexpr size_t kPageBytes = 4096;  // slots of two channels or directions never share a page

  static constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
  static size_t ring(int direction, Channel channel) {
    return static_cast<size_t>(direction) * kNumChannels + static_cast<size_t>(channel);
  }

  uint32_t slots_;
  size_t slot_stride_;
  size_t ring_stride_;
  size_t slots_begin_;
};

}  // namespace tandem
