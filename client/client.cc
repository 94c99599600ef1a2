#include "client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bf16.h"
#include "row_format.h"

namespace tandem {
namespace {

constexpr size_t kCollectBatch = 16;

std::unexpected<Error> no_request(uint64_t handle) {
  return make_error(
      ErrorCode::invalid_argument,
      fmt::format("handle {}: no open request; it was waited for or cancelled already", handle));
}

void to_floats(const std::vector<std::byte>& from, DType dtype, float* to, size_t values) {
  if (dtype == DType::bf16) {
    for (size_t i = 0; i < values; ++i) {
      bf16 value;
      std::memcpy(&value, &from[i * sizeof value], sizeof value);
      to[i] = to_float(value);
    }
  } else {  // f64, of deterministic sums
    for (size_t i = 0; i < values; ++i) {
      double value;
      std::memcpy(&value, &from[i * sizeof value], sizeof value);
      to[i] = static_cast<float>(value);
    }
  }
}

}  // namespace

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options) {
  if (options.addresses.empty()) {
    return make_error(ErrorCode::invalid_argument,
                      "no address: give those of all FFN ranks, in order of rank");
  }
  const Instant deadline = now() + options.connect_limit;
  LearnOptions learn;
  learn.address = options.addresses.front();
  learn.attention_rank = options.client_number;
  learn.expected = options.expected;
  learn.deadline = deadline;
  learn.endpoint.security = options.security;
  TANDEM_ASSIGN(LearnedSettings learned, learn_settings(learn));
  SplitSettings& settings = learned.settings;
  if (settings.num_ffn_ranks != options.addresses.size()) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("{} addresses, and the pool of {} has {} FFN ranks: name all, in order of rank",
                    options.addresses.size(), options.addresses.front(), settings.num_ffn_ranks));
  }
  RemoteFfnOptions remote;
  remote.addresses = options.addresses;
  remote.attention_rank = options.client_number;
  remote.settings = settings;
  remote.states_settings = false;
  remote.security = options.security;
  remote.slots_per_channel = learned.slots_per_channel;
  remote.heartbeat_interval = learned.heartbeat_interval;
  remote.silence_limit = learned.silence_limit;
  remote.max_in_flight = options.max_in_flight;
  remote.reply_limit = options.reply_limit;
  remote.start_limit = std::max<Duration>(deadline - now(), std::chrono::milliseconds(1));

  UniqueFd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake) return make_error(ErrorCode::resource_exhausted, "eventfd: no file descriptors left");
  std::unique_ptr<Client> client(new Client(settings, std::move(wake), options));
  // As make_connector: with one rank there is one way, but for parts.
  if (options.addresses.size() == 1 && settings.connector != "m2n") {
    TANDEM_ASSIGN(client->one_, RemoteFfn::create(remote));
    client->port_ = client->one_.get();
  } else {
    TANDEM_ASSIGN(client->several_, MultiRankFfn::create(remote));
    client->port_ = client->several_.get();
  }
  return client;
}

Client::~Client() {
  one_.reset();  // its threads write into buffers of requests that are open
  several_.reset();
}

Result<RankState> Client::rank_state(uint32_t rank) const {
  if (rank >= settings_.num_ffn_ranks) {
    return make_error(ErrorCode::out_of_range,
                      fmt::format("rank {}: the pool has {} FFN ranks", rank, settings_.num_ffn_ranks));
  }
  return one_ ? one_->rank_state() : several_->rank_state(rank);
}

// Buffers for what the library converts.
void Client::prepare(const ClientRequest& request, FfnRequest& ffn, Open& open) const {
  const size_t hidden = settings_.hidden_size;
  const size_t values = ffn.rows * hidden;
  if (request.input.data != nullptr) {
    const ActivationFormat format = settings_.activation_format;
    open.encoded.resize(dtype_bytes(settings_.activation_dtype, values));
    open.scales.resize(ffn.rows * scale_row_bytes(format, settings_.hidden_size));
    encode_rows(request.input, format, settings_.activation_dtype, ffn.rows, settings_.hidden_size,
                open.encoded.data(), open.scales.data());
    ffn.in = {.dtype = settings_.activation_dtype,
              .data = open.encoded.data(),
              .row_stride = hidden,
              .format = format,
              .scales = open.scales.empty() ? nullptr : open.scales.data(),
              .scale_stride = scale_cols(format, settings_.hidden_size)};
  }
  if (request.output != nullptr) {
    open.converted.resize(dtype_bytes(settings_.reply_dtype, values));
    open.output = request.output;
    open.values = values;
    ffn.out = {open.converted.data(), open.converted.size(), MemorySpace::host};
  }
}

