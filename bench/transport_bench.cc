#include "bench/transport_bench.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "transport/poller.h"
#include "transport/transports.h"

namespace tandem {
namespace {

constexpr uint32_t kRowsPerTile = 64;
constexpr size_t kMinRoundTrips = 100;  // for a p99 that means something
constexpr size_t kMaxRoundTrips = 20'000;
constexpr double kMaxSecondsPerCase = 5;  // a machine that is busy with other work must not take for ever

struct Case {
  std::string name;
  size_t messages;
  size_t message_bytes;
};

struct Measured {
  Case of;
  std::string transport;
  size_t round_trips;
  double p50_us;
  double p99_us;
  double gigabytes_per_second;
  double share;
};

std::vector<Case> cases_of(const TransportBenchOptions& options) {
  std::vector<Case> cases;
  const uint32_t tiles = (options.rows + kRowsPerTile - 1) / kRowsPerTile;
  const size_t rows_per_tile = (options.rows + tiles - 1) / tiles;
  cases.push_back({fmt::format("{} tiles of {} x {}", tiles, rows_per_tile, options.hidden_size), tiles,
                   rows_per_tile * options.hidden_size * options.bytes_per_value});
  for (const auto& [name, bytes] :
       {std::pair{"64 B", size_t{64}}, std::pair{"1 KiB", size_t{1} << 10},
        std::pair{"16 KiB", size_t{16} << 10}, std::pair{"64 KiB", size_t{64} << 10},
        std::pair{"256 KiB", size_t{256} << 10}, std::pair{"1 MiB", size_t{1} << 20},
        std::pair{"4 MiB", size_t{4} << 20}}) {
    cases.push_back({name, 1, bytes});
  }
  return cases;
}

EndpointOptions endpoint_options(const std::vector<Case>& cases) {
  EndpointOptions options;
  options.slots_per_channel = 1;
  options.slot_bytes = 1;
  for (const Case& item : cases) {
    options.slots_per_channel = std::max(options.slots_per_channel, static_cast<uint32_t>(item.messages));
    options.slot_bytes = std::max(options.slot_bytes, item.message_bytes);
  }
  options.silence_limit = std::chrono::seconds(20);  // measured while other work may hold the CPUs
  return options;
}

// An endpoint and the wait for it.
class Side {
 public:
  static Result<Side> create(std::unique_ptr<Endpoint> endpoint) {
    TANDEM_ASSIGN(Poller poller, Poller::create());
    TANDEM_TRY(poller.add(endpoint->fd(), 0));
    return Side(std::move(endpoint), std::move(poller));
  }

  // The next message; unavailable when the peer is gone.
  Result<Incoming> receive() {
    for (;;) {
      Incoming incoming;
      if (endpoint_->poll({&incoming, 1}) == 1) return incoming;
      TANDEM_TRY(rest());
    }
  }
  Result<SendSlot> acquire(size_t bytes) {
    for (;;) {
      auto slot = endpoint_->acquire(Channel::request, bytes);
      if (slot || slot.error().code != ErrorCode::would_block) return slot;
      endpoint_->poll({});
      TANDEM_TRY(rest());
    }
  }
  Result<void> send(std::span<const std::byte> bytes) {
    TANDEM_ASSIGN(const SendSlot slot, acquire(bytes.size()));
    std::memcpy(slot.bytes.data(), bytes.data(), bytes.size());
    return endpoint_->commit(slot, bytes.size());
  }

 private:
  Side(std::unique_ptr<Endpoint> endpoint, Poller poller)
      : endpoint_(std::move(endpoint)), poller_(std::move(poller)) {}

  Result<void> rest() {
    if (endpoint_->peer() != PeerState::alive) {
      return make_error(ErrorCode::unavailable, "the echo at " + endpoint_->peer_name() + " is " +
                                                    std::string(peer_state_name(endpoint_->peer())));
    }
    uint64_t key = 0;
    if (endpoint_->arm()) poller_.wait(std::chrono::milliseconds(100), {&key, 1});
    return {};
  }

