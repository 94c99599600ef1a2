// RawFrame: a frame of docs/protocol.md as its writer wants it, right or wrong. FrameLayout refuses what
// breaks a rule; here nothing is refused, for ranks are tested with what they must refuse. Values; any
// thread.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "afd/frame.h"

namespace tandem::conformance {

using Bytes = std::vector<std::byte>;

struct RawPayload {
  PayloadRole role = PayloadRole::activation;
  DType dtype = DType::none;
  uint32_t rows = 0, cols = 0;
  Bytes data = {};  // rows of row_stride bytes
  uint8_t log2_block = 0;
  uint32_t row_stride = 0;  // 0: rows without gaps
  uint32_t flags = kMustUnderstand;
};

struct RawFrame {
  FrameHeader header;
  std::vector<RawPayload> payloads = {};
  // Changes what was laid out, before the checksum is taken.
  std::function<void(FrameHeader&, std::vector<Descriptor>&)> lie = {};

  RawPayload* find(PayloadRole role);
  void drop(PayloadRole role);
  Bytes encode() const;
};

// Takes the checksum anew, after somebody changed header or descriptors.
void seal(Bytes& frame);

RawPayload text_payload(PayloadRole role, std::string_view text);

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

}  // namespace tandem::conformance
