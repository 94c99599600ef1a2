// The rings of slots behind inproc and shm: RingMemory (what both ends see), RingSender and RingReceiver
// (what one end knows about one direction, all channels). Nothing that the other side can write is trusted:
// counts and slot indices are read once, checked against what this side knows, and used from the copy.
//
// Threads: RingSender is for any thread (one mutex); RingReceiver::receive and has_waiting are for the
// poller, release for any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/endpoint.h"
#include "transport/free_slots.h"
#include "transport/ring_layout.h"
#include "transport/unique_fd.h"

namespace tandem {

// The mapping and the two doorbells, alive until the endpoint and every lease are gone.
class RingMemory {
 public:
  // Takes `base`, mapped for layout.total_bytes(), and unmaps it at the end. doorbells[s] wakes side s.
  RingMemory(std::byte* base, RingLayout layout, UniqueFd doorbell0, UniqueFd doorbell1)
      : base_(base), layout_(layout), doorbells_{std::move(doorbell0), std::move(doorbell1)} {}
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;
  ~RingMemory();

  const RingLayout& layout() const { return layout_; }
  SideBlock& side(int side) const { return at<SideBlock>(layout_.side(side)); }
  RingControl& control(int direction, Channel channel) const {
    return at<RingControl>(layout_.control(direction, channel));
  }
  SentEntry& sent_entry(int direction, Channel channel, uint64_t count) const {
    return at<SentEntry>(layout_.sent_entry(direction, channel, count));
  }
  FreedEntry& freed_entry(int direction, Channel channel, uint64_t count) const {
    return at<FreedEntry>(layout_.freed_entry(direction, channel, count));
  }
  std::byte* slot(int direction, Channel channel, uint32_t index) const {
    return base_ + layout_.slot(direction, channel, index);
  }

  int doorbell(int side) const { return doorbells_[side].get(); }
  void ring(int side) const;   // wakes that side; any thread
  bool drain(int side) const;  // after waking; whether it had been rung

 private:
  template <class T>
  T& at(size_t offset) const {
    return *reinterpret_cast<T*>(base_ + offset);
  }

  std::byte* base_;
  RingLayout layout_;
  UniqueFd doorbells_[2];
};

// data_loss from any of these means: the other side wrote what cannot be; the connection is broken.
class RingSender {
 public:
  RingSender(std::shared_ptr<RingMemory> memory, int side, size_t slot_bytes);

  // `bytes` is within the slot. would_block without a credit.
  Result<SendSlot> acquire(Channel channel, size_t bytes);
  // Gives the slot back unsent when `send` is false or `bytes` is 0.
  Result<void> commit(const SendSlot& slot, size_t bytes, bool send);
  // True once when a credit is back that an acquire had missed. For the poller before it sleeps: a doorbell
  // that rang between that acquire and the last poll has been drained by it.
  bool take_credit_news();

 private:
  enum class SlotState : uint8_t { free, acquired, in_flight };
  struct Ring {
    std::vector<SlotState> states;  // [slots]
    FreeSlots free;
    uint64_t sent = 0;
    uint64_t freed = 0;
    uint32_t in_flight = 0;
    bool missed = false;  // an acquire found no credit
  };
  Result<void> collect_freed(Channel channel);

  std::shared_ptr<RingMemory> memory_;
  int side_;
  size_t slot_bytes_;
  std::mutex mutex_;
  Ring rings_[kNumChannels];
};

class RingReceiver final : public Lease::Owner, public std::enable_shared_from_this<RingReceiver> {
 public:
  RingReceiver(std::shared_ptr<RingMemory> memory, int side, size_t slot_bytes);

  // The next message of the channel, or nothing.
  Result<std::optional<Lease>> receive(Channel channel);
  bool has_waiting() const;
  void release(uint64_t token) override;

 private:
  struct Ring {
    uint64_t received = 0;
    uint64_t freed = 0;        // under mutex_
    std::vector<bool> leased;  // [slots], under mutex_
  };

  std::shared_ptr<RingMemory> memory_;
  int direction_;  // the other side
  size_t slot_bytes_;
  std::mutex mutex_;
  Ring rings_[kNumChannels];
};

}  // namespace tandem
