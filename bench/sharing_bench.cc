#include "bench/sharing_bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/roofs.h"
#include "bench/sharing_clients.h"
#include "bench/sharing_pool.h"
#include "bench/sharing_trouble.h"

namespace tandem::bench {
namespace {

constexpr const char* kArms = "merge, oldest, fifo, colocated, flood, connections, stall";
constexpr double kRoofSeconds = 0.05;  // each reading; one after every slice

struct Arm {
  std::string name;
  ClientTimes times;
  FfnStats stats;  // sums of what matters over the slices
  uint64_t trouble = 0;

  bool on_pool() const { return name != "colocated"; }
  size_t answers() const {
    return std::accumulate(times.milliseconds.begin(), times.milliseconds.end(), size_t{0},
                           [](size_t sum, const auto& client) { return sum + client.size(); });
  }
};

float percentile(std::vector<float> values, double share) {
  if (values.empty()) return 0;
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, at);
  return *at;
}

struct Figures {
  double tokens_per_second = 0, p50 = 0, p99 = 0;
  double client_p99[2] = {0, 0}, client_tokens[2] = {0, 0};  // least and most
  double clients_per_call = 0, rows_per_expert = 0, bytes_per_token = 0, read_gbps = 0, of_roof = 0;
};

Figures figures_of(const Arm& arm, const SharingOptions& options, double roof) {
  Figures figures;
  const auto tokens = [&](size_t answers) {
    return static_cast<double>(answers) * options.rows / options.layers;
  };
  figures.tokens_per_second = tokens(arm.answers()) / arm.times.seconds;
  std::vector<float> all;
  for (size_t c = 0; c < arm.times.milliseconds.size(); ++c) {
    const std::vector<float>& mine = arm.times.milliseconds[c];
    all.insert(all.end(), mine.begin(), mine.end());
    const double p99 = percentile(mine, 0.99), count = tokens(mine.size());
    figures.client_p99[0] = c == 0 ? p99 : std::min(figures.client_p99[0], p99);
    figures.client_p99[1] = std::max(figures.client_p99[1], p99);
    figures.client_tokens[0] = c == 0 ? count : std::min(figures.client_tokens[0], count);
    figures.client_tokens[1] = std::max(figures.client_tokens[1], count);
  }
  figures.p50 = percentile(all, 0.5);
  figures.p99 = percentile(all, 0.99);
  if (!arm.on_pool()) return figures;
  const auto ratio = [](uint64_t sum, uint64_t count) {
    return count == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(count);
  };
  figures.clients_per_call = ratio(arm.stats.clients_in_groups, arm.stats.groups);
  figures.rows_per_expert = ratio(arm.stats.expert_rows, arm.stats.experts_read);
  figures.bytes_per_token = ratio(arm.stats.bytes_read, arm.stats.rows) * options.layers;
  figures.read_gbps = static_cast<double>(arm.stats.bytes_read) / arm.times.seconds * 1e-9;
  figures.of_roof = figures.read_gbps / (roof * 1e-9);
  return figures;
}

void add_stats(FfnStats& sum, const FfnStats& after, const FfnStats& before) {
  const auto add = [&](uint64_t FfnStats::*field) { sum.*field += after.*field - before.*field; };
  for (auto field : {&FfnStats::groups, &FfnStats::clients_in_groups, &FfnStats::rows, &FfnStats::tiles,
                     &FfnStats::expert_rows, &FfnStats::experts_read, &FfnStats::bytes_read, &FfnStats::holds,
                     &FfnStats::holds_joined, &FfnStats::held_us, &FfnStats::wait_us})
    add(field);
}

class Bench {
 public:
  explicit Bench(const SharingOptions& options) : options_(options) {}

  Status run() {
    TANDEM_ASSIGN(pool_, SharingPool::create(options_));
    TANDEM_ASSIGN(const ReadMemory memory, ReadMemory::create(kReadBytes, PageKind::huge));
    const RoofLoops* loops = roof_loops(pool_->runner().table().name);
    if (loops == nullptr)
      return make_error(ErrorCode::internal, "bench sharing: no roof for the kernel table");
    for (const std::string& name : options_.arms) arms_.push_back({.name = name, .times = {}, .stats = {}});
    const double slice = options_.seconds / options_.runs;
    for (int run = 0; run < options_.runs; ++run) {
      for (size_t i = 0; i < arms_.size(); ++i) {
        Arm& arm = arms_[run % 2 == 0 ? i : arms_.size() - 1 - i];
        TANDEM_TRY(arm.on_pool() ? on_pool(arm, slice) : colocated(arm, slice));
        readings_.push_back(
            measure_read(*loops, pool_->threads(), memory.data(), memory.size(), kRoofSeconds));
      }
    }
    return {};
  }

