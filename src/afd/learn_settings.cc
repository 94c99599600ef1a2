#include "afd/learn_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>

#include "afd/frame.h"
#include "transport/connecting.h"

namespace tandem {
namespace {

// As RemoteFfn waits between tries (remote_ffn_io.cc): a rank loads its weights for seconds.
constexpr Duration kRetryInterval = std::chrono::milliseconds(250);
constexpr Duration kGiveUpInterval = std::chrono::milliseconds(20);  // how late `give_up` is noticed

template <class T>
bool read_number(std::string_view text, T& to, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to, base);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

bool read_choice(std::string_view text, std::string_view no, std::string_view yes, bool& to) {
  to = text == yes;
  return to || text == no;
}

bool read_dtype(std::string_view text, DType& to) {
  const auto dtype = dtype_from_name(text);
  to = dtype.value_or(DType::none);
  return dtype.has_value();
}

// "3,5,8"
template <class T>
bool read_list(std::string_view text, std::vector<T>& to) {
  to.clear();
  while (true) {
    const size_t comma = text.find(',');
    T value{};
    if (!read_number(text.substr(0, comma), value)) return false;
    if (!to.empty() && value <= to.back()) return false;  // ascending
    to.push_back(value);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

// The same, or "3-60" for all from 3 to 60.
bool read_layers(std::string_view text, std::vector<uint16_t>& to) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return read_list(text, to);
  uint16_t first = 0, last = 0;
  if (!read_number(text.substr(0, dash), first) || !read_number(text.substr(dash + 1), last)) return false;
  to.clear();
  for (uint32_t layer = first; layer <= last; ++layer) to.push_back(static_cast<uint16_t>(layer));
  return !to.empty();
}

bool read_activation(std::string_view text, SplitSettings& s) {
  const auto format = activation_format_from_name(text);
  if (format && is_quantized(*format)) {
    s.activation_format = *format;
    s.activation_dtype = value_dtype(*format, s.compute_dtype);
    return true;
  }
  return read_dtype(text, s.activation_dtype);
}

// One setting into its place; false: no value of this key. Nothing: no key of ours.
std::optional<bool> read_setting(std::string_view key, std::string_view text, SplitSettings& s) {
  if (key == "protocol" || key == "tile_rows") return true;  // compared as a whole below
  if (key == "model_fingerprint") return read_number(text, s.model_fingerprint, 16);
  if (key == "hidden_size") return read_number(text, s.hidden_size);
  if (key == "num_layers") return read_number(text, s.num_layers);
  if (key == "draft_layers") return read_number(text, s.num_draft_layers);
  if (key == "moe_layers") return read_layers(text, s.moe_layers);
  if (key == "hash_layers") return read_number(text, s.num_hash_layers);
  if (key == "num_experts") return read_number(text, s.num_experts);
  if (key == "top_k") return read_number(text, s.top_k);
  if (key == "moe_intermediate_size") return read_number(text, s.moe_intermediate_size);
  if (key == "shared_intermediate_size") return read_number(text, s.shared_intermediate_size);
  if (key == "vocab_size") return read_number(text, s.vocab_size);
  if (key == "gate") return read_choice(text, "ffn", "attention", s.gate_on_attention);
  if (key == "shared_experts") return read_choice(text, "ffn", "attention", s.shared_experts_on_attention);
  if (key == "num_ffn_ranks") return read_number(text, s.num_ffn_ranks);
  if (key == "connector") {
    s.connector = text == "any" ? "p2p" : text;
    return true;
  }
  if (key == "routing") return read_choice(text, "model", "balanced", s.balanced_routing);
  if (key == "token_ids") return read_choice(text, "no", "yes", s.token_ids);
  if (key == "compute_dtype") return read_dtype(text, s.compute_dtype);
  if (key == "weights") {
    s.weights = text;
    return true;
  }
  if (key == "activation_dtype") return read_activation(text, s);
  if (key == "reply_dtype") return read_dtype(text, s.reply_dtype);
  if (key == "deterministic") {
    bool deterministic = false;
    const bool known = read_choice(text, "no", "yes", deterministic);
    s.sum_mode = deterministic ? SumMode::deterministic : SumMode::plain;
    return known;
  }
  if (key == "execution") return read_choice(text, "eager", "graph", s.graph);
  if (key == "capture_sizes") return text == "none" || read_list(text, s.capture_sizes);
  if (key == "numerics_id") return read_number(text, s.numerics_id, 16);
  return std::nullopt;
}

Status check_expected_keys(const SettingList& expected) {
  const std::vector<Setting> known = list_settings(SplitSettings{});
  for (const auto& [key, value] : expected) {
    if (std::ranges::any_of(known, [&](const Setting& setting) { return setting.key == key; })) continue;
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("expected setting \"{}\": no setting of the handshake has this name; "
                                  "docs/protocol.md, section 4, lists them",
                                  key));
  }
  return {};
}

Result<LearnedSettings> ask_once(const LearnOptions& options, const std::string& hello,
                                 const std::atomic<bool>& stop) {
  EndpointOptions endpoint_options = options.endpoint;
  endpoint_options.adopt = true;
  endpoint_options.connect_limit = std::min({kLongestTry, endpoint_options.connect_limit});
  TANDEM_ASSIGN(const std::unique_ptr<Endpoint> endpoint, connect(options.address, endpoint_options, stop));
  TANDEM_ASSIGN(const Hello peer,
                ask_settings(*endpoint, options.address, hello,
                             std::min(options.deadline, now() + options.handshake_limit), stop));
  if (peer.peer.role != "ffn") {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("{} is {}, not an FFN rank", options.address, peer.peer.text()));
  }
  if (peer.peer.rank != 0) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("{} says that it is FFN rank {}: list FFN addresses in order of rank",
                                  options.address, peer.peer.rank));
  }
  LearnedSettings learned;
  TANDEM_ASSIGN(learned.settings, parse_settings(peer.settings));
  // Compared here and not stated: a rank that has served nobody yet ends when a peer does not fit.
  for (const auto& [key, value] : options.expected) {
    const auto stated =
        std::ranges::find_if(peer.settings, [&](const auto& setting) { return setting.first == key; });
    if (stated->second == value) continue;
    return make_error(ErrorCode::invalid_argument, fmt::format("{} is {} on {}, and {} is expected", key,
                                                               stated->second, peer.peer.text(), value));
  }
  const EndpointCaps caps = endpoint->caps();
  learned.slots_per_channel = caps.slots_per_channel;
  learned.heartbeat_interval = caps.heartbeat_interval;
  learned.silence_limit = caps.silence_limit;
  return learned;
}

}  // namespace

