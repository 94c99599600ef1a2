#include "bench/transport_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "bench/bare_floor.h"
#include "bench/transport_carrier.h"
#include "transport/throwaway_certificates.h"
#include "transport/transports.h"

namespace tandem {
namespace {

constexpr size_t kMinRoundTrips = 100;  // for a p99 that means something
constexpr size_t kMaxRoundTrips = 20'000;
constexpr size_t kSlices = 10;            // of a case: what disturbs one slice disturbs every transport alike
constexpr double kMaxSecondsPerCase = 5;  // a machine that is busy with other work must not take for ever

struct Measured {
  TransportCase of;
  std::string transport;
  std::vector<double> times;  // sorted; seconds
  double p50() const { return times[times.size() / 2]; }
  double p99() const { return times[std::min(times.size() - 1, times.size() * 99 / 100)]; }
  double gigabytes_per_second() const {
    return 2.0 * static_cast<double>(of.messages * of.bytes) / p50() / 1e9;
  }
};

std::vector<TransportCase> cases_of(const TransportBenchOptions& options) {
  const uint32_t tiles = (options.rows + kMaxTileRows - 1) / kMaxTileRows;
  const uint32_t rows = (options.rows + tiles - 1) / tiles;
  std::vector<TransportCase> cases;
  cases.push_back({fmt::format("{} tiles of {} x {} bf16", tiles, rows, options.hidden_size), tiles,
                   size_t{rows} * options.hidden_size * 2, rows});
  for (size_t bytes = 64; bytes <= size_t{4} << 20; bytes *= 4) {
    const std::string name = bytes < 1024         ? fmt::format("{} B", bytes)
                             : bytes < (1u << 20) ? fmt::format("{} KiB", bytes >> 10)
                                                  : fmt::format("{} MiB", bytes >> 20);
    cases.push_back({name, 1, bytes, 0});
  }
  return cases;
}

SplitSettings settings_of(const TransportBenchOptions& options) {
  SplitSettings settings;
  settings.hidden_size = options.hidden_size;
  settings.num_layers = 1;
  settings.moe_layers = {0};
  settings.num_experts = 256;
  settings.top_k = 8;
  settings.set_dtypes(DType::bf16, SumMode::plain);
  return settings;
}

EndpointOptions endpoint_options(const std::vector<TransportCase>& cases) {
  constexpr size_t kFrameOverhead = 4096;  // header, descriptors and padding of a tile
  EndpointOptions options;
  options.slots_per_channel = 1;
  options.slot_bytes = 1;
  for (const TransportCase& item : cases) {
    options.slots_per_channel = std::max(options.slots_per_channel, static_cast<uint32_t>(item.messages));
    options.slot_bytes = std::max(options.slot_bytes, item.bytes + kFrameOverhead);
  }
  // Measured while other work may hold the CPUs, and while a transport waits for its turn.
  options.heartbeat_interval = std::chrono::seconds(2);
  options.silence_limit = std::chrono::seconds(30);
  return options;
}

double seconds_since(Instant start) {
  return std::chrono::duration<double>(now() - start).count();
}

// The floor and the transports, alike.
struct Contender {
  std::string name;
  std::function<Result<void>(const TransportCase& item)> begin;
  std::function<void()> end;
  std::function<Result<void>(const TransportCase& item, std::span<const std::byte>, std::span<std::byte>)>
      round_trip;
};

class CaseRun {
 public:
  CaseRun(const TransportCase& item, double seconds) : item_(item), seconds_(seconds) {
    source_.resize(item.bytes);
    target_.resize(item.bytes);
    for (size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(i * 31 + i / 257);
  }

  Result<void> run(std::vector<Contender>& contenders, std::vector<Measured>& results) {
    std::vector<Measured> mine;
    for (Contender& contender : contenders) {
      mine.push_back({item_, contender.name, {}});
      Measured warm_up = mine.back();
      TANDEM_TRY(slice(contender, warm_up));
    }
    for (size_t i = 0; i < kSlices; ++i) {
      for (size_t c = 0; c < contenders.size(); ++c) TANDEM_TRY(slice(contenders[c], mine[c]));
    }
    for (Measured& measured : mine) {
      std::sort(measured.times.begin(), measured.times.end());
      results.push_back(std::move(measured));
    }
    return {};
  }

 private:
  Result<void> slice(Contender& contender, Measured& into) {
    constexpr size_t kLeast = kMinRoundTrips / kSlices;
    constexpr size_t kMost = kMaxRoundTrips / kSlices;
    if (contender.begin) TANDEM_TRY(contender.begin(item_));
    std::ranges::fill(target_, std::byte{});
    const Instant begin = now();
    for (size_t i = 0; i < kMost; ++i) {
      const Instant start = now();
      const double passed = std::chrono::duration<double>(start - begin).count();
      if (i > 0 && passed >= kMaxSecondsPerCase / kSlices) break;
      if (i >= kLeast && passed >= seconds_ / kSlices) break;
      TANDEM_TRY(contender.round_trip(item_, source_, target_));
      into.times.push_back(seconds_since(start));
    }
    if (contender.end) contender.end();
    if (source_ == target_) return {};
    return make_error(ErrorCode::data_loss, "the echo over " + contender.name + " has other bytes");
  }

  const TransportCase& item_;
  double seconds_;
  std::vector<std::byte> source_, target_;
};

const Measured& of_same_case(const std::vector<Measured>& results, const Measured& measured,
                             std::string_view transport) {
  return *std::ranges::find_if(
      results, [&](const Measured& m) { return m.of.name == measured.of.name && m.transport == transport; });
}
// What a secured connection is held against.
const Measured* plain_of(const std::vector<Measured>& results, const Measured& measured) {
  const size_t plus = measured.transport.find('+');
  return plus == std::string::npos ? nullptr
                                   : &of_same_case(results, measured, measured.transport.substr(0, plus));
}

std::string as_table(const std::vector<Measured>& results) {
  const bool secured =
      std::ranges::any_of(results, [&](const Measured& m) { return plain_of(results, m) != nullptr; });
  std::string text =
      fmt::format("{:<26}{:<8}{:>8}{:>11}{:>11}{:>8}{:>12}{:>8}{}\n", "round trip of", "", "times", "p50 us",
                  "p99 us", "GB/s", "x floor p50", "p99", secured ? " x tcp p50     p99" : "");
  const std::string* last = nullptr;
  for (const Measured& m : results) {
    const Measured& floor = of_same_case(results, m, "floor");
    const bool first = last == nullptr || *last != m.of.name;
    last = &m.of.name;
    text += fmt::format("{:<26}{:<8}{:>8}{:>11.1f}{:>11.1f}{:>8.2f}{:>12.2f}{:>8.2f}", first ? m.of.name : "",
                        m.transport, m.times.size(), m.p50() * 1e6, m.p99() * 1e6, m.gigabytes_per_second(),
                        m.p50() / floor.p50(), m.p99() / floor.p99());
    if (const Measured* plain = plain_of(results, m))
      text += fmt::format("{:>10.2f}{:>8.2f}", m.p50() / plain->p50(), m.p99() / plain->p99());
    text += "\n";
  }
  return text +
         "floor: two processes, the same three copies through shared slots, spinning on flags, nothing "
         "else\n";
}

std::string as_json(const std::vector<Measured>& results) {
  std::string text = "{\"cases\": [";
  for (const Measured& m : results) {
    if (&m != results.data()) text += ", ";
    const Measured& floor = of_same_case(results, m, "floor");
    text += fmt::format(
        "{{\"transport\": \"{}\", \"case\": \"{}\", \"messages\": {}, \"message_bytes\": {}, "
        "\"round_trips\": {}, \"p50_us\": {:.2f}, \"p99_us\": {:.2f}, \"gigabytes_per_second\": {:.3f}, "
        "\"p50_of_floor\": {:.3f}, \"p99_of_floor\": {:.3f}",
        m.transport, m.of.name, m.of.messages, m.of.bytes, m.times.size(), m.p50() * 1e6, m.p99() * 1e6,
        m.gigabytes_per_second(), m.p50() / floor.p50(), m.p99() / floor.p99());
    if (const Measured* plain = plain_of(results, m)) {
      text += fmt::format(", \"p50_of_tcp\": {:.3f}, \"p99_of_tcp\": {:.3f}", m.p50() / plain->p50(),
                          m.p99() / plain->p99());
    }
    text += "}";
  }
  return text + "]}\n";
}

// The schemes that are wanted, and tcp once more for each way to know a peer.
struct Wanted {
  std::string name;
  std::shared_ptr<const PeerSecurity> security = nullptr;
};

Result<std::shared_ptr<const PeerSecurity>> security_of(const std::string& kind,
                                                        const ThrowawayCertificates& certificates) {
  if (kind == "tls") return PeerSecurity::with_tls(certificates.files());
  constexpr std::string_view kSecret = "that of a benchmark: it protects nothing";
  return PeerSecurity::with_key(std::as_bytes(std::span(kSecret)), "the benchmark's key");
}

Result<std::vector<Wanted>> wanted_of(const TransportBenchOptions& options,
                                      const ThrowawayCertificates& certificates) {
  std::vector<Wanted> wanted;
  std::string known;
  for (const Transport& transport : transports()) {
    const std::string scheme(transport.scheme);
    known += (known.empty() ? "" : ", ") + scheme;
    if (!options.transport.empty() && options.transport != scheme) continue;
    wanted.push_back({scheme});
    if (scheme != "tcp") continue;
    for (const std::string& kind : options.security) {
      if (kind == "none") continue;
      TANDEM_ASSIGN(auto security, security_of(kind, certificates));
      wanted.push_back({scheme + "+" + kind, std::move(security)});
    }
  }
  if (!wanted.empty()) return wanted;
  return make_error(ErrorCode::invalid_argument,
                    "transport \"" + options.transport + "\" is unknown; use one of: " + known);
}

Result<void> check(const TransportBenchOptions& options) {
  for (const std::string& kind : options.security) {
    if (kind != "none" && kind != "key" && kind != "tls") {
      return make_error(ErrorCode::invalid_argument,
                        "security \"" + kind + "\" is unknown; use one of: none, key, tls");
    }
    if (kind != "none" && !options.transport.empty() && options.transport != "tcp") {
      return make_error(ErrorCode::invalid_argument, "security \"" + kind + "\" with transport \"" +
                                                         options.transport + "\": it is measured over tcp");
    }
  }
  if (!(options.seconds > 0 && options.seconds <= kMaxSecondsPerCase)) {
    return make_error(ErrorCode::invalid_argument, fmt::format("seconds {} is not above 0 and up to {}",
                                                               options.seconds, kMaxSecondsPerCase));
  }
  if (options.rows < 1 || options.rows > 4096 || options.hidden_size < 1 || options.hidden_size > 65536) {
    return make_error(ErrorCode::invalid_argument,
                      "a tile pair has 1 to 4096 rows and a hidden_size of 1 to 65536");
  }
  return {};
}

}  // namespace

Result<std::string> run_transport_bench(const TransportBenchOptions& options, bool json) {
  TANDEM_TRY(check(options));
  const std::vector<TransportCase> cases = cases_of(options);
  const EndpointOptions endpoint = endpoint_options(cases);
  TANDEM_ASSIGN(const auto certificates, ThrowawayCertificates::create());
  TANDEM_ASSIGN(const std::vector<Wanted> wanted, wanted_of(options, *certificates));
  // All processes first: UCX does not outlive a fork.
  const KeptAffinity kept;
  const TwoCpus cpus = TwoCpus::detect();
  TANDEM_ASSIGN(const auto floor,
                BareFloor::create(endpoint.slots_per_channel, endpoint.slot_bytes, cpus.second));
  std::vector<std::unique_ptr<TransportCarrier>> carriers;
  for (const Wanted& one : wanted) {
    EndpointOptions with = endpoint;
    with.security = one.security;
    TANDEM_ASSIGN(auto carrier, TransportCarrier::create(one.name, with, settings_of(options), cpus));
    carriers.push_back(std::move(carrier));
  }
  if (cpus.are_two()) stay_on_cpu(cpus.first);
  std::vector<Contender> contenders;
  contenders.push_back({"floor",
                        [&](const TransportCase& item) { return floor->begin(item.messages, item.bytes); },
                        [&] { floor->end(); },
                        [&](const TransportCase&, std::span<const std::byte> source,
                            std::span<std::byte> target) { return floor->round_trip(source, target); }});
  for (const auto& carrier : carriers) {
    TANDEM_TRY(carrier->connect());
    contenders.push_back({carrier->name(),
                          {},
                          {},
                          [one = carrier.get()](const TransportCase& item, std::span<const std::byte> source,
                                                std::span<std::byte> target) {
                            return one->round_trip(item, source, target);
                          }});
  }
  std::vector<Measured> results;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (options.progress) options.progress(fmt::format("{} of {}: {}", i + 1, cases.size(), cases[i].name));
    TANDEM_TRY(CaseRun(cases[i], options.seconds).run(contenders, results));
  }
  return json ? as_json(results) : as_table(results);
}

}  // namespace tandem