  std::unique_ptr<Endpoint> endpoint_;
  Poller poller_;
};

// Sends every message back until the other side ends.
Result<void> echo(const std::string& address, const EndpointOptions& options) {
  TANDEM_ASSIGN(auto endpoint, connect(address, options));
  TANDEM_ASSIGN(Side side, Side::create(std::move(endpoint)));
  for (;;) {
    auto incoming = side.receive();
    if (!incoming) return {};
    TANDEM_TRY(side.send(incoming->lease.bytes()));
  }
}

// The echo: a thread of this process for inproc, a process for the others. A process is forked before this
// one uses UCX, which does not outlive a fork, so it learns the address later. Ends when the endpoint to it
// is dropped, or when it is destroyed without an address.
class EchoPeer {
 public:
  static Result<std::unique_ptr<EchoPeer>> create(const std::string& transport,
                                                  const EndpointOptions& options) {
    std::unique_ptr<EchoPeer> peer(new EchoPeer(options));
    if (transport == "inproc") return peer;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return make_error(ErrorCode::resource_exhausted, "no pipe for the echo");
    UniqueFd reader(fds[0]);
    peer->tell_ = UniqueFd(fds[1]);
    peer->process_ = fork();
    if (peer->process_ < 0) return make_error(ErrorCode::resource_exhausted, "no process for the echo");
    if (peer->process_ == 0) {
      peer->tell_.reset();
      std::array<char, 256> address{};
      if (read(reader.get(), address.data(), address.size() - 1) <= 0) _exit(0);
      _exit(echo(address.data(), options) ? 0 : 1);
    }
    return peer;
  }
  EchoPeer(const EchoPeer&) = delete;
  EchoPeer& operator=(const EchoPeer&) = delete;
  ~EchoPeer() {
    tell_.reset();
    if (thread_.joinable()) thread_.join();
    if (process_ > 0) waitpid(process_, nullptr, 0);
  }

  Result<void> start(const std::string& address) {
    if (!tell_) {
      thread_ = std::thread(
          [address, options = options_] { [[maybe_unused]] const auto ended = echo(address, options); });
      return {};
    }
    if (write(tell_.get(), address.data(), address.size()) == static_cast<ssize_t>(address.size())) return {};
    return make_error(ErrorCode::unavailable, "the echo for " + address + " has ended");
  }

 private:
  explicit EchoPeer(const EndpointOptions& options) : options_(options) {}
  EndpointOptions options_;
  std::thread thread_;
  UniqueFd tell_;
  pid_t process_ = -1;
};

Result<Side> accept_echo(Listener& listener, Duration limit) {
  TANDEM_ASSIGN(Poller poller, Poller::create());
  TANDEM_TRY(poller.add(listener.fd(), 0));
  for (const Instant deadline = now() + limit;;) {
    TANDEM_ASSIGN(auto endpoint, listener.accept());
    if (endpoint) return Side::create(std::move(endpoint));
    if (now() >= deadline) {
      return make_error(ErrorCode::deadline_exceeded, "the echo did not connect to " + listener.address());
    }
    uint64_t key = 0;
    poller.wait(std::chrono::milliseconds(100), {&key, 1});
  }
}

Result<void> round_trip(Side& side, const Case& item, std::span<const std::byte> source,
                        std::span<std::byte> target) {
  for (size_t i = 0; i < item.messages; ++i) TANDEM_TRY(side.send(source.first(item.message_bytes)));
  for (size_t i = 0; i < item.messages; ++i) {
    TANDEM_ASSIGN(const Incoming answer, side.receive());
    const auto bytes = answer.lease.bytes();
    if (bytes.size() != item.message_bytes)
      return make_error(ErrorCode::data_loss, "the echo has another size");
    std::memcpy(target.data(), bytes.data(), bytes.size());
  }
  return {};
}

// Seconds for the copies of one round trip without any transport; the best of a few.
double copies_alone(const Case& item, std::span<const std::byte> source, std::span<std::byte> target) {
  std::vector<std::byte> slots[2] = {std::vector<std::byte>(item.message_bytes),
                                     std::vector<std::byte>(item.message_bytes)};
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const Instant start = now();
    for (size_t i = 0; i < item.messages; ++i) {
      std::memcpy(slots[0].data(), source.data(), item.message_bytes);
      std::memcpy(slots[1].data(), slots[0].data(), item.message_bytes);
      std::memcpy(target.data(), slots[1].data(), item.message_bytes);
    }
    best = std::min(best, std::max(seconds_since(start), 1e-9));
  }
  return best;
}

Result<Measured> measure(Side& side, const std::string& transport, const Case& item, double seconds) {
  std::vector<std::byte> source(item.message_bytes), target(item.message_bytes);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 31 + i / 257);
  for (int warm_up = 0; warm_up < 10; ++warm_up) TANDEM_TRY(round_trip(side, item, source, target));
  std::vector<double> times;
  times.reserve(kMaxRoundTrips);
  for (const Instant begin = now(); times.size() < kMaxRoundTrips;) {
    const double passed = seconds_since(begin);
    if (passed >= kMaxSecondsPerCase || (passed >= seconds && times.size() >= kMinRoundTrips)) break;
    const Instant start = now();
    TANDEM_TRY(round_trip(side, item, source, target));
    times.push_back(seconds_since(start));
  }
  if (source != target)
    return make_error(ErrorCode::data_loss, "the echo over " + transport + " has other bytes");
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double p99 = times[std::min(times.size() - 1, times.size() * 99 / 100)];
  const double bytes = 2.0 * static_cast<double>(item.messages * item.message_bytes);
  return Measured{item,
                  transport,
                  times.size(),
                  median * 1e6,
                  p99 * 1e6,
                  bytes / median / 1e9,
                  copies_alone(item, source, target) / median};
}

