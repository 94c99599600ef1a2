#include "serving/trace_endpoint.h"

#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <utility>

#include "base/clock.h"

namespace tandem {
namespace {

// Whatever else is to be computed goes first.
constexpr int kTraceThreadNice = 19;

constexpr const char* kForm = "use ?seconds=N for the next N seconds, or ?last=N for the last ones";

}  // namespace

Result<TraceRequest> parse_trace_query(std::string_view query) {
  const size_t equals = query.find('=');
  const std::string_view name = query.substr(0, equals);
  const std::string_view value = equals == query.npos ? std::string_view() : query.substr(equals + 1);
  if (name != "seconds" && name != "last")
    return make_error(ErrorCode::invalid_argument, "\"" + std::string(query) + "\": " + kForm);
  TraceRequest request;
  request.past = name == "last";
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), request.seconds);
  if (error == std::errc() && end == value.data() + value.size() && request.seconds >= kMinTraceSeconds &&
      request.seconds <= kMaxTraceSeconds)
    return request;
  return make_error(ErrorCode::invalid_argument, std::string(name) + ": \"" + std::string(value) +
                                                     "\" is not a number of seconds in 0.1..60");
}

// A request that is being answered.
struct TraceEndpoint::Visit {
  TraceRequest asked;
  TraceSource source;
  std::shared_ptr<ResponseWriter> writer;
  int64_t from_ns = 0;
  uint64_t since = 0;        // TraceRing::window
  bool client_left = false;  // under mutex_
};

TraceEndpoint::TraceEndpoint(TraceEndpointOptions options) : options_(std::move(options)) {
  if (options_.on) thread_ = std::make_unique<WorkerPool>(1, 1, "tandem-trace");
}

TraceEndpoint::~TraceEndpoint() {
  stop();
}

void TraceEndpoint::attach(TraceSource source) {
  const std::lock_guard lock(mutex_);
  source_ = std::move(source);
  attached_ = true;
}

void TraceEndpoint::handle(const std::shared_ptr<HttpRequest>& request,
                           const std::shared_ptr<ResponseWriter>& writer) {
  const auto refuse = [&](int status, std::string message) {
    writer->respond(options_.error_response(status, std::move(message), request->path));
  };
  if (!options_.on) return refuse(404, "traces on request are off: start this process with --trace-requests");
  const auto asked = parse_trace_query(request->query);
  if (!asked) return refuse(400, asked.error().message);
  const auto visit = std::make_shared<Visit>();
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return refuse(503, "the server is stopping");
    if (!attached_) return refuse(503, "the model is loading: nothing is recorded yet");
    if (source_.ring == nullptr)
      return refuse(404, "this process runs no lanes: ask the attention ranks behind it");
    if (asked->past && !source_.always)
      return refuse(400,
                    "last: nothing is recorded before it is asked for: use ?seconds=N, or start this "
                    "process with --trace FILE");
    if (busy_) return refuse(409, "a trace is being taken, one at a time: ask again when it is done");
    busy_ = true;
    *visit = {.asked = *asked, .source = source_, .writer = writer};
    begin(*visit);
  }
  writer->on_disconnect([this, held = std::weak_ptr(visit)] {  // which holds the writer, which holds this
    const auto visited = held.lock();
    if (!visited) return;
    const std::lock_guard lock(mutex_);
    visited->client_left = true;
    changed_.notify_all();
  });
  thread_->post([this, visit] { run(*visit); });
}

// Now, and not when the thread has its turn, which may be late: it has the lowest priority.
void TraceEndpoint::begin(Visit& visit) {
  visit.from_ns = trace_time(now());
  if (visit.asked.past) {
    visit.from_ns -= static_cast<int64_t>(visit.asked.seconds * 1e9);
    return;
  }
  visit.since = visit.source.ring->written();
  if (!visit.source.always) visit.source.ring->ask();
}

void TraceEndpoint::wait(const Visit& visit) {
  const auto until =
      now() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(visit.asked.seconds));
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [&] { return visit.client_left || stopping_; });
}

void TraceEndpoint::run(const Visit& visit) {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kTraceThreadNice);
  const TraceSource& source = visit.source;
  if (!visit.asked.past) {
    wait(visit);
    if (!source.always) source.ring->end();
  }
  std::string text = source.write(source.ring->window(visit.from_ns, visit.since, options_.max_events));
  {
    // Before the reply: who has it may ask again.
    const std::lock_guard lock(mutex_);
    busy_ = false;
  }
  visit.writer->respond({.status = 200, .body = std::move(text)});
}

void TraceEndpoint::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_) thread_->stop();
}

}  // namespace tandem
