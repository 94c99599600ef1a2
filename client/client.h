// Client: an FfnPort for many threads. The C functions (tandem_client.h) are a thin border around it.
//
// Threads: all functions may be called by any thread; the destructor by the last one. The port wants one
// caller: `mutex_` makes it so. Of the threads that wait, one leads: it sleeps on the port's descriptor
// without the mutex, collects what has ended for all, and hands the lead on; the others sleep on a condition.
// Whoever collects while another thread leads wakes it through `wake_`, because the descriptor of the port is
// silent again by then.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "afd/learn_settings.h"
#include "afd/multi_rank_ffn.h"
#include "afd/remote_ffn.h"
#include "transport/unique_fd.h"

namespace tandem {

struct ClientOptions {
  std::vector<std::string> addresses;
  SettingList expected;
  Duration connect_limit = std::chrono::seconds(10);
  uint32_t max_in_flight = 256;
  Duration reply_limit = RemoteFfnOptions{}.reply_limit;
  uint32_t client_number = 0;
  std::shared_ptr<const PeerSecurity> security = nullptr;  // null: peers do not know each other
};

struct ClientRequest {
  FfnRequest ffn;           // `in` and `out` are of the session's dtypes, but for:
  ActivationView input;     // f32 or bf16 [rows, hidden], instead of ffn.in unless null: encode_rows
  float* output = nullptr;  // [rows, hidden], instead of ffn.out: converted when the request has ended
};

class Client {
 public:
  // Blocks until all ranks have shaken hands. Errors as learn_settings and MultiRankFfn::create.
  static Result<std::unique_ptr<Client>> connect(const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const SplitSettings& settings() const { return settings_; }
  Result<RankState> rank_state(uint32_t rank) const;

  // The request's handle. would_block: max_in_flight requests are open, the ended ones that nobody has
  // waited for among them.
  Result<uint64_t> submit(const ClientRequest& request);
  // How a request ended; would_block at `until`. The handle is spent otherwise.
  Result<FfnTimes> wait(uint64_t handle, Instant until);
  Status cancel(uint64_t handle);

 private:
  struct Open {
    Ticket ticket = 0;
    bool done = false;
    uint32_t waiting = 0;  // threads
    Status status;
    FfnTimes times;
    std::vector<std::byte> encoded;    // [rows, hidden] of the session's format: the input, where the caller
    std::vector<std::byte> scales;     // has other rows; and its scales
    std::vector<std::byte> converted;  // [rows, hidden] of the reply dtype, before `output`
    float* output = nullptr;
    size_t values = 0;
  };
  using Requests = std::unordered_map<uint64_t, Open>;

  Client(SplitSettings settings, UniqueFd wake, const ClientOptions& options)
      : settings_(std::move(settings)), wake_(std::move(wake)), max_in_flight_(options.max_in_flight) {}
  void prepare(const ClientRequest& request, FfnRequest& ffn, Open& open) const;
  void collect();                         // mutex held
  void ring();                            // mutex held: wakes who sleeps
  void sleep_until(Instant until) const;  // mutex not held: the leader
  Result<FfnTimes> take(Requests::iterator found, std::unique_lock<std::mutex>& lock);

  const SplitSettings settings_;
  const UniqueFd wake_;
  const uint32_t max_in_flight_;
  // One of the two is the port: one FFN rank, or several.
  std::unique_ptr<RemoteFfn> one_;
  std::unique_ptr<MultiRankFfn> several_;
  FfnPort* port_ = nullptr;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool leading_ = false;
  uint64_t next_handle_ = 1;
  Requests requests_;
  std::unordered_map<Ticket, uint64_t> handles_;  // of the requests that have not ended
};

}  // namespace tandem
