#include "bench/transport_carrier.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <thread>

#include "transport/idle_spin.h"
#include "transport/poller.h"

namespace tandem {
namespace {

bool is_frame(std::span<const std::byte> message) {
  return message.size() >= kHeaderBytes && decode_magic(message.first<kHeaderBytes>()) == kFrameMagic;
}

// An endpoint and the wait for it.
class Side {
 public:
  static Result<Side> create(std::unique_ptr<Endpoint> endpoint, bool may_spin) {
    TANDEM_ASSIGN(Poller poller, Poller::create());
    TANDEM_TRY(poller.add(endpoint->fd(), 0));
    return Side(std::move(endpoint), std::move(poller), may_spin);
  }

  // The next message; unavailable when the peer is gone.
  Result<Incoming> receive() {
    for (;;) {
      Incoming incoming;
      if (endpoint_->poll({&incoming, 1}) == 1) {
        spin_.found();
        return incoming;
      }
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
  Result<void> commit(const SendSlot& slot, size_t bytes) { return endpoint_->commit(slot, bytes); }

 private:
  // Two sides with a thread each: they may spin where each has a CPU.
  Side(std::unique_ptr<Endpoint> endpoint, Poller poller, bool may_spin)
      : endpoint_(std::move(endpoint)), poller_(std::move(poller)), spin_(may_spin) {}

  Result<void> rest() {
    if (spin_.again()) return {};
    if (endpoint_->peer() != PeerState::alive) {
      return make_error(ErrorCode::unavailable, "the echo at " + endpoint_->peer_name() + " is " +
                                                    std::string(peer_state_name(endpoint_->peer())));
    }
    uint64_t key = 0;
    if (endpoint_->arm()) poller_.wait(std::chrono::milliseconds(500), {&key, 1});
    return {};
  }

  std::unique_ptr<Endpoint> endpoint_;
  Poller poller_;
  IdleSpin spin_;
};

Result<void> answer_tile(Side& side, Incoming request, const SplitSettings& settings) {
  TANDEM_ASSIGN(const FrameView frame, parse_frame(request.lease.bytes()));
  TANDEM_ASSIGN(const TileView tile, read_request(frame, settings));
  TANDEM_ASSIGN(const FrameLayout layout, reply_layout(tile.header, settings));
  TANDEM_ASSIGN(const SendSlot slot, side.acquire(layout.total_bytes()));
  const std::span<std::byte> output = write_reply(layout, {}, slot.bytes);
  std::memcpy(output.data(), tile.in.data, output.size());
  request.lease = Lease();  // before the reply: whoever sees the reply sees the credit
  return side.commit(slot, layout.total_bytes());
}

Result<void> answer_bytes(Side& side, Incoming request) {
  const auto bytes = request.lease.bytes();
  TANDEM_ASSIGN(const SendSlot slot, side.acquire(bytes.size()));
  std::memcpy(slot.bytes.data(), bytes.data(), bytes.size());
  request.lease = Lease();
  return side.commit(slot, slot.bytes.size());
}

// Until the other side ends.
Result<void> echo(const std::string& address, const EndpointOptions& options, const SplitSettings& settings,
                  const TwoCpus& cpus) {
  stay_on_cpu(cpus.second);
  TANDEM_ASSIGN(auto endpoint, connect(address, options));
  TANDEM_ASSIGN(Side side, Side::create(std::move(endpoint), cpus.are_two()));
  for (;;) {
    auto incoming = side.receive();
    if (!incoming) return {};
    const bool tile = is_frame(incoming->lease.bytes());
    TANDEM_TRY(tile ? answer_tile(side, std::move(*incoming), settings)
                    : answer_bytes(side, std::move(*incoming)));
  }
}

}  // namespace

struct TransportCarrier::Impl {
  std::string transport, scheme;
  EndpointOptions options;
  SplitSettings settings;
  TwoCpus cpus;
  UniqueFd tell;  // the address, to the echo process
  pid_t process = -1;
  std::thread thread;
  std::optional<Side> side;
  uint32_t step = 0;

  ~Impl() {
    side.reset();  // the echo ends when its peer has gone
    tell.reset();
    if (thread.joinable()) thread.join();
    if (process > 0) waitpid(process, nullptr, 0);
  }

  Result<void> fork_echo() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return make_error(ErrorCode::resource_exhausted, "no pipe for the echo");
    const UniqueFd reader(fds[0]);
    tell = UniqueFd(fds[1]);
    process = fork();
    if (process < 0) return make_error(ErrorCode::resource_exhausted, "no process for the echo");
    if (process > 0) return {};
    tell.reset();
    std::array<char, 256> address{};
    if (read(reader.get(), address.data(), address.size() - 1) <= 0) _exit(0);
    _exit(echo(address.data(), options, settings, cpus) ? 0 : 1);
  }

