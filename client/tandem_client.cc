// The C border: structs to values, errors to a status and a line of the calling thread.
#include "tandem_client.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <thread>

#include "base/log.h"
#include "client.h"
#include "row_format.h"
#include "transport/peer_security.h"

#define TANDEM_CLIENT_TEXT_INNER(value) #value
#define TANDEM_CLIENT_TEXT(value) TANDEM_CLIENT_TEXT_INNER(value)

struct tandem_client {
  std::unique_ptr<tandem::Client> client;
};

namespace tandem {
namespace {

thread_local std::string last_error;

// Attempts, which tell requests of one step apart, have 16 bits; room for all is made when connecting.
constexpr uint32_t kMostInFlight = 1 << 16;

tandem_client_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::not_found:
      return TANDEM_CLIENT_INVALID_ARGUMENT;
    case ErrorCode::out_of_range:
      return TANDEM_CLIENT_OUT_OF_RANGE;
    case ErrorCode::unsupported:
      return TANDEM_CLIENT_UNSUPPORTED;
    case ErrorCode::resource_exhausted:
      return TANDEM_CLIENT_RESOURCE_EXHAUSTED;
    case ErrorCode::would_block:
      return TANDEM_CLIENT_WOULD_BLOCK;
    case ErrorCode::unavailable:
      return TANDEM_CLIENT_UNAVAILABLE;
    case ErrorCode::deadline_exceeded:
      return TANDEM_CLIENT_DEADLINE_EXCEEDED;
    case ErrorCode::cancelled:
      return TANDEM_CLIENT_CANCELLED;
    case ErrorCode::data_loss:
      return TANDEM_CLIENT_DATA_LOSS;
    case ErrorCode::internal:
      return TANDEM_CLIENT_INTERNAL;
  }
  return TANDEM_CLIENT_INTERNAL;
}

// What a C function does: `body` returns a Status; nothing is thrown past here.
template <class Body>
tandem_client_status guarded(Body&& body) noexcept {
  try {
    const Status status = body();
    if (status) return TANDEM_CLIENT_OK;
    last_error = status.error().message;
    return status_of(status.error().code);
  } catch (const std::bad_alloc&) {
    last_error.clear();
    last_error.append("out of memory");  // within the string itself
    return TANDEM_CLIENT_RESOURCE_EXHAUSTED;
  } catch (const std::exception& error) {
    last_error = error.what();
    return TANDEM_CLIENT_INTERNAL;
  } catch (...) {
    last_error = "an unknown exception";
    return TANDEM_CLIENT_INTERNAL;
  }
}

std::unexpected<Error> invalid(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

// A struct as this release knows it: members that the caller does not know are 0.
template <class Struct>
Result<Struct> read_struct(const Struct* from, std::string_view what) {
  if (from == nullptr) return invalid(fmt::format("{} is NULL", what));
  const size_t size = from->struct_size;
  if (size < sizeof(size_t)) {
    return invalid(fmt::format("{}: struct_size {}; begin with its ..._INIT macro", what, size));
  }
  Struct known{};
  std::memcpy(&known, from, std::min(size, sizeof known));
  known.struct_size = size;
  return known;
}

// The other way: writes what the caller knows, and leaves its struct_size.
template <class Struct>
Status write_struct(Struct from, Struct* to, std::string_view what) {
  TANDEM_ASSIGN(const Struct callers, read_struct(to, what));
  from.struct_size = callers.struct_size;
  std::memcpy(to, &from, std::min(callers.struct_size, sizeof from));
  return {};
}

template <size_t kBytes>
void copy_text(const std::string& from, char (&to)[kBytes]) {
  const size_t length = std::min(from.size(), kBytes - 1);
  std::memcpy(to, from.data(), length);
  to[length] = 0;
}

Result<SettingList> read_expectations(const char* text) {
  SettingList expected;
  std::string_view rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return invalid(fmt::format("expect: line \"{}\" is not key=value", line));
    }
    expected.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  return expected;
}

