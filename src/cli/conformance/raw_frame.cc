#include "cli/conformance/raw_frame.h"

#include <algorithm>

namespace tandem::conformance {
namespace {

size_t align(size_t offset) {
  return (offset + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
}

size_t table_end(size_t descriptors) {
  return kHeaderBytes + kDescriptorBytes * descriptors;
}

}  // namespace

RawPayload* RawFrame::find(PayloadRole role) {
  for (RawPayload& payload : payloads) {
    if (payload.role == role) return &payload;
  }
  return nullptr;
}

void RawFrame::drop(PayloadRole role) {
  std::erase_if(payloads, [role](const RawPayload& payload) { return payload.role == role; });
}

Bytes RawFrame::encode() const {
  std::vector<Descriptor> table;
  size_t end = table_end(payloads.size());
  for (const RawPayload& payload : payloads) {
    const size_t offset = align(end);
    const size_t row =
        payload.row_stride != 0 ? payload.row_stride : dtype_bytes(payload.dtype, payload.cols);
    table.push_back({.role = payload.role,
                     .dtype = payload.dtype,
                     .log2_block = payload.log2_block,
                     .rows = payload.rows,
                     .cols = payload.cols,
                     .row_stride = static_cast<uint32_t>(row),
                     .offset = static_cast<uint32_t>(offset),
                     .bytes = static_cast<uint32_t>(payload.data.size()),
                     .flags = payload.flags});
    end = offset + payload.data.size();
  }
  Bytes frame(end);
  for (size_t i = 0; i < table.size(); ++i)
    std::ranges::copy(payloads[i].data, frame.begin() + static_cast<std::ptrdiff_t>(table[i].offset));
  FrameHeader said = header;
  said.total_bytes = static_cast<uint32_t>(end);
  said.descriptors = static_cast<uint8_t>(payloads.size());
  if (lie) lie(said, table);
  encode_header(said, std::span(frame).first<kHeaderBytes>());
  for (size_t i = 0; i < table.size(); ++i)
    encode_descriptor(table[i], std::span(frame).subspan(table_end(i)).first<kDescriptorBytes>());
  seal(frame);
  return frame;
}

void seal(Bytes& frame) {
  const auto head = std::span(frame).first<kHeaderBytes>();
  FrameHeader header = decode_header(head);
  const size_t counted = std::min(table_end(header.descriptors), frame.size());
  header.header_crc = header_checksum(std::span(frame).first(counted));
  const Bytes magic(frame.begin(), frame.begin() + 4);
  encode_header(header, head);
  std::ranges::copy(magic, frame.begin());  // encode_header writes the right one
}

RawPayload text_payload(PayloadRole role, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {.role = role,
          .dtype = DType::u8,
          .rows = 1,
          .cols = static_cast<uint32_t>(text.size()),
          .data = Bytes(bytes.begin(), bytes.end())};
}

}  // namespace tandem::conformance
