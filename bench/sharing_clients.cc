#include "bench/sharing_clients.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "base/memory_budget.h"
#include "bench/random_pack.h"

namespace tandem::bench {
namespace {

// Routings of a client: enough that two clients seldom ask with the same one, few enough to stay in a cache.
constexpr size_t kRoutings = 64;

float milliseconds(Instant from, Instant to) {
  return std::chrono::duration<float, std::milli>(to - from).count();
}

Duration seconds_of(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

Duration pause(const SharingOptions& options, std::mt19937& random) {
  if (options.think_ms <= 0) return Duration::zero();
  return seconds_of(std::exponential_distribution<double>(1e3 / options.think_ms)(random));
}

}  // namespace

void ClientTimes::add(const ClientTimes& more) {
  milliseconds.resize(std::max(milliseconds.size(), more.milliseconds.size()));
  for (size_t i = 0; i < more.milliseconds.size(); ++i)
    milliseconds[i].insert(milliseconds[i].end(), more.milliseconds[i].begin(), more.milliseconds[i].end());
  seconds += more.seconds;
}

SharedRequests::SharedRequests(const SharingOptions& options, uint32_t rows, uint64_t seed)
    : rows_(rows), hidden_(options.hidden), top_k_(options.top_k), values_(size_t{rows} * options.hidden) {
  fill_random_bf16(values_.data(), values_.size(), 1.0f, seed << 32);
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<int32_t> all(options.experts);
  for (uint32_t e = 0; e < options.experts; ++e) all[e] = static_cast<int32_t>(e);
  for (size_t row = 0; row < kRoutings * rows; ++row) {
    for (uint32_t slot = 0; slot < top_k_; ++slot)  // the first of a shuffle
      std::swap(all[slot], all[slot + random() % (all.size() - slot)]);
    ids_.insert(ids_.end(), all.begin(), all.begin() + top_k_);
  }
  weights_.assign(ids_.size(), 1.0f / static_cast<float>(top_k_));
}

MoeRequest SharedRequests::at(size_t n, LayerIndex layer, std::span<std::byte> out) const {
  const size_t slots = size_t{rows_} * top_k_, first = n % kRoutings * slots;
  MoeRequest request;
  request.layer = layer;
  request.rows = rows_;
  request.in = {DType::bf16, values_.data(), hidden_};
  request.routing =
      RoutingView{std::span(ids_).subspan(first, slots), std::span(weights_).subspan(first, slots), top_k_};
  request.out = {out.data(), out.size(), MemorySpace::host};
  return request;
}

// ---- on one pool ----

struct PoolClients::Client {
  Client(const SharingOptions& options, size_t number)
      : requests(options, options.rows, number + 1), answer(requests.answer_bytes()) {}