Result<std::shared_ptr<const PeerSecurity>> read_security(const tandem_client_options& options) {
  const std::array<std::pair<const char*, const char*>, 3> tls = {
      {{"peer_tls_certificate", options.peer_tls_certificate},
       {"peer_tls_key", options.peer_tls_key},
       {"peer_tls_ca", options.peer_tls_ca}}};
  const auto given = std::ranges::count_if(tls, [](const auto& file) { return file.second != nullptr; });
  if (given == 0 && options.peer_key_file == nullptr) return nullptr;
  if (given == 0) return PeerSecurity::with_key_file(options.peer_key_file);
  if (options.peer_key_file != nullptr) {
    return invalid("peer_key_file beside TLS files: one of the two, as the pool has it");
  }
  for (const auto& [name, file] : tls) {
    if (file == nullptr) return invalid(fmt::format("{} is NULL: TLS wants all three files", name));
  }
  return PeerSecurity::with_tls({tls[0].second, tls[1].second, tls[2].second});
}

LogLevel log_level_of(int32_t level) {
  return level <= 0 ? LogLevel::error : level == 1 ? LogLevel::warning : LogLevel::info;
}

// In a thread that takes no signals, so that none that it starts does; the caller's go on meanwhile.
Result<std::unique_ptr<Client>> connect_without_signals(const ClientOptions& options) {
  Result<std::unique_ptr<Client>> client = make_error(ErrorCode::internal, "connect did not run");
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::exception_ptr thrown;
  std::thread connecting;
  try {
    connecting = std::thread([&] {
      try {
        client = Client::connect(options);
      } catch (...) {
        thrown = std::current_exception();
      }
    });
  } catch (...) {
    thrown = std::current_exception();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (connecting.joinable()) connecting.join();
  if (thrown) std::rethrow_exception(thrown);
  return client;
}

Duration milliseconds_or(uint32_t given, Duration usual) {
  return given == 0 ? usual : std::chrono::milliseconds(given);
}

Status connect_ranks(const char* const* addresses, size_t num_addresses, const tandem_client_options* options,
                     tandem_client** client) {
  if (client == nullptr) return invalid("client is NULL: where the client is to be put");
  if (addresses == nullptr && num_addresses > 0) return invalid("addresses is NULL");
  tandem_client_options given = TANDEM_CLIENT_OPTIONS_INIT;
  if (options != nullptr) {
    TANDEM_ASSIGN(given, read_struct(options, "options"));
  }
  if (given.max_in_flight > kMostInFlight) {
    return make_error(ErrorCode::out_of_range, fmt::format("max_in_flight {}: at most {} requests",
                                                           given.max_in_flight, kMostInFlight));
  }
  ClientOptions wanted;
  for (size_t i = 0; i < num_addresses; ++i) {
    if (addresses[i] == nullptr) return invalid(fmt::format("addresses[{}] is NULL", i));
    wanted.addresses.emplace_back(addresses[i]);
  }
  TANDEM_ASSIGN(wanted.expected, read_expectations(given.expect));
  TANDEM_ASSIGN(wanted.security, read_security(given));
  wanted.connect_limit = milliseconds_or(given.connect_timeout_ms, wanted.connect_limit);
  wanted.reply_limit = milliseconds_or(given.reply_timeout_ms, wanted.reply_limit);
  if (given.max_in_flight != 0) wanted.max_in_flight = given.max_in_flight;
  wanted.client_number = given.client_number;
  set_log_level(log_level_of(given.log_level));
  auto holder = std::make_unique<tandem_client>();
  TANDEM_ASSIGN(holder->client, connect_without_signals(wanted));
  *client = holder.release();
  return {};
}

tandem_client_payload payload_of(const FfnTraits& traits) {
  if (!traits.routes) return TANDEM_CLIENT_PAYLOAD_EXPERTS;
  return traits.wants_token_ids ? TANDEM_CLIENT_PAYLOAD_TOKEN_IDS : TANDEM_CLIENT_PAYLOAD_NONE;
}

tandem_client_description describe(const Client& client) {
  const SplitSettings& s = client.settings();
  tandem_client_description d{};
  d.model_fingerprint = s.model_fingerprint;
  d.hidden_size = s.hidden_size;
  d.num_layers = s.num_layers;
  d.num_draft_layers = s.num_draft_layers;
  d.vocab_size = s.vocab_size;
  d.num_experts = s.num_experts;
  d.top_k = s.top_k;
  d.moe_intermediate_size = s.moe_intermediate_size;
  d.shared_intermediate_size = s.shared_intermediate_size;
  d.moe_layers = s.moe_layers.data();
  d.num_moe_layers = s.moe_layers.size();
  d.payload = payload_of(s.traits());
  d.adds_shared_experts = s.shared_experts_on_ffn() ? 1 : 0;
  d.deterministic = s.sum_mode == SumMode::deterministic ? 1 : 0;
  d.input_dtype = static_cast<int32_t>(s.activation_dtype);
  d.scale_dtype = static_cast<int32_t>(scale_dtype(s.activation_format));
  d.scales_per_row = scale_cols(s.activation_format, s.hidden_size);
  const uint8_t log2_block = log2_scale_block(s.activation_format);
  d.scale_block = d.scales_per_row == 0 ? 0 : log2_block == 0 ? s.hidden_size : 1u << log2_block;
  d.output_dtype = static_cast<int32_t>(s.reply_dtype);
  d.num_ranks = s.num_ffn_ranks;
  d.connector = s.connector.c_str();
  d.weights = s.weights.c_str();
  d.row_format = row_format_of(s.activation_format, s.activation_dtype);
  return d;
}

// The routing of a request in the pool's own form; what does not belong to it is refused.
Result<RoutingRef> routing_of(const tandem_client_request& request, const SplitSettings& settings) {
  const size_t rows = request.rows;
  const FfnTraits traits = settings.traits();
  if (traits.routes && (request.expert_ids != nullptr || request.expert_weights != nullptr)) {
    return invalid("expert_ids: the gate of this pool is on FFN, give none (description.payload)");
  }
  if (rows == 0) return RoutingRef{NoRouting{}};
  if (!traits.routes) {
    if (request.expert_ids == nullptr || request.expert_weights == nullptr) {
      return invalid(
          fmt::format("expert_ids and expert_weights are both needed, [rows, {}]: the gate of this pool "
                      "is on attention",
                      settings.top_k));
    }
    const size_t slots = rows * settings.top_k;
    return RoutingRef{
        RoutingView{{request.expert_ids, slots}, {request.expert_weights, slots}, settings.top_k}};
  }
  if (!traits.wants_token_ids) return RoutingRef{NoRouting{}};
  if (request.token_ids == nullptr)
    return invalid("token_ids are needed, [rows]: this pool routes by them too");
  return RoutingRef{TokenIds{{request.token_ids, rows}}};
}

Result<ClientRequest> request_of(const tandem_client_request& request, const SplitSettings& settings) {
  ClientRequest made;
  FfnRequest& ffn = made.ffn;
  if (request.layer > UINT16_MAX || request.lane > UINT16_MAX) {
    return make_error(ErrorCode::out_of_range,
                      fmt::format("layer {}, lane {}: both are below 65536", request.layer, request.lane));
  }
  if (request.row_class < TANDEM_CLIENT_DECODE || request.row_class > TANDEM_CLIENT_PREFILL) {
    return invalid(fmt::format("row_class {}: decode 0, draft 1 or prefill 2 would do", request.row_class));
  }
  if (request.rows > 0 && (request.input == nullptr || request.output == nullptr)) {
    return invalid("input and output are both needed, [rows, hidden_size]");
  }
  ffn.layer = static_cast<LayerIndex>(request.layer);
  ffn.lane = static_cast<LaneId>(request.lane);
  ffn.step = request.step;
  ffn.row_class = static_cast<RowClass>(request.row_class);
  ffn.rows = ffn.capacity = request.rows;
  TANDEM_ASSIGN(ffn.routing, routing_of(request, settings));
  if (request.timeout_ms != 0) ffn.deadline = now() + std::chrono::milliseconds(request.timeout_ms);

  const size_t stride = request.input_stride != 0 ? request.input_stride : settings.hidden_size;
  ffn.in = {.dtype = settings.activation_dtype,
            .data = request.input,
            .row_stride = stride,
            .format = settings.activation_format,
            .scales = request.scales,
            .scale_stride = scale_cols(settings.activation_format, settings.hidden_size)};
  const bool own = request.input_dtype == TANDEM_CLIENT_DTYPE_DEFAULT ||
                   request.input_dtype == static_cast<int32_t>(settings.activation_dtype);
  if (!own && !is_plain_dtype(request.input_dtype)) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("input_dtype {}: this pool takes {}, or f32 and bf16, which are converted",
                                  dtype_text(request.input_dtype), dtype_name(settings.activation_dtype)));
  }
  if (!own && stride < settings.hidden_size) {
    return invalid(fmt::format("input_stride {}: rows have {} values", stride, settings.hidden_size));
  }
  if (!own && request.scales != nullptr) {
    return invalid(fmt::format("scales beside rows of {}: the library makes them, give NULL",
                               dtype_text(request.input_dtype)));
  }
  if (!own && request.rows > 0) {
    made.input = {
        .dtype = static_cast<DType>(request.input_dtype), .data = request.input, .row_stride = stride};
  }

  const DType reply = settings.reply_dtype;
  const bool as_is = request.output_dtype == TANDEM_CLIENT_DTYPE_DEFAULT ||
                     request.output_dtype == static_cast<int32_t>(reply);
  if (!as_is && request.output_dtype != TANDEM_CLIENT_F32) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("output_dtype {}: this pool gives {}, or f32, which is converted",
                                  dtype_text(request.output_dtype), dtype_name(reply)));
  }
  const size_t values = size_t{request.rows} * settings.hidden_size;
  if (as_is) {
    ffn.out = {static_cast<std::byte*>(request.output), dtype_bytes(reply, values), MemorySpace::host};
  } else if (request.rows > 0) {
    made.output = static_cast<float*>(request.output);
  }
  return made;
}

