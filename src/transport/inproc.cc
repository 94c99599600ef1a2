#include "transport/inproc.h"

#include <sys/eventfd.h>
#include <sys/mman.h>

#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "transport/hello.h"
#include "transport/ring_endpoint.h"
#include "transport/system_error.h"

namespace tandem::inproc {
namespace {

// Signs of life are two words in the shared memory: one counts heartbeats, the other is the goodbye.
class InprocLink final : public PeerLink {
 public:
  InprocLink(std::shared_ptr<RingMemory> memory, int side) : memory_(std::move(memory)), side_(side) {}

  News look() override {
    const SideBlock& peer = memory_->side(1 - side_);
    const uint64_t beats = peer.beats.load(std::memory_order_relaxed);
    News news;
    news.heard = beats != peer_beats_;
    peer_beats_ = beats;
    if (peer.closed.load(std::memory_order_acquire) != 0) {
      news.state = PeerState::closed;
      news.orderly = true;
      news.reason = "it ended the connection";
    }
    return news;
  }
  void beat() override { memory_->side(side_).beats.fetch_add(1, std::memory_order_relaxed); }
  void close() override {
    if (memory_->side(side_).closed.exchange(1, std::memory_order_acq_rel) == 0) memory_->ring(1 - side_);
  }
  int fd() const override { return memory_->doorbell(side_); }
  Duration look_interval() const override { return Duration::zero(); }  // two loads

 private:
  std::shared_ptr<RingMemory> memory_;
  int side_;
  uint64_t peer_beats_ = 0;
};

// What a name leads to, shared by its listener and those who connect.
struct Backlog {
  EndpointOptions options;
  std::string address;
  UniqueFd event;  // readable while `waiting` has something
  std::mutex mutex;
  std::deque<std::unique_ptr<Endpoint>> waiting;
  bool closed = false;
};

std::mutex registry_mutex;
std::map<std::string, std::weak_ptr<Backlog>>& registry() {
  static std::map<std::string, std::weak_ptr<Backlog>> names;
  return names;
}

class InprocListener final : public Listener {
 public:
  InprocListener(std::string name, std::shared_ptr<Backlog> backlog)
      : name_(std::move(name)), backlog_(std::move(backlog)) {}
  ~InprocListener() override {
    {
      const std::lock_guard lock(registry_mutex);
      registry().erase(name_);
    }
    const std::lock_guard lock(backlog_->mutex);
    backlog_->closed = true;
    backlog_->waiting.clear();  // those who connected see closed
  }
  int fd() const override { return backlog_->event.get(); }
  Result<std::unique_ptr<Endpoint>> accept() override {
    const std::lock_guard lock(backlog_->mutex);
    if (backlog_->waiting.empty()) return nullptr;
    auto endpoint = std::move(backlog_->waiting.front());
    backlog_->waiting.pop_front();
    uint64_t drained = 0;  // a semaphore: one read takes one connection
    [[maybe_unused]] const ssize_t got = read(backlog_->event.get(), &drained, sizeof(drained));
    return endpoint;
  }
  const std::string& address() const override { return backlog_->address; }

 private:
  std::string name_;
  std::shared_ptr<Backlog> backlog_;
};

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options) {
  auto backlog = std::make_shared<Backlog>();
  backlog->options = options;
  backlog->address = "inproc://" + address.rest;
  backlog->event = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
  if (!backlog->event) return no_descriptor("eventfd");
  const std::lock_guard lock(registry_mutex);
  auto& entry = registry()[address.rest];
  if (!entry.expired()) {
    return make_error(
        ErrorCode::invalid_argument,
        backlog->address + " is taken: something in this process listens there; choose another name");
  }
  entry = backlog;
  return std::make_unique<InprocListener>(address.rest, std::move(backlog));
}

namespace {

Result<std::unique_ptr<Endpoint>> connect_now(const Address& address, const EndpointOptions& wanted) {
  std::shared_ptr<Backlog> backlog;
  {
    const std::lock_guard lock(registry_mutex);
    const auto found = registry().find(address.rest);
    if (found != registry().end()) backlog = found->second.lock();
  }
  const std::string name = "inproc://" + address.rest;
  const auto nobody = [&name] {
    return make_error(ErrorCode::not_found,
                      "nothing in this process listens at " + name +
                          "; listen there first, or use shm:// or tcp:// between processes");
  };
  if (!backlog) return nobody();
  EndpointOptions options = wanted;
  if (wanted.adopt) {
    options = backlog->options;
    options.connect_limit = wanted.connect_limit;
  }
  TANDEM_TRY(match_options(options, name + " (connecting)", backlog->options, name));

  const RingLayout layout(options.slots_per_channel, options.slot_bytes);
  // Untouched pages cost nothing: only slots that are used take memory.
  void* base = mmap(nullptr, layout.total_bytes(), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return make_error(ErrorCode::resource_exhausted,
                      name + ": no memory for " + std::to_string(layout.total_bytes()) +
                          " bytes of slots; lower slots_per_channel or slot_bytes");
  }
  UniqueFd doorbells[2] = {UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
                           UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
  const bool complete = doorbells[0] && doorbells[1];
  const auto memory = std::make_shared<RingMemory>(static_cast<std::byte*>(base), layout,
                                                   std::move(doorbells[0]), std::move(doorbells[1]));
  if (!complete) return no_descriptor("eventfd");
  auto connected = std::make_unique<RingEndpoint>("inproc", name, 0, options, memory,
                                                  std::make_unique<InprocLink>(memory, 0));
  auto accepted = std::make_unique<RingEndpoint>("inproc", name + " (connecting)", 1, options, memory,
                                                 std::make_unique<InprocLink>(memory, 1));
  const std::lock_guard lock(backlog->mutex);
  if (backlog->closed) return nobody();
  backlog->waiting.push_back(std::move(accepted));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(backlog->event.get(), &one, sizeof(one));
  return connected;
}

// Done in one step.
class InprocConnecting final : public Connecting {
 public:
  InprocConnecting(const Address& address, const EndpointOptions& options)
      : address_(address), options_(options) {}
  Result<std::unique_ptr<Endpoint>> advance() override { return connect_now(address_, options_); }
  std::vector<pollfd> waits_for() const override { return {}; }

 private:
  Address address_;
  EndpointOptions options_;
};

}  // namespace

Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options) {
  return std::make_unique<InprocConnecting>(address, options);
}

}  // namespace tandem::inproc