  std::unique_ptr<RemoteFfn> port;
  SharedRequests requests;
  std::vector<std::byte> answer;
  size_t sent = 0;
  bool under_way = false;
  Instant asked, next;  // next: when it asks again
  std::vector<float> milliseconds;
};

PoolClients::PoolClients(const SharingOptions& options) : options_(options) {}
PoolClients::~PoolClients() = default;

Result<std::unique_ptr<PoolClients>> PoolClients::connect(const SharingOptions& options, SharingPool& pool,
                                                          FfnWorker& worker) {
  std::unique_ptr<PoolClients> made(new PoolClients(options));
  for (size_t i = 0; i < options.clients; ++i) {
    auto client = std::make_unique<Client>(options, i);
    RemoteFfnOptions remote;
    remote.addresses = {worker.address()};
    remote.attention_rank = static_cast<uint32_t>(i);
    remote.settings = pool.settings();
    remote.start_limit = std::chrono::seconds(20);
    TANDEM_ASSIGN(client->port, RemoteFfn::create(remote));
    client->sent = i * 5;  // not all at the same layer
    made->clients_.push_back(std::move(client));
  }
  TANDEM_TRY(made->check(pool));
  return made;
}

Status PoolClients::check(SharingPool& pool) {
  for (size_t i = 0; i < clients_.size(); ++i) {
    Client& client = *clients_[i];
    TANDEM_TRY(submit(client));
    while (client.under_way) {
      TANDEM_ASSIGN(const bool done, collect(client, Instant::min()));  // and no more
      if (!done) sleep(Instant::max());
    }
    std::vector<std::byte> wanted(client.answer.size());
    const size_t n = client.sent - 1;
    TANDEM_TRY(
        pool.reference().run(client.requests.at(n, static_cast<LayerIndex>(n % options_.layers), wanted)));
    if (wanted != client.answer)
      return make_error(
          ErrorCode::data_loss,
          fmt::format("bench sharing: client {} was answered otherwise than the experts say", i));
    client.milliseconds.clear();
  }
  return {};
}

Status PoolClients::submit(Client& client) {
  const size_t n = client.sent++;
  const MoeRequest what = client.requests.at(n, static_cast<LayerIndex>(n % options_.layers), client.answer);
  FfnRequest request;
  request.layer = what.layer;
  request.step = static_cast<StepId>(n / options_.layers);
  request.rows = request.capacity = what.rows;
  request.in = what.in;
  request.routing = what.routing;
  request.out = what.out;
  client.asked = now();
  client.under_way = true;
  const auto ticket = client.port->submit(request);
  return ticket ? Status{} : std::unexpected(ticket.error());
}

Result<bool> PoolClients::collect(Client& client, Instant until) {
  std::array<Completion, 1> done;
  if (client.port->poll(done) == 0) return false;
  TANDEM_TRY(done[0].status);
  const Instant at = now();
  client.under_way = false;
  client.milliseconds.push_back(milliseconds(client.asked, at));
  client.next = at + pause(options_, random_);
  if (client.next < until && client.next <= at) {
    TANDEM_TRY(submit(client));
  }
  return true;
}

void PoolClients::sleep(Instant until) {
  std::vector<pollfd> waits;
  for (const auto& client : clients_) {
    if (client->under_way) {
      waits.push_back({client->port->wait_fd(), POLLIN, 0});
    } else {
      until = std::min(until, client->next);
    }
  }
  const Duration time = std::clamp<Duration>(until - now(), Duration::zero(), std::chrono::milliseconds(100));
  const auto nanoseconds = std::chrono::nanoseconds(time).count();
  const timespec limit{nanoseconds / 1000000000, nanoseconds % 1000000000};
  ::ppoll(waits.data(), waits.size(), &limit, nullptr);
}

Result<ClientTimes> PoolClients::run(double seconds) {
  const Instant start = now(), until = start + seconds_of(seconds);
  for (const auto& client : clients_) client->next = start + pause(options_, random_);
  while (true) {
    bool any = false, under_way = false;
    const bool open = now() < until;
    for (const auto& client : clients_) {
      if (client->under_way) {
        TANDEM_ASSIGN(const bool done, collect(*client, open ? until : start));
        any = any || done;
      } else if (open && client->next <= now()) {
        TANDEM_TRY(submit(*client));
        any = true;
      }
      under_way = under_way || client->under_way;
    }
    if (!open && !under_way) break;
    if (!any) sleep(open ? until : Instant::max());
  }
  ClientTimes times;
  times.seconds = seconds_since(start);
  for (const auto& client : clients_) times.milliseconds.push_back(std::exchange(client->milliseconds, {}));
  return times;
}

// ---- each with a copy of its own ----

struct ColocatedClients::Client {
  Client(const SharingOptions& options, size_t number)
      : requests(options, options.rows, number + 1),
        answer(requests.answer_bytes()),
        random(static_cast<uint32_t>(number)) {}

  ThreadPool pool{1};
  std::unique_ptr<KernelRunner> runner;
  std::unique_ptr<RandomExperts> experts;
  std::unique_ptr<MoeBlock> block;
  SharedRequests requests;
  std::vector<std::byte> answer;
  std::mt19937 random;
  size_t sent = 0;
  std::vector<float> milliseconds;
  Status status;
};

ColocatedClients::ColocatedClients(const SharingOptions& options) : options_(options) {}
ColocatedClients::~ColocatedClients() = default;

Result<std::unique_ptr<ColocatedClients>> ColocatedClients::create(const SharingOptions& options) {
  TANDEM_ASSIGN(const KernelTable* table, choose_kernel_table());
  const uint64_t need = options.clients * RandomExperts::bytes_of(options, *table);
  if (const MemoryBudget have = MemoryBudget::detect(); need > have.available()) {
    return make_error(
        ErrorCode::resource_exhausted,
        fmt::format("bench sharing: {} copies of the experts take {} and {} are available; fewer "
                    "sharing.layers or sharing.clients would do",
                    options.clients, bytes_text(need), have.text()));
  }
  std::unique_ptr<ColocatedClients> made(new ColocatedClients(options));
  for (size_t i = 0; i < options.clients; ++i) {
    auto client = std::make_unique<Client>(options, i);
    TANDEM_ASSIGN(KernelRunner runner, KernelRunner::create(*table, client->pool));
    client->runner = std::make_unique<KernelRunner>(std::move(runner));
    TANDEM_ASSIGN(client->experts, RandomExperts::create(options, *table, client->pool));
    TANDEM_ASSIGN(client->block, make_sharing_block(options, *client->experts, *client->runner));
    client->sent = i * 5;
    made->clients_.push_back(std::move(client));
  }
  return made;
}

Result<ClientTimes> ColocatedClients::run(double seconds) {
  const Instant start = now(), until = start + seconds_of(seconds);
  std::vector<std::thread> threads;
  for (const auto& each : clients_) {
    threads.emplace_back([this, until, &client = *each] {
      while (client.status) {
        std::this_thread::sleep_for(pause(options_, client.random));
        const Instant asked = now();
        if (asked >= until) return;
        const size_t n = client.sent++;
        client.status = client.block->run(
            client.requests.at(n, static_cast<LayerIndex>(n % options_.layers), client.answer));
        client.milliseconds.push_back(milliseconds(asked, now()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ClientTimes times;
  times.seconds = seconds_since(start);
  for (const auto& client : clients_) {
    TANDEM_TRY(client->status);
    times.milliseconds.push_back(std::exchange(client->milliseconds, {}));
  }
  return times;
}

}  // namespace tandem::bench