  double roof() const { return median(readings_); }
  const std::vector<Arm>& arms() const { return arms_; }
  int threads() { return pool_->threads().threads(); }
  std::string_view table() { return pool_->runner().table().name; }

 private:
  Status on_pool(Arm& arm, double seconds) {
    const GroupOrder order = arm.name == "fifo"     ? GroupOrder::fifo
                             : arm.name == "oldest" ? GroupOrder::oldest
                                                    : GroupOrder::grouped;
    TANDEM_ASSIGN(const std::unique_ptr<FfnWorker> worker, pool_->serve(address(arm.name), order));
    TANDEM_ASSIGN(const std::unique_ptr<PoolClients> clients,
                  PoolClients::connect(options_, *pool_, *worker));
    std::unique_ptr<Trouble> trouble;
    if (Trouble::is_known(arm.name)) {
      trouble = std::make_unique<Trouble>(arm.name, options_, pool_->settings(), worker->address());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it has begun
    }
    const FfnStats before = worker->stats();
    TANDEM_ASSIGN(const ClientTimes times, clients->run(seconds));
    add_stats(arm.stats, worker->stats(), before);
    arm.times.add(times);
    if (trouble != nullptr) arm.trouble += trouble->done();
    return {};
  }

  Status colocated(Arm& arm, double seconds) {
    if (copies_ == nullptr) {
      TANDEM_ASSIGN(copies_, ColocatedClients::create(options_));
    }
    TANDEM_ASSIGN(const ClientTimes times, copies_->run(seconds));
    arm.times.add(times);
    return {};
  }

  // Connections are opened by what stands in any network, so that arm is always over tcp.
  std::string address(const std::string& arm) const {
    static std::atomic<uint32_t> serial{0};
    const std::string name = fmt::format("tandem-sharing-{}-{}", ::getpid(), serial++);
    if (options_.transport == "tcp" || arm == "connections") return "tcp://127.0.0.1:0";
    return options_.transport == "shm" ? "shm:///tmp/" + name : "inproc://" + name;
  }