Result<SplitSettings> parse_settings(std::span<const std::pair<std::string, std::string>> lines) {
  SplitSettings settings;
  // The compute dtype stands before what follows from it, in whatever order the lines are.
  for (const bool first : {true, false}) {
    for (const auto& [key, value] : lines) {
      if ((key == "compute_dtype") != first || key.starts_with(kOptionalSettingPrefix)) continue;
      const std::optional<bool> read = read_setting(key, value, settings);
      if (!read) {
        return make_error(ErrorCode::unsupported,
                          fmt::format("the peer has a setting {}={}, which this release does not know: run "
                                      "the same release on both sides",
                                      key, value));
      }
      if (!*read) {
        return make_error(ErrorCode::data_loss,
                          fmt::format("setting {}: \"{}\" is no value of it", key, value));
      }
    }
  }
  // Nothing was lost on the way: written again, it is the same text.
  for (const Setting& setting : list_settings(settings)) {
    const auto stated =
        std::ranges::find_if(lines, [&](const auto& line) { return line.first == setting.key; });
    if (stated == lines.end()) {
      return make_error(ErrorCode::data_loss, fmt::format("the peer does not state {}", setting.key));
    }
    const bool same = setting.key == "protocol" ? same_major(stated->second, setting.value)
                                                : stated->second == setting.value;
    if (!same) {
      return make_error(ErrorCode::unsupported,
                        fmt::format("the peer states {}={}, this release would say {}: run the same release "
                                    "on both sides",
                                    setting.key, stated->second, setting.value));
    }
  }
  TANDEM_TRY(settings.validate());
  return settings;
}

Result<LearnedSettings> learn_settings(const LearnOptions& options) {
  static const std::atomic<bool> never = false;
  const std::atomic<bool>& stop = options.give_up != nullptr ? *options.give_up : never;
  const PeerIdentity self = make_identity("attention", options.attention_rank);
  TANDEM_TRY(check_expected_keys(options.expected));
  const std::string hello = encode_hello(self, SplitSettings{}, /*states=*/false);
  while (true) {
    const Instant began = now();
    auto learned = ask_once(options, hello, stop);
    if (learned || never_fits(learned.error().code) || learned.error().code == ErrorCode::cancelled)
      return learned;
    // As long again as the try took, and never less than the interval: a busy peer is not kept busy.
    const Instant next = now() + std::max<Duration>(kRetryInterval, now() - began);
    if (next >= options.deadline) {
      return make_error(ErrorCode::deadline_exceeded, fmt::format("no FFN rank in time: FFN rank 0 at {}: {}",
                                                                  options.address, learned.error().message));
    }
    while (now() < next) {
      if (stop.load())
        return make_error(ErrorCode::cancelled, "stopped while waiting for " + options.address);
      std::this_thread::sleep_for(kGiveUpInterval);
    }
  }
}

}  // namespace tandem
