// EngineOutbox: what one front has still to be told, between the engine's thread, which appends and never
// waits, and the I/O thread of EngineServer, which sends. Shared with the sinks of the front's requests: they
// may outlive the connection, and then write into the void. A request is here from its arrival on, the engine
// may know it later.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "serving/engine_wire.h"
#include "transport/poller.h"

namespace tandem {

// Wakes the I/O thread, once for any number of events while it sleeps. Shared with sinks.
class EngineBell {
 public:
  explicit EngineBell(Poller value) : poller_(std::move(value)) {}
  Poller& poller() { return poller_; }
  // The I/O thread says so before it looks for work for the last time, and then waits.
  void will_sleep() { asleep_.store(true); }
  void awake() { asleep_.store(false); }
  void ring() {
    if (asleep_.exchange(false)) poller_.wake();
  }

 private:
  Poller poller_;
  std::atomic<bool> asleep_{false};
};

class EngineOutbox : public std::enable_shared_from_this<EngineOutbox> {
 public:
  // `max_bytes` of events may wait; a front that lets more come is too slow, and its requests are ended.
  EngineOutbox(std::shared_ptr<EngineBell> bell, size_t max_bytes)
      : bell_(std::move(bell)), max_bytes_(max_bytes) {}

  // ---- I/O thread ----
  // A request that begins; its sink. Null: the front has one of this number.
  std::shared_ptr<GenerationSink> open(uint64_t request);
  // The front wants no more of a request: the engine's number, to cancel it there. Nothing: it has ended, or
  // the engine does not have it yet, and is_wanted and set_engine_id will say so.
  std::optional<RequestId> cancel(uint64_t request);
  // Moves whole records, at most `limit` bytes, into `out`.
  void take(size_t limit, std::vector<std::byte>& out);
  bool has_events() const;
  size_t num_requests() const;
  // Requests to cancel because events had to be dropped.
  std::vector<RequestId> take_overrun();
  // Nothing is written any more; the requests that are still in the engine.
  std::vector<RequestId> close();

  // ---- whoever gives requests to the engine ----
  // False: the front has left, or has cancelled it.
  bool is_wanted(uint64_t request) const;
  // The engine has taken it. False: nobody wants it any more, or events of it were lost already: to be
  // cancelled there.
  bool set_engine_id(uint64_t request, RequestId id);
  // Ends a request that the engine does not have.
  void refuse(uint64_t request, const Error& error);

  // ---- engine thread ----
  void token(uint64_t request, const TokenEvent& event);
  void prompt_token(uint64_t request, const TokenEvent& event);
  void finish(uint64_t request, const Finish& finish);

 private:
  // Of a request that is open and has lost nothing yet; under the lock.
  template <class Append>
  void append(uint64_t request, Append append_record);

  struct Request {
    std::optional<RequestId> engine_id;
    bool dropped = false;    // events of it were lost: its end says so
    bool cancelled = false;  // by the front
  };

  const std::shared_ptr<EngineBell> bell_;
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  bool open_ = true;
  std::vector<std::byte> records_;
  size_t taken_ = 0;  // of records_, from the front
  std::map<uint64_t, Request> requests_;
  std::vector<RequestId> overrun_;
};

}  // namespace tandem
