// RemoteEngine::Impl: what the two files of RemoteEngine share. Not for anybody else.
//
// Locking: `mutex` guards what stands below it. Sinks are called by the I/O thread without it.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "serving/engine_link.h"
#include "serving/engine_outbox.h"
#include "serving/remote_engine.h"
#include "transport/poller.h"

namespace tandem {

// Errors that another try cannot mend.
inline bool is_final_refusal(ErrorCode code) {
  return code == ErrorCode::invalid_argument || code == ErrorCode::unsupported ||
         code == ErrorCode::data_loss;
}

struct RemoteEngine::Impl final : EventLayout::Visitor {
  enum class Link : uint8_t { down, greeting, up, draining };

  // What waits to be sent, in order: a request, or the cancel of one that has been sent.
  struct Outgoing {
    RequestId id = 0;
    std::vector<std::byte> bytes;  // of the request; empty: a cancel
    size_t sent = 0;
  };

  Impl(const RemoteEngineOptions& given, Poller poller);

  // ---- any thread ----
  Error lost_reason() const;  // mutex held
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink);
  void cancel(RequestId id);

  // ---- the I/O thread: remote_engine_io.cc ----
  void run();
  void reconnect();
  Status connect_once();
  Status greet(Instant limit);
  Status on_ack(std::span<const std::byte> body);
  void serve();
  Status on_message(const Incoming& incoming);
  // Sends what waits until there is nothing, or no credit. True: something has left.
  bool pump();
  void lose(const Error& error);
  void end_all(FinishReason reason, const Error& error);
  void finish(RequestId id, const Finish& end);

  std::shared_ptr<GenerationSink> sink_of(RequestId id);
  void on_token(uint64_t request, const TokenEvent& event) override;
  void on_prompt_token(uint64_t request, const TokenEvent& event) override;
  void on_finish(uint64_t request, const Finish& end) override;

  const RemoteEngineOptions options;
  const std::string label;
  EndpointOptions endpoint_options;
  const std::shared_ptr<EngineBell> bell;
  std::atomic<bool> stop{false};
  std::thread io;
  std::unique_ptr<Endpoint> endpoint;  // the I/O thread's
  bool blocked = false;                // the I/O thread's: what waits has found no credit
  bool said_goodbye = false;           // the I/O thread's: the rank has
  Instant last_waiting_log{};

  mutable std::mutex mutex;
  std::condition_variable changed;
  Link link = Link::down;
  Error reason{ErrorCode::unavailable, "not connected yet"};  // why the link is not up
  bool refused = false;  // the last try failed in a way that another cannot mend
  std::optional<EngineLimits> limits;
  EngineIdentity peer;
  EngineState state;
  EngineStats before;  // totals of the rank's earlier processes
  uint64_t connections = 0;
  RequestId next_id = 1;
  std::deque<Outgoing> outgoing;
  std::vector<RequestId> unsent;  // cancelled before anything of them has left
  std::map<RequestId, std::shared_ptr<GenerationSink>> sinks;
};

}  // namespace tandem