Status wait_until(tandem_client* client, tandem_client_handle handle, Instant until,
                  tandem_client_times* times) {
  if (client == nullptr) return invalid("client is NULL");
  if (times != nullptr) {  // before the handle is spent
    TANDEM_TRY(read_struct(times, "times"));
  }
  TANDEM_ASSIGN(const FfnTimes took, client->client->wait(handle, until));
  if (times == nullptr) return {};
  return write_struct({0, took.queue_us, took.compute_us, took.exchange_us, took.residence_us}, times,
                      "times");
}

}  // namespace
}  // namespace tandem

tandem_client_status tandem_client_connect(const char* const* addresses, size_t num_addresses,
                                           const tandem_client_options* options, tandem_client** client) {
  return tandem::guarded([&] { return tandem::connect_ranks(addresses, num_addresses, options, client); });
}

void tandem_client_close(tandem_client* client) {
  delete client;
}

tandem_client_status tandem_client_describe(const tandem_client* client,
                                            tandem_client_description* description) {
  return tandem::guarded([&]() -> tandem::Status {
    if (client == nullptr) return tandem::invalid("client is NULL");
    return tandem::write_struct(tandem::describe(*client->client), description, "description");
  });
}

tandem_client_status tandem_client_rank_status(const tandem_client* client, uint32_t rank,
                                               tandem_client_rank* status) {
  return tandem::guarded([&]() -> tandem::Status {
    if (client == nullptr) return tandem::invalid("client is NULL");
    auto state = client->client->rank_state(rank);
    if (!state) return std::unexpected(state.error());
    tandem_client_rank known{};
    known.rank = state->rank;
    known.up = state->up ? 1 : 0;
    known.session = state->session;
    known.num_pieces = state->num_pieces;
    tandem::copy_text(state->transport, known.transport);
    tandem::copy_text(state->address, known.address);
    tandem::copy_text(state->name, known.name);
    tandem::copy_text(state->reason, known.reason);
    return tandem::write_struct(known, status, "status");
  });
}

