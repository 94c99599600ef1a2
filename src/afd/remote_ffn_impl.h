// RemoteFfn::Impl: what the two files of RemoteFfn share. Not for anybody else.
//
// Locking: `mutex` guards what stands below it. The I/O thread alone changes `link`, `endpoint` and `facts`
// (under the mutex), so it may read them without.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "afd/handshake.h"
#include "afd/in_flight.h"
#include "afd/remote_ffn.h"
#include "transport/idle_spin.h"
#include "transport/poller.h"

namespace tandem {

struct RemoteFfn::Impl {
  enum class Link : uint8_t { down, up, draining };

  Impl(const RemoteFfnOptions& given, Poller io_poller, int completion_fd)
      : options(given),
        traits(given.settings.traits()),
        self(make_identity(given.role, given.attention_rank)),
        session_kind(kind_of(given)),
        label(fmt::format("FFN rank {} at {}", given.ffn_rank, given.addresses.front())),
        poller(std::move(io_poller)),
        spin(given.may_spin),
        event_fd(completion_fd),
        table(given.max_in_flight) {
    endpoint_options = options.settings.endpoint_options(options.slots_per_channel);
    endpoint_options.heartbeat_interval = options.heartbeat_interval;
    endpoint_options.silence_limit = options.silence_limit;
    endpoint_options.adopt = !options.states_settings;
    endpoint_options.security = options.security;
    endpoint_options.connect_limit = std::min(kLongestTry, options.handshake_limit);
    completions.reserve(options.max_in_flight);
  }
  static SessionKind kind_of(const RemoteFfnOptions& options) {
    const bool exchange = options.role == "ffn";
    return {.channel = exchange ? Channel::exchange : Channel::request,
            .parts = exchange || (options.holds_part && options.settings.gate_on_attention),
            .states = options.states_settings};
  }
  ~Impl() {
    stop.store(true);
    poller.wake();
    {
      const std::lock_guard lock(mutex);
      changed.notify_all();
    }
    if (io.joinable()) io.join();
    close(event_fd);
  }

  // Holds the mutex where requests may complete, and tells the owner of it behind.
  class Hold {
   public:
    explicit Hold(Impl& impl) : impl_(impl), lock_(impl.mutex) {}
    ~Hold() { impl_.tell(lock_); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    void unlock() { lock_.unlock(); }
    void lock() { lock_.lock(); }

   private:
    Impl& impl_;
    std::unique_lock<std::mutex> lock_;
  };

  // ---- any thread, mutex held ----

  std::string peer_text(const std::string& what) const { return label + ": " + what; }

  void complete(InFlightRequest& entry, Status status) {
    if (!status) ++stats.failures;
    const LastAnswer last{
        .rank = static_cast<uint16_t>(options.ffn_rank), .arrived = now(), .times = entry.last};
    completions.push_back({entry.ticket, std::move(status), entry.times, last});
    table.close(entry);
    signal();
  }
  // The owner is told when the mutex is free again: it would wake up to wait for it.
  void signal() { must_tell = true; }
  void tell(std::unique_lock<std::mutex>& lock) {
    const bool ring = std::exchange(must_tell, false) && (options.notify || !std::exchange(event_set, true));
    lock.unlock();
    if (!ring) return;
    if (options.notify) return options.notify();
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(event_fd, &one, sizeof one);  // full: it is readable already
  }
  // Nothing is left to be fetched. A poll that finds nothing, as most do, asks the kernel nothing.
  void unsignal() {
    if (!event_set) return;
    uint64_t drained = 0;
    // Not readable yet: whoever completed is about to write.
    if (read(event_fd, &drained, sizeof drained) == sizeof drained) event_set = false;
  }

  // remote_ffn.cc
  FrameHeader tile_header(const InFlightRequest& entry, uint32_t tile) const;
  // Sends one tile: would_block when there is no credit.
  Status send_tile(InFlightRequest& entry);
  // Sends what waits until there is nothing, or no credit. The last credit is kept for decode.
  void pump();
  // Tells the FFN rank that the rest of a request is not wanted. Only saves work there: losing it costs
  // nothing.
  void send_cancel(const InFlightRequest& entry);
  void fail_all(const Error& error);
  std::optional<Status> start_result() const;

  // ---- the I/O thread: remote_ffn_io.cc ----

  Status connect_once();
  // The map of the only rank, or null for a rank that holds a part; refuses what does not fit.
  Result<std::shared_ptr<const ExpertMap>> map_of(const FfnRankFacts& rank) const;
  void lose(const Error& error);
  void run();
  void reconnect();
  void serve();
  // Completes what is late; returns how long until the next deadline.
  Duration check_deadlines();
  // An error ends the connection.
  Status on_message(std::span<const std::byte> message);
  Status on_reply(const FrameView& frame);

  const RemoteFfnOptions options;
  const FfnTraits traits;
  const PeerIdentity self;
  const SessionKind session_kind;
  const std::string label;  // "FFN rank 0 at tcp://host:7000"
  EndpointOptions endpoint_options;
  Poller poller;
  IdleSpin spin;  // the I/O thread's
  const int event_fd;
  std::atomic<bool> stop{false};
  std::thread io;
  std::unique_ptr<Endpoint> owned;  // the I/O thread's; others use `endpoint` under the mutex
  Instant last_waiting_log{};
  bool peer_answers = false;  // the last attempt came as far as the handshake
  bool said_goodbye = false;  // the peer: it stops, and is not lost

  mutable std::mutex mutex;
  std::condition_variable changed;
  bool must_tell = false;  // a completion was added
  bool event_set = false;  // event_fd is readable, or is about to be
  Link link = Link::down;
  Endpoint* endpoint = nullptr;
  Error reason{ErrorCode::unavailable, "not connected yet"};  // why the link is not up
  uint64_t failed_attempts = 0;
  FfnRankFacts facts;
  uint32_t epoch = 0;
  std::string transport;
  std::shared_ptr<const ExpertMap> expert_map;
  InFlightTable table;
  std::vector<Completion> completions;
  uint64_t next_empty_ticket = UINT64_MAX;  // requests without rows: counted down, never meets a table ticket
  Instant last_reply{};
  RemoteFfnStats stats;
};

}  // namespace tandem
