#include "afd/frame_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "afd/frame_rules.h"

namespace tandem {
namespace {

constexpr uint8_t kLastDType = static_cast<uint8_t>(DType::f4_e2m1);

constexpr uint64_t align_payload(uint64_t offset) {
  return (offset + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
}

constexpr uint64_t table_end(size_t descriptors) {
  return kHeaderBytes + kDescriptorBytes * uint64_t{descriptors};
}

// Bytes of `cols` elements in 64 bits: cols is 32 bits wide, an element at most 64 bits.
uint64_t packed_row_bytes(DType dtype, uint32_t cols) {
  return (uint64_t{dtype_bits(dtype)} * cols + 7) / 8;
}

std::unexpected<Error> damaged(std::string what) {
  return make_error(ErrorCode::data_loss, "frame: " + std::move(what));
}

// What does not depend on the kind: the descriptor is a consistent rectangle at the place where the layout
// puts it.
Status check_place(const Descriptor& d, size_t index, uint64_t expected_offset, uint64_t total_bytes) {
  const auto name = [&] { return fmt::format("descriptor {} ({})", index, payload_role_name(d.role)); };
  if (static_cast<uint8_t>(d.dtype) > kLastDType || d.dtype == DType::none) {
    return damaged(fmt::format("{}: dtype {} is unknown", name(), static_cast<uint8_t>(d.dtype)));
  }
  if ((d.flags & ~kMustUnderstand) != 0) return damaged(fmt::format("{}: flags {:#x}", name(), d.flags));
  const uint64_t row_bytes = packed_row_bytes(d.dtype, d.cols);
  if (d.row_stride < row_bytes) {
    return damaged(
        fmt::format("{}: row stride {} is less than the {} bytes of a row", name(), d.row_stride, row_bytes));
  }
  if (d.row_stride % std::max<size_t>(dtype_bytes(d.dtype, 1), 1) != 0) {
    return damaged(fmt::format("{}: row stride {} is no multiple of an element", name(), d.row_stride));
  }
  if (uint64_t{d.rows} * d.row_stride != d.bytes) {
    return damaged(fmt::format("{}: {} bytes, {} rows of {} make {}", name(), d.bytes, d.rows, d.row_stride,
                               uint64_t{d.rows} * d.row_stride));
  }
  if (d.offset % kPayloadAlignment != 0) {
    return damaged(fmt::format("{}: offset {} is no multiple of {}", name(), d.offset, kPayloadAlignment));
  }
  if (d.offset < expected_offset) {
    return damaged(fmt::format("{}: offset {} overlaps what ends at {}", name(), d.offset, expected_offset));
  }
  if (d.offset > expected_offset) {
    return damaged(fmt::format("{}: offset {} leaves a gap, expected {}", name(), d.offset, expected_offset));
  }
  if (uint64_t{d.offset} + d.bytes > total_bytes) {
    return damaged(
        fmt::format("{}: ends at {}, the frame at {}", name(), uint64_t{d.offset} + d.bytes, total_bytes));
  }
  return {};
}

}  // namespace

Result<FrameLayout> FrameLayout::create(const FrameHeader& header, std::span<const PayloadShape> payloads) {
  if (payloads.size() > kMaxDescriptors) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("frame: {} payloads, at most {}", payloads.size(), kMaxDescriptors));
  }
  FrameLayout layout;
  layout.header_ = header;
  layout.header_.major = kProtocolMajor;
  layout.header_.minor = kProtocolMinor;
  layout.header_.header_bytes = kHeaderBytes;
  layout.header_.descriptors = static_cast<uint8_t>(payloads.size());
  uint64_t end = table_end(payloads.size());
  for (size_t i = 0; i < payloads.size(); ++i) {
    const PayloadShape& shape = payloads[i];
    const uint64_t row_bytes = packed_row_bytes(shape.dtype, shape.cols);
    const uint64_t offset = align_payload(end);
    // Each factor is below 2^35 and rows below 2^32, so compare before multiplying.
    if (row_bytes > kMaxFrameBytes || (row_bytes != 0 && shape.rows > kMaxFrameBytes / row_bytes) ||
        offset + row_bytes * shape.rows > kMaxFrameBytes) {
      return make_error(
          ErrorCode::out_of_range,
          fmt::format("frame: {} of {} x {} {} makes it larger than {} bytes", payload_role_name(shape.role),
                      shape.rows, shape.cols, dtype_name(shape.dtype), kMaxFrameBytes));
    }
    layout.descriptors_[i] = Descriptor{.role = shape.role,
                                        .dtype = shape.dtype,
                                        .log2_block = shape.log2_block,
                                        .rows = shape.rows,
                                        .cols = shape.cols,
                                        .row_stride = static_cast<uint32_t>(row_bytes),
                                        .offset = static_cast<uint32_t>(offset),
                                        .bytes = static_cast<uint32_t>(row_bytes * shape.rows),
                                        .flags = kMustUnderstand};
    end = offset + row_bytes * shape.rows;
  }
  layout.header_.total_bytes = static_cast<uint32_t>(end);
  TANDEM_TRY(check_frame_rules(layout.header_, layout.descriptors()));
  return layout;
}

