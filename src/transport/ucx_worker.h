// UcxWorker: one UCX worker with one UCX endpoint, that is, one connection. A worker of its own and not one
// of the process: it has its descriptor, ends with its connection, and no peer waits for the lock of another.
//
// Threads: none of it is thread-safe (UCS_THREAD_MODE_SERIALIZED: UCX takes no locks); the owner holds its
// own lock over every call. Callbacks come from within calls, on the calling thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "transport/ucx_library.h"

namespace tandem {

class UcxWorker {
 public:
  class Events {
   public:
    virtual ~Events() = default;
    // An active message. Without `rendezvous`, `data` is its bytes, for the length of this call. With, it is
    // a ticket for `receive` later; true takes it, false throws the message away.
    virtual bool on_message(std::span<const std::byte> header, void* data, size_t bytes, bool rendezvous) = 0;
    // Ends of operations that had not ended when they were begun. !ok: cancelled, or the path is lost.
    virtual void on_sent(size_t operation, bool ok) = 0;
    virtual void on_received(size_t operation, bool ok) = 0;
    // UCX gave the path to the peer up; nothing that waits will arrive.
    virtual void on_lost(const std::string& reason) = 0;
  };
  enum class Outcome { done, pending, failed };

  // `operations`: the numbers that send and receive may use are below. Takes some ten milliseconds and, on a
  // path with shared memory, some MiB of it for UCX's queues.
  static Result<std::unique_ptr<UcxWorker>> create(Events& events, size_t operations, const UcxPath& path);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // What the peer needs to reach this worker.
  std::span<const std::byte> address() const { return address_; }
  // unavailable: UCX knows no path to that worker. The address must be one that a UCX of this release made:
  // UCX does not defend itself against others.
  Result<void> connect(std::span<const std::byte> peer_address);

  // Header and payload must stay until the send has ended.
  Outcome send(std::span<const std::byte> header, std::span<const std::byte> payload, size_t operation);
  Outcome receive(void* ticket, std::span<std::byte> into, size_t operation);
  // Moves what can be moved; returns whether anything was.
  bool progress();
  // False: there is work, or work that UCX must be polled for; progress and try again. After true, fd becomes
  // readable when there is work.
  bool arm();
  int fd() const { return fd_; }

 private:
  struct Operation {
    UcxWorker* worker;
    size_t number;
  };
  UcxWorker(const UcxLibrary& library, Events& events, size_t operations, const UcxPath& path,
            std::shared_ptr<ucp_context> context);
  Result<void> open();
  static ucs_status_t on_active_message(void* self, const void* header, size_t header_bytes, void* data,
                                        size_t bytes, const ucp_am_recv_param_t* parameters);

  const UcxLibrary& library_;
  Events& events_;
  const UcxPath path_;
  std::shared_ptr<ucp_context> context_;
  std::unique_ptr<Operation[]> operations_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int fd_ = -1;  // UCX's
  std::span<const std::byte> address_;
};

}  // namespace tandem