Result<void> measure_transport(const std::string& transport, const std::vector<Case>& cases, double seconds,
                               std::vector<Measured>& results) {
  const std::string tag = "tandem_bench_" + std::to_string(getpid());
  const std::string address = transport == "tcp" || transport == "ucx" ? transport + "://127.0.0.1:0"
                              : transport == "shm"                     ? "shm:///tmp/" + tag + ".sock"
                                                                       : transport + "://" + tag;
  const EndpointOptions options = endpoint_options(cases);
  TANDEM_ASSIGN(const auto peer, EchoPeer::create(transport, options));
  TANDEM_ASSIGN(const auto listener, listen(address, options));
  TANDEM_TRY(peer->start(listener->address()));
  TANDEM_ASSIGN(Side side,
                accept_echo(*listener, 2 * options.connect_limit));  // destroyed before the peer is awaited
  for (const Case& item : cases) {
    TANDEM_ASSIGN(Measured measured, measure(side, transport, item, seconds));
    results.push_back(std::move(measured));
  }
  return {};
}

std::string as_table(const std::vector<Measured>& results) {
  std::string text = fmt::format("{:<8}{:<24}{:>10}{:>12}{:>12}{:>10}{:>8}\n", "", "round trip of", "times",
                                 "p50 us", "p99 us", "GB/s", "share");
  for (const Measured& m : results) {
    text += fmt::format("{:<8}{:<24}{:>10}{:>12.1f}{:>12.1f}{:>10.2f}{:>7.0f}%\n", m.transport, m.of.name,
                        m.round_trips, m.p50_us, m.p99_us, m.gigabytes_per_second, 100 * m.share);
  }
  return text + "share: of the rate at which one thread makes the same copies without a transport\n";
}

std::string as_json(const std::vector<Measured>& results) {
  std::string text = "{\"cases\": [";
  for (const Measured& m : results) {
    if (&m != results.data()) text += ", ";
    text += fmt::format(
        "{{\"transport\": \"{}\", \"case\": \"{}\", \"messages\": {}, \"message_bytes\": {}, "
        "\"round_trips\": {}, "
        "\"p50_us\": {:.2f}, \"p99_us\": {:.2f}, \"gigabytes_per_second\": {:.3f}, \"share\": {:.4f}}}",
        m.transport, m.of.name, m.of.messages, m.of.message_bytes, m.round_trips, m.p50_us, m.p99_us,
        m.gigabytes_per_second, m.share);
  }
  return text + "]}\n";
}

}  // namespace

Result<std::string> run_transport_bench(const TransportBenchOptions& options, bool json) {
  if (!(options.seconds > 0 && options.seconds <= kMaxSecondsPerCase)) {
    return make_error(ErrorCode::invalid_argument, fmt::format("seconds {} is not above 0 and up to {}",
                                                               options.seconds, kMaxSecondsPerCase));
  }
  if (options.rows < 1 || options.rows > 4096 || options.hidden_size < 1 || options.hidden_size > 65536 ||
      options.bytes_per_value < 1 || options.bytes_per_value > 8) {
    return make_error(ErrorCode::invalid_argument,
                      "a tile pair has 1 to 4096 rows, a hidden_size of 1 to 65536 and 1 to 8 bytes a value");
  }
  const std::vector<Case> cases = cases_of(options);
  std::vector<Measured> results;
  std::string known;
  for (const Transport& transport : transports()) {
    const std::string scheme(transport.scheme);
    known += (known.empty() ? "" : ", ") + scheme;
    if (!options.transport.empty() && options.transport != scheme) continue;
    TANDEM_TRY(measure_transport(scheme, cases, options.seconds, results));
  }
  if (results.empty()) {
    return make_error(ErrorCode::invalid_argument,
                      "transport \"" + options.transport + "\" is unknown; use one of: " + known);
  }
  return json ? as_json(results) : as_table(results);
}

}  // namespace tandem