void FrameLayout::encode(std::span<std::byte> frame) const {
  encode_header(header_, frame.first<kHeaderBytes>());
  for (size_t i = 0; i < header_.descriptors; ++i) {
    encode_descriptor(descriptors_[i], frame.subspan(table_end(i)).first<kDescriptorBytes>());
  }
  uint64_t end = table_end(header_.descriptors);
  for (const Descriptor& descriptor : descriptors()) {
    std::ranges::fill(frame.subspan(end, descriptor.offset - end), std::byte{0});
    end = uint64_t{descriptor.offset} + descriptor.bytes;
  }
  FrameHeader with_crc = header_;
  with_crc.header_crc = header_checksum(frame.first(table_end(header_.descriptors)));
  encode_header(with_crc, frame.first<kHeaderBytes>());
}

std::span<std::byte> FrameLayout::payload(std::span<std::byte> frame, PayloadRole role) const {
  for (const Descriptor& descriptor : descriptors()) {
    if (descriptor.role == role) return frame.subspan(descriptor.offset, descriptor.bytes);
  }
  return {};
}

const Descriptor* FrameView::find(PayloadRole role) const {
  for (const Descriptor& descriptor : descriptors()) {
    if (descriptor.role == role) return &descriptor;
  }
  return nullptr;
}

std::span<const std::byte> FrameView::payload(PayloadRole role) const {
  const Descriptor* descriptor = find(role);
  return descriptor == nullptr ? std::span<const std::byte>{}
                               : bytes.subspan(descriptor->offset, descriptor->bytes);
}

Result<FrameView> parse_frame(std::span<const std::byte> message) {
  if (message.size() < kHeaderBytes) {
    return damaged(fmt::format("{} bytes, a header alone has {}", message.size(), kHeaderBytes));
  }
  const auto header_bytes = message.first<kHeaderBytes>();
  if (decode_magic(header_bytes) != kFrameMagic) {
    return damaged(
        fmt::format("magic {:#010x}, expected {:#010x} (\"TAFD\"): the peer does not speak this protocol",
                    decode_magic(header_bytes), kFrameMagic));
  }
  FrameView view;
  view.header = decode_header(header_bytes);
  view.bytes = message;
  const FrameHeader& header = view.header;
  if (header.major != kProtocolMajor) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("frame: protocol {}.{} there, {}.{} here: run the same release",
                                  header.major, header.minor, kProtocolMajor, kProtocolMinor));
  }
  if (header.header_bytes != kHeaderBytes) {
    return damaged(fmt::format("header of {} bytes, expected {}", header.header_bytes, kHeaderBytes));
  }
  if (header.total_bytes != message.size()) {
    return damaged(fmt::format("says {} bytes, {} arrived", header.total_bytes, message.size()));
  }
  if (header.descriptors > kMaxDescriptors) {
    return damaged(fmt::format("{} descriptors, at most {}", header.descriptors, kMaxDescriptors));
  }
  if (table_end(header.descriptors) > message.size()) {
    return damaged(
        fmt::format("{} descriptors do not fit into {} bytes", header.descriptors, message.size()));
  }
  if (message.size() > kMaxFrameBytes) return damaged(fmt::format("more than {} bytes", kMaxFrameBytes));
  const uint32_t crc = header_checksum(message.first(table_end(header.descriptors)));
  if (crc != header.header_crc) {
    return damaged(fmt::format("header checksum {:#010x}, expected {:#010x}", header.header_crc, crc));
  }
  uint64_t end = table_end(header.descriptors);
  for (size_t i = 0; i < header.descriptors; ++i) {
    const auto raw = message.subspan(table_end(i)).first<kDescriptorBytes>();
    view.table[i] = decode_descriptor(raw);
    if (std::ranges::any_of(raw.subspan(28), [](std::byte byte) { return byte != std::byte{0}; })) {
      return damaged(fmt::format("descriptor {}: reserved bytes are not zero", i));
    }
    TANDEM_TRY(check_place(view.table[i], i, align_payload(end), message.size()));
    end = uint64_t{view.table[i].offset} + view.table[i].bytes;
  }
  if (end != message.size()) {
    return damaged(fmt::format("{} bytes after the last payload", message.size() - end));
  }
  TANDEM_TRY(check_frame_rules(header, view.descriptors()));
  return view;
}

}  // namespace tandem