tandem_client_status tandem_client_submit(tandem_client* client, const tandem_client_request* request,
                                          tandem_client_handle* handle) {
  return tandem::guarded([&]() -> tandem::Status {
    if (client == nullptr) return tandem::invalid("client is NULL");
    if (handle == nullptr) return tandem::invalid("handle is NULL: where the request's handle is to be put");
    auto known = tandem::read_struct(request, "request");
    if (!known) return std::unexpected(known.error());
    auto made = tandem::request_of(*known, client->client->settings());
    if (!made) return std::unexpected(made.error());
    auto submitted = client->client->submit(*made);
    if (!submitted) return std::unexpected(submitted.error());
    *handle = *submitted;
    return {};
  });
}

tandem_client_status tandem_client_wait(tandem_client* client, tandem_client_handle handle,
                                        int32_t timeout_ms, tandem_client_times* times) {
  return tandem::guarded([&] {
    const auto until =
        timeout_ms < 0 ? tandem::Instant::max() : tandem::now() + std::chrono::milliseconds(timeout_ms);
    return tandem::wait_until(client, handle, until, times);
  });
}

tandem_client_status tandem_client_poll(tandem_client* client, tandem_client_handle handle,
                                        tandem_client_times* times) {
  return tandem::guarded([&] { return tandem::wait_until(client, handle, tandem::Instant::min(), times); });
}

