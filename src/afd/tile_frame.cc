#include "afd/tile_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "moe/router.h"

namespace tandem {
namespace {

constexpr uint32_t kMaxRequestRows = uint32_t{UINT16_MAX} * kMaxTileRows;  // tiles are numbered in 16 bits

std::unexpected<Error> invalid(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

std::string_view routing_name(const RoutingRef& routing) {
  constexpr std::array<std::string_view, 3> kNames = {"no routing", "token ids", "expert ids and weights"};
  return kNames[routing.index()];
}

// A part was routed by whoever dispatched.
size_t expected_kind(const SplitSettings& settings, bool partial) {
  if (partial) return 2;
  return settings.gate_on_attention ? 2 : settings.token_ids ? 1 : 0;
}

Status check_token_ids(const TokenIds& tokens, uint32_t rows, const SplitSettings& settings) {
  if (tokens.ids.size() != rows)
    return invalid(fmt::format("{} token ids for {} rows", tokens.ids.size(), rows));
  for (uint32_t row = 0; row < rows; ++row) {
    if (tokens.ids[row] < 0 || static_cast<uint32_t>(tokens.ids[row]) >= settings.vocab_size) {
      return make_error(ErrorCode::out_of_range, fmt::format("row {}: token id {} outside a vocabulary of {}",
                                                             row, tokens.ids[row], settings.vocab_size));
    }
  }
  return {};
}

Status check_shared_rows(const RoutingView& routing, uint32_t rows, const SplitSettings& settings,
                         std::span<const uint8_t> shared_rows) {
  if (!shared_rows.empty() && !settings.shared_experts_on_ffn()) {
    return invalid("shared_rows, and FFN ranks add no shared experts in the placement agreed on");
  }
  if (!shared_rows.empty() && shared_rows.size() != rows)
    return invalid(fmt::format("shared_rows of {} for {} rows", shared_rows.size(), rows));
  for (uint32_t row = 0; row < rows; ++row) {
    const uint8_t shared = shared_rows.empty() ? 0 : shared_rows[row];
    if (shared > 1) return invalid(fmt::format("row {}: shared_rows is {}, 0 or 1 would do", row, shared));
    const auto weights = routing.weights.subspan(size_t{row} * routing.top_k, routing.top_k);
    if (shared == 0 && std::ranges::all_of(weights, [](float weight) { return weight == 0.0f; })) {
      return invalid(
          fmt::format("row {}: all weights are 0 and no shared experts are wanted: a row without work", row));
    }
  }
  return {};
}

Status check_routing(const RoutingView& routing, uint32_t rows, const SplitSettings& settings,
                     const RequestPart& part) {
  if (routing.top_k != settings.top_k) {
    return invalid(fmt::format("routing with top_k {}, the model has {}", routing.top_k, settings.top_k));
  }
  const size_t count = size_t{rows} * routing.top_k;
  if (routing.ids.size() != count || routing.weights.size() != count) {
    return invalid(fmt::format("{} expert ids and {} weights for {} rows of top_k {}", routing.ids.size(),
                               routing.weights.size(), rows, routing.top_k));
  }
  const bool own_slots_only = part.is_partial() && !part.by_map();
  TANDEM_TRY(validate_routing(settings.num_experts, routing.top_k, routing.ids, routing.weights,
                              own_slots_only ? EmptyRows::allowed : EmptyRows::refused));
  return own_slots_only ? check_shared_rows(routing, rows, settings, part.shared_rows) : Status{};
}

template <class T>
std::span<const T> typed(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T>
void copy_into(std::span<std::byte> to, std::span<const T> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size_bytes());
}

// Rows of a known role lie without gaps in frames of ours; others may pad them, but ids must not be strided.
Status check_contiguous(const FrameView& frame, PayloadRole role) {
  const Descriptor* d = frame.find(role);
  if (d == nullptr || d->row_stride == dtype_bytes(d->dtype, d->cols)) return {};
  return invalid(
      fmt::format("{}: row stride {}, expected rows without gaps", payload_role_name(role), d->row_stride));
}

// The rows and, in a quantised format, their scales as they lie in the frame. The frame rules hold already:
// an e4m3 or int8 activation has scales that fit its rows.
Result<ActivationView> activation_of(const FrameView& frame, const Descriptor& activation,
                                     const SplitSettings& settings) {
  ActivationView view{.dtype = activation.dtype,
                      .data = frame.payload(PayloadRole::activation).data(),
                      .row_stride = activation.row_stride / dtype_bytes(activation.dtype, 1),
                      .format = settings.activation_format};
  const Descriptor* scale = frame.find(PayloadRole::activation_scale);
  if (scale == nullptr) return view;
  if (scale->dtype != scale_dtype(view.format)) {  // fp8 and mxfp8 have the same values
    return make_error(
        ErrorCode::unsupported,
        fmt::format("{} activation with {} scales, the session agreed on {}", dtype_name(activation.dtype),
                    dtype_name(scale->dtype), activation_format_name(view.format)));
  }
  view.scales = frame.payload(PayloadRole::activation_scale).data();
  view.scale_stride = scale->row_stride / dtype_bytes(scale->dtype, 1);
  return view;
}

void write_times(const FrameLayout& layout, const FfnTimes& times, std::span<std::byte> frame) {
  const std::array<uint32_t, 4> values = {times.queue_us, times.compute_us, times.exchange_us,
                                          times.residence_us};
  copy_into<uint32_t>(layout.payload(frame, PayloadRole::reply_times), values);
}

}  // namespace

Status check_routing_values(const RoutingRef& routing, uint32_t rows, const SplitSettings& settings,
                            const RequestPart& part) {
  constexpr std::array<std::string_view, 3> kWanted = {"no routing", "token ids", "expert ids and weights"};
  const size_t wanted = expected_kind(settings, part.is_partial());
  if (routing.index() != wanted) {
    return invalid(fmt::format("the request carries {}, the placement agreed on asks for {}",
                               routing_name(routing), kWanted[wanted]));
  }
  if (const auto* tokens = std::get_if<TokenIds>(&routing)) return check_token_ids(*tokens, rows, settings);
  if (const auto* view = std::get_if<RoutingView>(&routing))
    return check_routing(*view, rows, settings, part);
  return {};
}

Status check_request(const FfnRequest& request, const SplitSettings& settings, const RequestPart& part) {
  if (!settings.is_moe_layer(request.layer))
    return invalid(fmt::format("layer {} has no experts", request.layer));
  if (request.rows > request.capacity || request.rows > kMaxRequestRows) {
    return invalid(
        fmt::format("{} rows with capacity {}, at most {}", request.rows, request.capacity, kMaxRequestRows));
  }
  if (request.program != 0 && (!settings.is_captured(request.program) || request.rows > request.program)) {
    return invalid(fmt::format("program {} for {} rows: not one of the capture sizes, or too small",
                               request.program, request.rows));
  }
  if (request.rows == 0) return {};
  TANDEM_TRY(
      check_activation(request.in, settings.activation_format, settings.compute_dtype, settings.hidden_size));
  if (request.out.space == MemorySpace::device || !request.ready.is_set) {
    return make_error(ErrorCode::unsupported,
                      "a device buffer or event: this connector sends from host memory");
  }
  if (request.out.bytes < dtype_bytes(settings.reply_dtype, size_t{request.rows} * settings.hidden_size)) {
    return invalid(fmt::format("{} bytes for a reply of {} rows", request.out.bytes, request.rows));
  }
  return check_routing_values(request.routing, request.rows, settings, part);
}

RoutingRef slice_routing(const RoutingRef& routing, uint32_t begin, uint32_t rows) {
  if (const auto* tokens = std::get_if<TokenIds>(&routing)) return TokenIds{tokens->ids.subspan(begin, rows)};
  if (const auto* view = std::get_if<RoutingView>(&routing)) {
    const size_t first = size_t{begin} * view->top_k;
    const size_t count = size_t{rows} * view->top_k;
    return RoutingView{view->ids.subspan(first, count), view->weights.subspan(first, count), view->top_k};
  }
  return NoRouting{};
}

Result<FrameLayout> request_layout(const FrameHeader& header, const SplitSettings& settings,
                                   bool shared_rows) {
  std::array<PayloadShape, 5> shapes;
  size_t count = 0;
  shapes[count++] = {PayloadRole::activation, settings.activation_dtype, header.rows, settings.hidden_size};
  if (const ActivationFormat format = settings.activation_format; is_quantized(format)) {
    shapes[count++] = {PayloadRole::activation_scale, scale_dtype(format), header.rows,
                       scale_cols(format, settings.hidden_size), log2_scale_block(format)};
  }
  if (settings.gate_on_attention || (header.flags & kFramePartial) != 0) {
    shapes[count++] = {PayloadRole::expert_ids, DType::i32, header.rows, settings.top_k};
    shapes[count++] = {PayloadRole::expert_weights, DType::f32, header.rows, settings.top_k};
  } else if (settings.token_ids) {
    shapes[count++] = {PayloadRole::token_ids, DType::i32, header.rows, 1};
  }
  if (shared_rows) shapes[count++] = {PayloadRole::shared_rows, DType::u8, header.rows, 1};
  return FrameLayout::create(header, std::span(shapes).first(count));
}

void write_request(const TileView& tile, const FrameLayout& layout, const SplitSettings& settings,
                   std::span<std::byte> frame) {
  layout.encode(frame);
  gather_rows(tile.in, tile.part.row_index, tile.header.rows, settings.hidden_size,
              layout.payload(frame, PayloadRole::activation).data(),
              layout.payload(frame, PayloadRole::activation_scale).data());
  if (const auto* tokens = std::get_if<TokenIds>(&tile.routing)) {
    copy_into(layout.payload(frame, PayloadRole::token_ids), tokens->ids);
  } else if (const auto* routing = std::get_if<RoutingView>(&tile.routing)) {
    copy_into(layout.payload(frame, PayloadRole::expert_ids), routing->ids);
    copy_into(layout.payload(frame, PayloadRole::expert_weights), routing->weights);
  }
  copy_into(layout.payload(frame, PayloadRole::shared_rows), tile.part.shared_rows);
}

Result<TileView> read_request(const FrameView& frame, const SplitSettings& settings) {
  const FrameHeader& header = frame.header;
  if (!settings.is_moe_layer(header.layer)) {
    return make_error(ErrorCode::out_of_range, fmt::format("layer {} has no experts", header.layer));
  }
  if (header.program != 0 && !settings.graph) {
    return make_error(
        ErrorCode::unsupported,
        fmt::format("program {}: the session agreed on execution eager, program 0", header.program));
  }
  if (header.program != 0 && header.rows > header.program) {
    return invalid(
        fmt::format("program {} has room for as many rows, the tile has {}", header.program, header.rows));
  }
  const Descriptor* activation = frame.find(PayloadRole::activation);
  if (activation == nullptr) return invalid("the request carries no activation");
  if (activation->dtype != settings.activation_dtype) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("activation of {}, the session agreed on {}", dtype_name(activation->dtype),
                                  dtype_name(settings.activation_dtype)));
  }
  if (activation->cols != settings.hidden_size) {
    return invalid(
        fmt::format("activation of {} columns, hidden_size is {}", activation->cols, settings.hidden_size));
  }
  TANDEM_TRY(check_contiguous(frame, PayloadRole::token_ids));
  TANDEM_TRY(check_contiguous(frame, PayloadRole::expert_ids));
  TANDEM_TRY(check_contiguous(frame, PayloadRole::expert_weights));
  TANDEM_TRY(check_contiguous(frame, PayloadRole::shared_rows));
  TANDEM_ASSIGN(const ActivationView in, activation_of(frame, *activation, settings));
  TileView tile{.header = header,
                .in = in,
                .routing = NoRouting{},
                .part = {.flags = header.flags,
                         .map_epoch = header.map_epoch,
                         .shared_rows = typed<uint8_t>(frame.payload(PayloadRole::shared_rows))}};
  if (frame.find(PayloadRole::token_ids) != nullptr) {
    tile.routing = TokenIds{typed<int32_t>(frame.payload(PayloadRole::token_ids))};
  } else if (const Descriptor* ids = frame.find(PayloadRole::expert_ids); ids != nullptr) {
    tile.routing = RoutingView{typed<int32_t>(frame.payload(PayloadRole::expert_ids)),
                               typed<float>(frame.payload(PayloadRole::expert_weights)), ids->cols};
  }
  TANDEM_TRY(check_routing_values(tile.routing, header.rows, settings, tile.part));
  return tile;
}

