#include "cli/front_host.h"

#include <fmt/format.h>

#include <charconv>

#include "base/file.h"
#include "base/log.h"
#include "cli/compute.h"
#include "cli/peer_settings.h"
#include "cli/rank_listener.h"
#include "cli/stop_signal.h"
#include "model/model_weights.h"
#include "serving/engine_front.h"
#include "serving/engine_link.h"
#include "serving/engine_server.h"
#include "serving/served_model.h"
#include "serving/serving_metrics.h"

namespace tandem {
namespace {

// The largest published tokenizer.json has some 30 MiB.
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;

uint64_t hash_text(const std::string& text) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a: tells files apart, and defends against nobody
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// What front and rank must have in common, as far as this process knows it.
Result<EngineIdentity> identity_of(const Settings& settings, const std::string& role, uint32_t rank) {
  EngineIdentity identity = make_engine_identity(role, rank);
  const auto fingerprint = model_fingerprint(settings.model);
  // A front may have the tokenizer alone.
  if (!fingerprint && role == "front") {
    log_info("no weights in " + settings.model + ": the ranks' model is compared among them only");
  } else if (!fingerprint) {
    return std::unexpected(fingerprint.error());
  }
  identity.shared.emplace_back("model_fingerprint",
                               fingerprint ? fmt::format("{:016x}", *fingerprint) : kUnknownValue);
  const auto tokenizer = read_file(settings.model + "/tokenizer.json", kMaxTokenizerBytes);
  identity.shared.emplace_back("tokenizer",
                               tokenizer ? fmt::format("{:016x}", hash_text(*tokenizer)) : kUnknownValue);
  TANDEM_ASSIGN(const std::vector<int32_t> eos_token_ids, read_eos_token_ids(settings.model));
  std::string eos;
  for (const int32_t id : eos_token_ids) eos += (eos.empty() ? "" : ",") + std::to_string(id);
  identity.shared.emplace_back("eos_token_ids", eos.empty() ? kUnknownValue : eos);
  // A front holds no keys; ranks that round them differently would give one request two answers.
  identity.shared.emplace_back(
      "engine.kv_cache_dtype",
      role == "front" ? kUnknownValue : std::string(dtype_name(kv_cache_dtype(settings))));
  return identity;
}

int64_t number(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

// ---- one rank ----

struct AttentionHost::Impl {
  std::unique_ptr<EngineHost> engine;
  std::unique_ptr<EngineServer> server;   // it leaves before the engine does
  std::unique_ptr<RankListener> metrics;  // asks the engine
  RankFacts facts;
};

AttentionHost::AttentionHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AttentionHost::~AttentionHost() = default;
const RankFacts& AttentionHost::facts() const {
  return impl_->facts;
}
void AttentionHost::stop(Duration drain_limit) {
  if (impl_->metrics) impl_->metrics->stop_traces();  // its answer leaves while requests do
  impl_->server->stop(drain_limit);
}

Result<std::unique_ptr<AttentionHost>> AttentionHost::create(const Settings& settings,
                                                             const std::vector<std::string>& ffn_addresses,
                                                             const std::string& address, int roles) {
  auto impl = std::make_unique<Impl>();
  TANDEM_ASSIGN(impl->engine, EngineHost::create(settings, ffn_addresses, roles));
  impl->facts = impl->engine->facts();
  EngineServerOptions options;
  options.listen_address = address;
  TANDEM_ASSIGN(options.security, peer_security(settings.afd));
  TANDEM_ASSIGN(options.identity,
                identity_of(settings, "attention", static_cast<uint32_t>(impl->facts.rank)));
  options.identity.told = {{"pid", std::to_string(impl->facts.pid)},
                           {"transport", impl->facts.transport},
                           {"bytes_held", std::to_string(impl->facts.bytes_held)},
                           {"isa", impl->facts.isa},
                           {"threads", std::to_string(impl->facts.threads)}};
  TANDEM_ASSIGN(impl->server, EngineServer::start(std::move(options), impl->engine->engine()));
  impl->facts.address = impl->server->address();
  if (!settings.afd.metrics_listen.empty()) {
    // Nothing comes by HTTP here: what counts requests stays at 0.
    TANDEM_ASSIGN(
        impl->metrics,
        RankListener::start(
            settings, [engine = impl->engine.get()] { return ServingMetrics().text(&engine->engine()); },
            impl->engine->trace_source()));
    impl->facts.metrics = impl->metrics->metrics_url();
  }
  return std::unique_ptr<AttentionHost>(new AttentionHost(std::move(impl)));
}

// ---- the front ----

struct FrontHost::Impl {
  std::vector<std::string> addresses;
  std::unique_ptr<EngineFront> front;
};

FrontHost::FrontHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FrontHost::~FrontHost() = default;
Engine& FrontHost::engine() {
  return impl_->front->engine();
}

Result<std::unique_ptr<FrontHost>> FrontHost::connect(const Settings& settings,
                                                      const std::vector<std::string>& addresses) {
  auto impl = std::make_unique<Impl>();
  impl->addresses = addresses;
  EngineFrontOptions options;
  options.addresses = addresses;
  TANDEM_ASSIGN(options.security, peer_security(settings.afd));
  TANDEM_ASSIGN(options.identity, identity_of(settings, "front", 0));
  options.start_limit = std::chrono::seconds(settings.afd.connect_timeout_s);
  options.give_up = &StopSignal::requested();
  TANDEM_ASSIGN(impl->front, EngineFront::connect(options));
  return std::unique_ptr<FrontHost>(new FrontHost(std::move(impl)));
}

std::vector<RankFacts> FrontHost::ranks() const {
  std::vector<RankFacts> list;
  for (const EngineIdentity& peer : impl_->front->peers()) {
    RankFacts facts;
    facts.role = peer.role;
    facts.rank = peer.rank;
    facts.pid = number(peer.fact("pid"));
    facts.transport = peer.fact("transport");
    facts.address = impl_->addresses[list.size()];
    facts.bytes_held = static_cast<uint64_t>(number(peer.fact("bytes_held")));
    facts.isa = peer.fact("isa");
    facts.threads = number(peer.fact("threads"));
    list.push_back(std::move(facts));
  }
  return list;
}

}  // namespace tandem
