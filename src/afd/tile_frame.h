// One tile as a frame: requests (A2E) and replies (E2A), written at one side and read at the other. The
// checks of values
// (`check_routing_values`) are the same function at sender and receiver. No allocation but for error texts;
// any thread.
#pragma once

#include <span>
#include <string>

#include "afd/frame_layout.h"
#include "afd/split_settings.h"
#include "moe/ffn_port.h"

namespace tandem {

// How a request, or a tile of it, is one rank's part of a larger one.
struct RequestPart {
  std::span<const uint32_t> row_index = {};  // [rows]: which rows of the activation; empty: the first ones
  uint16_t flags = 0;                        // kFramePartial, kFrameByMap
  uint32_t map_epoch = 0;                    // of the map that made the part
  std::span<const uint8_t> shared_rows =
      {};  // [rows]: where the receiver adds shared experts; empty: nowhere

  bool is_partial() const { return (flags & kFramePartial) != 0; }
  bool by_map() const { return (flags & kFrameByMap) != 0; }
};

// Names the first row and value that is wrong: a payload that does not fit the settings, an expert or token
// id out of range, a weight that is not finite, a row whose weights are all 0 (in a part: and that wants no
// shared experts either), a wrong shared_rows.
Status check_routing_values(const RoutingRef& routing, uint32_t rows, const SplitSettings& settings,
                            const RequestPart& part = {});

// A request as the FfnPort takes it, before it is sent: layer, rows, dtypes, sizes, routing.
Status check_request(const FfnRequest& request, const SplitSettings& settings, const RequestPart& part = {});

// The part of a routing that belongs to rows [begin, begin + rows).
RoutingRef slice_routing(const RoutingRef& routing, uint32_t begin, uint32_t rows);

// A tile of at most 64 rows, without its bytes' owner.
struct TileView {
  FrameHeader header;  // kind, session, incarnation, step, layer, lane, tile, tiles, rows, capacity, attempt,
                       // row_class
  ActivationView in;   // [rows, hidden]
  RoutingRef routing;  // of these rows
  RequestPart part = {};  // its flags and epoch are the header's; row_index only when sending
};

// Layout of a request (or canary) with `header.rows` rows; `shared_rows`: with that payload.
Result<FrameLayout> request_layout(const FrameHeader& header, const SplitSettings& settings,
                                   bool shared_rows = false);
// Writes the tile as `layout` says; `frame` has at least layout.total_bytes(). Values were checked by the
// caller.
void write_request(const TileView& tile, const FrameLayout& layout, const SplitSettings& settings,
                   std::span<std::byte> frame);
// The inverse; refuses a layer without experts, another dtype, width or payload kind than agreed, and wrong
// values. The view points into the frame's bytes.
Result<TileView> read_request(const FrameView& frame, const SplitSettings& settings);

// A reply repeats the request's header with kind ffn_reply.
Result<FrameLayout> reply_layout(const FrameHeader& request, const SplitSettings& settings);
// Writes everything but the output, and returns where that goes: [rows, hidden] of the reply dtype.
std::span<std::byte> write_reply(const FrameLayout& layout, const FfnTimes& times,
                                 std::span<std::byte> frame);
// Layout and frame of a reply that carries an error instead.
Result<FrameLayout> error_reply_layout(const FrameHeader& request, const Error& error);
void write_error_reply(const FrameLayout& layout, const FfnTimes& times, const Error& error,
                       std::span<std::byte> frame);

struct ReplyView {
  FrameHeader header;
  Status status;
  FfnTimes times;
  std::span<const std::byte> output;  // [rows, hidden] of the reply dtype; empty with an error
};
// Of another kind of frame: invalid_argument.
Result<ReplyView> read_reply(const FrameView& frame, const SplitSettings& settings);

// Errors on the wire. `would_block` never travels.
WireError to_wire(ErrorCode code);
ErrorCode from_wire(uint32_t code);
// At most kMaxErrorTextBytes, one line, control characters replaced: it goes into somebody's log.
std::string clean_error_text(std::string_view text);
// "invalid_argument", text of a frame's error_code and error_text payloads; both are present (frame rules).
Error read_error(const FrameView& frame);

}  // namespace tandem