Result<FrameLayout> reply_layout(const FrameHeader& request, const SplitSettings& settings) {
  FrameHeader header = request;
  header.kind = FrameKind::ffn_reply;
  const std::array<PayloadShape, 2> shapes = {
      PayloadShape{PayloadRole::output, settings.reply_dtype, header.rows, settings.hidden_size},
      PayloadShape{PayloadRole::reply_times, DType::u32, 1, 4}};
  return FrameLayout::create(header, shapes);
}

std::span<std::byte> write_reply(const FrameLayout& layout, const FfnTimes& times,
                                 std::span<std::byte> frame) {
  layout.encode(frame);
  write_times(layout, times, frame);
  return layout.payload(frame, PayloadRole::output);
}

Result<FrameLayout> error_reply_layout(const FrameHeader& request, const Error& error) {
  FrameHeader header = request;
  header.kind = FrameKind::ffn_reply;
  const std::array<PayloadShape, 3> shapes = {
      PayloadShape{PayloadRole::reply_times, DType::u32, 1, 4},
      PayloadShape{PayloadRole::error_code, DType::u32, 1, 1},
      PayloadShape{PayloadRole::error_text, DType::u8, 1,
                   static_cast<uint32_t>(clean_error_text(error.message).size())}};
  return FrameLayout::create(header, shapes);
}

