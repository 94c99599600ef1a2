// FrameLayout computes every offset of a frame; `parse_frame` is its inverse. No other file does offset
// arithmetic. Payloads follow the descriptor table in the order of the descriptors, each on the next multiple
// of 64, and the frame ends with the last byte of the last payload. There is one valid layout for a list of
// payloads, so a parser can refuse gaps, overlaps and tails by comparing. Values; any thread; nothing here
// allocates.
#pragma once

#include <array>
#include <span>

#include "afd/frame.h"
#include "base/result.h"

namespace tandem {

// One payload as the sender describes it; rows lie without gaps.
struct PayloadShape {
  PayloadRole role = PayloadRole::activation;
  DType dtype = DType::none;
  uint32_t rows = 0, cols = 0;
  uint8_t log2_block = 0;
};

class FrameLayout {
 public:
  // Checks the payload list against the rules of `kind` (see frame_rules.h) and the limits, and places the
  // payloads. `header` gives kind, rows, capacity, tile, tiles; the layout's own fields in it are ignored.
  static Result<FrameLayout> create(const FrameHeader& header, std::span<const PayloadShape> payloads);

  size_t total_bytes() const { return header_.total_bytes; }
  std::span<const Descriptor> descriptors() const { return {descriptors_.data(), header_.descriptors}; }

  // Writes header and descriptors, and zeroes the padding between payloads (a slot may hold an older frame).
  // `frame` holds at least total_bytes().
  void encode(std::span<std::byte> frame) const;
  // Where the payload of a role goes; empty when the layout has none.
  std::span<std::byte> payload(std::span<std::byte> frame, PayloadRole role) const;

 private:
  FrameHeader header_;
  std::array<Descriptor, kMaxDescriptors> descriptors_;
};

// A checked frame; `bytes` is the received message, which must outlive the view.
struct FrameView {
  FrameHeader header;
  std::array<Descriptor, kMaxDescriptors> table;
  std::span<const std::byte> bytes;

  std::span<const Descriptor> descriptors() const { return {table.data(), header.descriptors}; }
  const Descriptor* find(PayloadRole role) const;
  // Empty bytes when there is no such payload.
  std::span<const std::byte> payload(PayloadRole role) const;
};

// Accepts exactly what FrameLayout can make (optional descriptors of a later minor version included) and
// nothing else. Errors are data_loss (not a frame, cut, damaged) or invalid_argument / unsupported (a frame
// that breaks a rule); they name the field, its value and what was expected. Values of payloads are checked
// by request_rules.h, not here.
Result<FrameView> parse_frame(std::span<const std::byte> message);

}  // namespace tandem
