#include "bench/sharing_trouble.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>
#include <deque>
#include <random>

#include "afd/handshake.h"
#include "bench/sharing_clients.h"
#include "transport/tcp_greeting.h"
#include "transport/unique_fd.h"

namespace tandem::bench {
namespace {

constexpr uint32_t kCredits = 8;  // as FfnWorkerOptions and RemoteFfnOptions have them
constexpr size_t kKeptOpen = 64;

// The socket of a connection that is being made; closed: none could be.
UniqueFd connect_loopback(const std::string& address) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string_view text = std::string_view(address).substr(address.rfind(':') + 1);
  uint16_t port = 0;
  std::from_chars(text.data(), text.data() + text.size(), port);
  to.sin_port = htons(port);
  ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
  return socket;
}

}  // namespace

Trouble::Trouble(const std::string& kind, const SharingOptions& options, const SplitSettings& settings,
                 const std::string& address) {
  thread_ = std::thread([this, kind, &options, settings, address] {
    if (kind == "flood") flood(options, settings, address);
    if (kind == "connections") connections(options, settings, address);
    if (kind == "stall") stall(options, settings, address);
  });
}

Trouble::~Trouble() {
  stop_.store(true);
  thread_.join();
}

void Trouble::flood(const SharingOptions& options, const SplitSettings& settings,
                    const std::string& address) {
  RemoteFfnOptions remote;
  remote.addresses = {address};
  remote.attention_rank = 1000;
  remote.settings = settings;
  auto port = RemoteFfn::create(remote);
  if (!port) return;
  const SharedRequests requests(options, kMaxTileRows, 99);
  std::vector<std::vector<std::byte>> answers(kCredits, std::vector<std::byte>(requests.answer_bytes()));
  std::mt19937 random(3);
  std::array<std::pair<Ticket, bool>, kCredits> under_way{};
  StepId step = 0;
  while (!stop_.load()) {
    for (size_t i = 0; i < kCredits; ++i) {
      if (under_way[i].second) continue;
      const MoeRequest what =
          requests.at(random(), static_cast<LayerIndex>(random() % options.layers), answers[i]);
      FfnRequest request;
      request.layer = what.layer;
      request.step = ++step;
      request.rows = request.capacity = what.rows;
      request.in = what.in;
      request.routing = what.routing;
      request.out = what.out;
      const auto ticket = (*port)->submit(request);
      if (ticket) under_way[i] = {*ticket, true};
    }
    pollfd wait{.fd = (*port)->wait_fd(), .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, 50);
    std::array<Completion, kCredits> done;
    const size_t count = (*port)->poll(done);
    for (size_t i = 0; i < count; ++i) {
      done_.fetch_add(1);
      for (auto& [ticket, open] : under_way) open = open && ticket != done[i].ticket;
    }
  }
}

void Trouble::connections(const SharingOptions& options, const SplitSettings& settings,
                          const std::string& address) {
  const auto greeting = make_greeting(settings.endpoint_options(kCredits));
  std::deque<UniqueFd> open;
  const auto interval =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(1 / options.flood_rate));
  Instant next = now();
  while (!stop_.load()) {
    std::this_thread::sleep_until(next);
    next = std::max(next + interval, now());
    open.push_back(connect_loopback(address));
    const uint64_t number = done_.fetch_add(1);
    if (open.size() > 1) {  // the one before is connected by now: silence, half a hello, all of it, or noise
      const int fd = open[open.size() - 2].get();
      const std::vector<std::byte> noise(greeting.size(), std::byte{0x5a});
      const size_t bytes = number % 4 == 0 ? 0 : number % 4 == 1 ? greeting.size() / 2 : greeting.size();
      const std::byte* what = number % 4 == 3 ? noise.data() : greeting.data();
      if (bytes > 0) {
        [[maybe_unused]] const ssize_t sent = ::send(fd, what, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
      }
    }
    if (open.size() > kKeptOpen) open.pop_front();
  }
}

void Trouble::stall(const SharingOptions& options, const SplitSettings& settings,
                    const std::string& address) {
  const SharedRequests requests(options, kMaxTileRows, 98);
  std::vector<std::byte> answer(requests.answer_bytes());
  while (!stop_.load()) {
    auto endpoint = connect(address, settings.endpoint_options(kCredits));
    if (!endpoint) return;
    const auto facts = open_session(**endpoint, address, settings, make_identity("attention", 1001),
                                    now() + std::chrono::seconds(5), stop_);
    if (!facts) return;
    for (uint32_t i = 0; i < kCredits; ++i) {
      const MoeRequest what = requests.at(i, static_cast<LayerIndex>(i % options.layers), answer);
      FrameHeader header;
      header.kind = FrameKind::ffn_request;
      header.session = facts->session;
      header.incarnation = facts->incarnation;
      header.layer = what.layer;
      header.step = i;
      header.tiles = 1;
      header.rows = header.capacity = what.rows;
      const TileView tile{.header = header, .in = what.in, .routing = what.routing};
      const auto layout = request_layout(header, settings);
      if (!layout) return;
      const auto slot = (*endpoint)->acquire(Channel::request, layout->total_bytes());
      if (!slot) break;
      write_request(tile, *layout, settings, slot->bytes);
      if (!(*endpoint)->commit(*slot, layout->total_bytes())) break;
    }
    done_.fetch_add(1);
    // Alive, but deaf, for a second: heartbeats go, answers stay.
    for (int i = 0; i < 40 && !stop_.load(); ++i) {
      (*endpoint)->poll({});
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
  }
}

}  // namespace tandem::bench