Result<uint64_t> Client::submit(const ClientRequest& request) {
  FfnRequest ffn = request.ffn;
  Open open;
  prepare(request, ffn, open);
  const std::lock_guard lock(mutex_);
  if (requests_.size() >= max_in_flight_) {
    return make_error(
        ErrorCode::would_block,
        fmt::format("{} requests are open, which is max_in_flight: wait for one", max_in_flight_));
  }
  TANDEM_ASSIGN(open.ticket, port_->submit(ffn));
  const uint64_t handle = next_handle_++;
  handles_.emplace(open.ticket, handle);
  requests_.emplace(handle, std::move(open));
  return handle;
}

void Client::collect() {
  std::array<Completion, kCollectBatch> completions;
  bool any = false;
  for (size_t count = kCollectBatch; count == kCollectBatch;) {
    count = port_->poll(completions);
    for (size_t i = 0; i < count; ++i) {
      const auto handle = handles_.find(completions[i].ticket);
      if (handle == handles_.end()) continue;
      Open& open = requests_.at(handle->second);
      open.done = true;
      open.status = std::move(completions[i].status);
      open.times = completions[i].times;
      handles_.erase(handle);
      any = true;
    }
  }
  if (any) ring();
}

void Client::ring() {
  changed_.notify_all();
  if (!leading_) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(wake_.get(), &one, sizeof one);  // full: it is readable already
}

void Client::sleep_until(Instant until) const {
  std::array<pollfd, 2> wanted = {pollfd{port_->wait_fd(), POLLIN, 0}, pollfd{wake_.get(), POLLIN, 0}};
  int milliseconds = -1;
  if (until != Instant::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now()).count();
    milliseconds = static_cast<int>(std::clamp<int64_t>(left, 0, INT32_MAX));
  }
  ::poll(wanted.data(), wanted.size(), milliseconds);
  uint64_t drained = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &drained, sizeof drained);
}

Result<FfnTimes> Client::take(Requests::iterator found, std::unique_lock<std::mutex>& lock) {
  const Open open = std::move(found->second);
  requests_.erase(found);
  lock.unlock();
  if (!open.status) return std::unexpected(open.status.error());
  if (open.output != nullptr) to_floats(open.converted, settings_.reply_dtype, open.output, open.values);
  return open.times;
}

Result<FfnTimes> Client::wait(uint64_t handle, Instant until) {
  std::unique_lock lock(mutex_);
  collect();
  while (true) {
    const auto found = requests_.find(handle);
    if (found == requests_.end()) return no_request(handle);
    if (found->second.done) return take(found, lock);
    if (now() >= until) return make_error(ErrorCode::would_block, fmt::format("request {} runs on", handle));
    ++found->second.waiting;  // a cancelled entry stays until then
    if (!leading_) {
      leading_ = true;
      lock.unlock();
      sleep_until(until);
      lock.lock();
      leading_ = false;
      collect();
      changed_.notify_all();  // somebody else leads now, should this thread leave
    } else if (until == Instant::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, until);
    }
    if (const auto still = requests_.find(handle); still != requests_.end()) --still->second.waiting;
  }
}

Status Client::cancel(uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(handle);
  if (found == requests_.end()) return no_request(handle);
  Open& open = found->second;
  if (!open.done) {
    port_->cancel(open.ticket);
    handles_.erase(open.ticket);
  }
  if (open.waiting == 0) {
    requests_.erase(found);
    return {};
  }
  open.done = true;
  open.status = make_error(ErrorCode::cancelled, fmt::format("request {} was cancelled", handle));
  ring();
  return {};
}

}  // namespace tandem