void write_error_reply(const FrameLayout& layout, const FfnTimes& times, const Error& error,
                       std::span<std::byte> frame) {
  layout.encode(frame);
  write_times(layout, times, frame);
  const auto code = static_cast<uint32_t>(to_wire(error.code));
  copy_into<uint32_t>(layout.payload(frame, PayloadRole::error_code), std::span(&code, 1));
  const std::string text = clean_error_text(error.message);
  copy_into<char>(layout.payload(frame, PayloadRole::error_text), text);
}

Result<ReplyView> read_reply(const FrameView& frame, const SplitSettings& settings) {
  ReplyView reply{.header = frame.header, .status = {}, .times = {}, .output = {}};
  // What a reply must have is parse_frame's rule for replies alone.
  if (frame.header.kind != FrameKind::ffn_reply)
    return invalid(fmt::format("{} is no reply", frame_kind_name(frame.header.kind)));
  const auto times = typed<uint32_t>(frame.payload(PayloadRole::reply_times));
  reply.times = FfnTimes{times[0], times[1], times[2], times[3]};
  const Descriptor* output = frame.find(PayloadRole::output);
  if (output == nullptr) {
    reply.status = std::unexpected(read_error(frame));
    return reply;
  }
  if (output->dtype != settings.reply_dtype || output->cols != settings.hidden_size) {
    return invalid(fmt::format("reply of {} x {}, agreed were {} x {}", dtype_name(output->dtype),
                               output->cols, dtype_name(settings.reply_dtype), settings.hidden_size));
  }
  TANDEM_TRY(check_contiguous(frame, PayloadRole::output));
  reply.output = frame.payload(PayloadRole::output);
  return reply;
}