tandem_client_status tandem_client_cancel(tandem_client* client, tandem_client_handle handle) {
  return tandem::guarded([&]() -> tandem::Status {
    if (client == nullptr) return tandem::invalid("client is NULL");
    return client->client->cancel(handle);
  });
}

tandem_client_status tandem_client_quantize_rows(int32_t format, int32_t input_dtype, const void* input,
                                                 size_t input_stride, uint32_t rows, uint32_t cols,
                                                 void* values, void* scales) {
  return tandem::guarded([&] {
    return tandem::quantize_rows(format, input_dtype, input, input_stride, rows, cols, values, scales);
  });
}

const char* tandem_client_last_error(void) {
  return tandem::last_error.c_str();
}

const char* tandem_client_status_name(tandem_client_status status) {
  switch (status) {
    case TANDEM_CLIENT_OK:
      return "OK";
    case TANDEM_CLIENT_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case TANDEM_CLIENT_OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case TANDEM_CLIENT_UNSUPPORTED:
      return "UNSUPPORTED";
    case TANDEM_CLIENT_RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case TANDEM_CLIENT_UNAVAILABLE:
      return "UNAVAILABLE";
    case TANDEM_CLIENT_DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case TANDEM_CLIENT_CANCELLED:
      return "CANCELLED";
    case TANDEM_CLIENT_DATA_LOSS:
      return "DATA_LOSS";
    case TANDEM_CLIENT_INTERNAL:
      return "INTERNAL";
    case TANDEM_CLIENT_WOULD_BLOCK:
      return "WOULD_BLOCK";
  }
  return "unknown";
}

const char* tandem_client_version(void) {
  return TANDEM_CLIENT_TEXT(TANDEM_CLIENT_VERSION_MAJOR) "." TANDEM_CLIENT_TEXT(TANDEM_CLIENT_VERSION_MINOR);
}