  Result<void> start_echo(const std::string& address) {
    if (!tell) {
      thread = std::thread(
          [this, address] { [[maybe_unused]] const auto ended = echo(address, options, settings, cpus); });
      return {};
    }
    if (write(tell.get(), address.data(), address.size()) == static_cast<ssize_t>(address.size())) return {};
    return make_error(ErrorCode::unavailable, "the echo for " + address + " has ended");
  }

  Result<void> send_tile(uint16_t tile, const TransportCase& item, std::span<const std::byte> source) {
    FrameHeader header;
    header.kind = FrameKind::ffn_request;
    header.session = 1;
    header.step = step;
    header.tile = tile;
    header.tiles = static_cast<uint16_t>(item.messages);
    header.rows = header.capacity = item.tile_rows;
    TANDEM_ASSIGN(const FrameLayout layout, request_layout(header, settings));
    TANDEM_ASSIGN(const SendSlot slot, side->acquire(layout.total_bytes()));
    const ActivationView rows{.dtype = settings.activation_dtype,
                              .data = source.data(),
                              .row_stride = settings.hidden_size,
                              .format = ActivationFormat::plain};
    write_request({.header = header, .in = rows, .routing = NoRouting{}}, layout, settings, slot.bytes);
    return side->commit(slot, layout.total_bytes());
  }

  Result<void> take_tile(std::span<std::byte> target) {
    TANDEM_ASSIGN(const Incoming answer, side->receive());
    TANDEM_ASSIGN(const FrameView frame, parse_frame(answer.lease.bytes()));
    TANDEM_ASSIGN(const ReplyView reply, read_reply(frame, settings));
    if (reply.header.step != step || reply.output.size() != target.size()) {
      return make_error(ErrorCode::data_loss, "the echo answered another tile");
    }
    std::memcpy(target.data(), reply.output.data(), reply.output.size());
    return {};
  }
};

TransportCarrier::TransportCarrier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TransportCarrier::~TransportCarrier() = default;
const std::string& TransportCarrier::name() const {
  return impl_->transport;
}

Result<std::unique_ptr<TransportCarrier>> TransportCarrier::create(const std::string& transport,
                                                                   const EndpointOptions& options,
                                                                   const SplitSettings& settings,
                                                                   const TwoCpus& cpus) {
  auto impl = std::make_unique<Impl>();
  impl->transport = transport;
  impl->scheme = transport.substr(0, transport.find('+'));
  impl->options = options;
  impl->settings = settings;
  impl->cpus = cpus;
  if (impl->scheme != "inproc") TANDEM_TRY(impl->fork_echo());
  return std::unique_ptr<TransportCarrier>(new TransportCarrier(std::move(impl)));
}

Result<void> TransportCarrier::connect() {
  const std::string tag = "tandem_bench_" + std::to_string(getpid());
  const bool over_network = impl_->scheme == "tcp" || impl_->scheme == "ucx";
  const std::string address = over_network             ? impl_->scheme + "://127.0.0.1:0"
                              : impl_->scheme == "shm" ? "shm:///tmp/" + tag + ".sock"
                                                       : impl_->scheme + "://" + tag;
  TANDEM_ASSIGN(const auto listener, listen(address, impl_->options));
  TANDEM_TRY(impl_->start_echo(listener->address()));
  TANDEM_ASSIGN(Poller poller, Poller::create());
  TANDEM_TRY(poller.add(listener->fd(), 0));
  for (const Instant deadline = now() + 2 * impl_->options.connect_limit;;) {
    TANDEM_ASSIGN(auto endpoint, listener->accept());
    if (endpoint) {
      TANDEM_ASSIGN(Side side, Side::create(std::move(endpoint), impl_->cpus.are_two()));
      impl_->side.emplace(std::move(side));
      return {};
    }
    if (now() >= deadline) {
      return make_error(ErrorCode::deadline_exceeded, "the echo did not connect to " + listener->address());
    }
    uint64_t key = 0;
    poller.wait(std::chrono::milliseconds(100), {&key, 1});
  }
}

Result<void> TransportCarrier::round_trip(const TransportCase& item, std::span<const std::byte> source,
                                          std::span<std::byte> target) {
  Side& side = *impl_->side;
  ++impl_->step;
  for (size_t i = 0; i < item.messages; ++i) {
    if (item.tile_rows != 0) {
      TANDEM_TRY(impl_->send_tile(static_cast<uint16_t>(i), item, source));
      continue;
    }
    TANDEM_ASSIGN(const SendSlot slot, side.acquire(source.size()));
    std::memcpy(slot.bytes.data(), source.data(), source.size());
    TANDEM_TRY(side.commit(slot, source.size()));
  }
  for (size_t i = 0; i < item.messages; ++i) {
    if (item.tile_rows != 0) {
      TANDEM_TRY(impl_->take_tile(target));
      continue;
    }
    TANDEM_ASSIGN(const Incoming answer, side.receive());
    const auto bytes = answer.lease.bytes();
    if (bytes.size() != target.size()) return make_error(ErrorCode::data_loss, "the echo has another size");
    std::memcpy(target.data(), bytes.data(), bytes.size());
  }
  return {};
}

}  // namespace tandem