WireError to_wire(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return WireError::invalid_argument;
    case ErrorCode::not_found:
    case ErrorCode::out_of_range:
      return WireError::out_of_range;
    case ErrorCode::unsupported:
      return WireError::unsupported;
    case ErrorCode::resource_exhausted:
      return WireError::resource_exhausted;
    case ErrorCode::would_block:
    case ErrorCode::unavailable:
      return WireError::unavailable;
    case ErrorCode::deadline_exceeded:
      return WireError::deadline_exceeded;
    case ErrorCode::cancelled:
      return WireError::cancelled;
    case ErrorCode::data_loss:
      return WireError::data_loss;
    case ErrorCode::internal:
      return WireError::internal;
  }
  return WireError::internal;
}

ErrorCode from_wire(uint32_t code) {
  switch (static_cast<WireError>(code)) {
    case WireError::invalid_argument:
      return ErrorCode::invalid_argument;
    case WireError::out_of_range:
      return ErrorCode::out_of_range;
    case WireError::unsupported:
      return ErrorCode::unsupported;
    case WireError::resource_exhausted:
      return ErrorCode::resource_exhausted;
    case WireError::unavailable:
      return ErrorCode::unavailable;
    case WireError::deadline_exceeded:
      return ErrorCode::deadline_exceeded;
    case WireError::cancelled:
      return ErrorCode::cancelled;
    case WireError::data_loss:
      return ErrorCode::data_loss;
    case WireError::internal:
      return ErrorCode::internal;
  }
  return ErrorCode::internal;  // a code of a later version: an error all the same
}

std::string clean_error_text(std::string_view text) {
  std::string clean(text.substr(0, kMaxErrorTextBytes));
  std::ranges::replace_if(
      clean, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return clean;
}

Error read_error(const FrameView& frame) {
  const auto code = typed<uint32_t>(frame.payload(PayloadRole::error_code));
  const auto text = typed<char>(frame.payload(PayloadRole::error_text));
  return Error{from_wire(code.empty() ? 0 : code[0]), clean_error_text({text.data(), text.size()})};
}

}  // namespace tandem