  const SharingOptions& options_;
  std::unique_ptr<SharingPool> pool_;
  std::unique_ptr<ColocatedClients> copies_;
  std::vector<Arm> arms_;
  std::vector<double> readings_;
};

std::string as_text(const SharingOptions& options, Bench& bench) {
  std::string text = fmt::format(
      "{} clients, {} rows a request, one under way each, pauses of {} ms; {} layers of {} experts ({} x "
      "{}), {} a "
      "row, as {};\n{} threads ({}), over {}; {} s an arm in {} turns; memory is read at {:.1f} GB/s\n\n",
      options.clients, options.rows, options.think_ms, options.layers, options.experts, options.hidden,
      options.intermediate, options.top_k, pack_format_name(options.format), bench.threads(), bench.table(),
      options.transport, options.seconds, options.runs, bench.roof() * 1e-9);
  text += fmt::format("{:<12} {:>9} {:>6} {:>8} {:>8} {:>6} {:>15} {:>8} {:>8} {:>10} {:>6} {:>6}\n", "arm",
                      "tokens/s", "x", "p50 ms", "p99 ms", "x", "tokens a client", "clients", "rows an",
                      "MB read", "GB/s", "roof");
  text += fmt::format("{:<12} {:>9} {:>6} {:>8} {:>8} {:>6} {:>15} {:>8} {:>8} {:>10} {:>6} {:>6}\n", "", "",
                      "", "", "", "", "least-most", "a call", "expert", "a token", "", "");
  const Figures first = figures_of(bench.arms().front(), options, bench.roof());
  for (const Arm& arm : bench.arms()) {
    const Figures f = figures_of(arm, options, bench.roof());
    const auto number = [&](double value, const char* format) {
      return arm.on_pool() ? fmt::format(fmt::runtime(format), value) : std::string("-");
    };
    text += fmt::format(
        "{:<12} {:>9.1f} {:>6.2f} {:>8.2f} {:>8.2f} {:>6.2f} {:>15} {:>8} {:>8} {:>10} {:>6} {:>6}\n",
        arm.name, f.tokens_per_second, f.tokens_per_second / first.tokens_per_second, f.p50, f.p99,
        f.p99 / first.p99, fmt::format("{:.0f}-{:.0f}", f.client_tokens[0], f.client_tokens[1]),
        number(f.clients_per_call, "{:.2f}"), number(f.rows_per_expert, "{:.2f}"),
        number(f.bytes_per_token * 1e-6, "{:.1f}"), number(f.read_gbps, "{:.1f}"),
        number(f.of_roof, "{:.2f}"));
  }
  return text;
}

std::string as_json(const SharingOptions& options, Bench& bench) {
  using Json = nlohmann::ordered_json;
  Json document = {
      {"command", "bench sharing"},
      {"machine",
       {{"threads", bench.threads()}, {"table", bench.table()}, {"read_gbps", bench.roof() * 1e-9}}},
      {"options",
       {{"clients", options.clients},
        {"rows", options.rows},
        {"experts", options.experts},
        {"top_k", options.top_k},
        {"hidden", options.hidden},
        {"intermediate", options.intermediate},
        {"layers", options.layers},
        {"format", pack_format_name(options.format)},
        {"seconds", options.seconds},
        {"runs", options.runs},
        {"think_ms", options.think_ms},
        {"flood_rate", options.flood_rate},
        {"transport", options.transport}}},
      {"arms", Json::array()}};
  for (const Arm& arm : bench.arms()) {
    const Figures f = figures_of(arm, options, bench.roof());
    Json one = {{"arm", arm.name},
                {"tokens_per_second", f.tokens_per_second},
                {"requests", arm.answers()},
                {"p50_ms", f.p50},
                {"p99_ms", f.p99},
                {"client_p99_ms", {f.client_p99[0], f.client_p99[1]}},
                {"client_tokens", {f.client_tokens[0], f.client_tokens[1]}}};
    if (arm.on_pool()) {
      one.update(Json{{"calls", arm.stats.groups},
                  {"clients_per_call", f.clients_per_call},
                  {"rows_per_expert", f.rows_per_expert},
                  {"bytes_per_token", f.bytes_per_token},
                  {"read_gbps", f.read_gbps},
                  {"of_roof", f.of_roof},
                  {"holds", arm.stats.holds},
                  {"holds_joined", arm.stats.holds_joined},
                  {"held_ms", static_cast<double>(arm.stats.held_us) * 1e-3},
                  {"idle_ms", static_cast<double>(arm.stats.wait_us) * 1e-3}});
    }
    if (Trouble::is_known(arm.name)) one["trouble"] = arm.trouble;
    document["arms"].push_back(one);
  }
  return document.dump() + "\n";
}

Status check(const SharingOptions& options) {
  const auto refuse = [](std::string what) {
    return make_error(ErrorCode::invalid_argument, "bench sharing: " + std::move(what));
  };
  if (options.arms.empty()) return refuse(fmt::format("no arms; use some of {}", kArms));
  for (const std::string& arm : options.arms) {
    if (arm != "merge" && arm != "oldest" && arm != "fifo" && arm != "colocated" && !Trouble::is_known(arm))
      return refuse(fmt::format("arm '{}' is unknown; use some of {}", arm, kArms));
  }
  if (options.clients == 0 || options.rows == 0 || options.rows > kMaxTileRows)
    return refuse(fmt::format("{} clients of {} rows: one client and 1 to {} rows would do", options.clients,
                              options.rows, kMaxTileRows));
  if (options.top_k == 0 || options.top_k > options.experts)
    return refuse(fmt::format("{} of {} experts: 1 to all of them would do", options.top_k, options.experts));
  if (options.layers == 0 || options.hidden == 0 || options.intermediate == 0)
    return refuse(fmt::format("{} layers, {} x {}", options.layers, options.hidden, options.intermediate));
  if (options.transport != "inproc" && options.transport != "shm" && options.transport != "tcp")
    return refuse(fmt::format("transport '{}': inproc, shm or tcp would do", options.transport));
  if (options.runs < 1 || !(options.seconds > 0) || !(options.flood_rate > 0))
    return refuse(fmt::format("{} s in {} runs, {} connections a second", options.seconds, options.runs,
                              options.flood_rate));
  return {};
}

}  // namespace

Result<std::string> run_sharing_bench(const SharingOptions& options, bool json) {
  TANDEM_TRY(check(options));
  Bench bench(options);
  TANDEM_TRY(bench.run());
  return json ? as_json(options, bench) : as_text(options, bench);
}

}  // namespace tandem::bench
