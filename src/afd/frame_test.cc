#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "afd/frame_layout.h"
#include "afd/frame_testing.h"

namespace tandem {
namespace {

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  std::string digits;
  for (const char c : text) {
    if (std::isxdigit(static_cast<unsigned char>(c)) != 0) digits += c;
    if (digits.size() == 2) {
      bytes.push_back(static_cast<std::byte>(std::stoi(digits, nullptr, 16)));
      digits.clear();
    }
  }
  return bytes;
}

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    char buffer[4];
    std::snprintf(buffer, sizeof buffer, "%02x", static_cast<unsigned>(bytes[i]));
    text += buffer;
    text += (i + 1) % 16 == 0 ? '\n' : ' ';
  }
  return text;
}

FrameHeader request_header(uint32_t rows) {
  FrameHeader header;
  header.kind = FrameKind::ffn_request;
  header.session = 0x0123456789abcdefull;
  header.incarnation = 0x11223344;
  header.step = 7;
  header.layer = 3;
  header.lane = 1;
  header.tile = 2;
  header.tiles = 5;
  header.map_epoch = 9;
  header.rows = rows;
  header.capacity = 8;
  header.attempt = 0x0a0b;
  header.row_class = 2;
  return header;
}

std::vector<std::byte> encode(const FrameLayout& layout) {
  std::vector<std::byte> frame(layout.total_bytes(), std::byte{0xcc});  // stale bytes of an earlier frame
  layout.encode(frame);
  for (const Descriptor& d : layout.descriptors()) std::memset(frame.data() + d.offset, 0, d.bytes);
  return frame;
}

// Changes bytes of a frame and repairs the checksum, so that the check behind it is reached.
std::vector<std::byte> patched(std::vector<std::byte> frame, size_t offset, uint64_t value, size_t width) {
  std::memcpy(frame.data() + offset, &value, width);
  repair_checksum(frame);
  return frame;
}

// The bytes that docs/protocol.md shows. They change only with the protocol version.
TEST(Frame, GoldenBytes) {
  const std::array<PayloadShape, 2> payloads = {PayloadShape{PayloadRole::activation, DType::bf16, 2, 3},
                                                PayloadShape{PayloadRole::token_ids, DType::i32, 2, 1}};
  const auto layout = FrameLayout::create(request_header(2), payloads);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  std::vector<std::byte> frame(layout->total_bytes(), std::byte{0xcc});
  layout->encode(frame);
  const uint16_t activation[] = {0x3f80, 0x4000, 0x4040, 0xbf80, 0xc000, 0xc040};  // 1 2 3, -1 -2 -3
  const int32_t tokens[] = {5, 511};
  std::memcpy(layout->payload(frame, PayloadRole::activation).data(), activation, sizeof activation);
  std::memcpy(layout->payload(frame, PayloadRole::token_ids).data(), tokens, sizeof tokens);
  const auto golden = from_hex(R"(
    54 41 46 44 01 00 40 00 10 00 00 00 c8 00 00 00
    ef cd ab 89 67 45 23 01 44 33 22 11 07 00 00 00
    03 00 01 00 02 00 05 00 09 00 00 00 02 00 00 00
    08 00 00 00 0b 0a 02 02 00 00 00 00 21 68 06 29
    01 00 02 00 02 00 00 00 03 00 00 00 06 00 00 00
    80 00 00 00 0c 00 00 00 01 00 00 00 00 00 00 00
    03 00 0c 00 02 00 00 00 01 00 00 00 04 00 00 00
    c0 00 00 00 08 00 00 00 01 00 00 00 00 00 00 00
    80 3f 00 40 40 40 80 bf 00 c0 40 c0 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    05 00 00 00 ff 01 00 00)");
  EXPECT_EQ(to_hex(frame), to_hex(golden));
}

TEST(Frame, ChecksumIsCrc32c) {
  const char* text = "123456789";  // the check value of CRC-32C
  EXPECT_EQ(crc32c(std::as_bytes(std::span(text, 9))), 0xe3069283u);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(text + 4, 5)), crc32c(std::as_bytes(std::span(text, 4)))),
            0xe3069283u);
}

// Every combination of payloads that a sender may choose comes back as it was, and lies where it must.
TEST(Frame, RoundTripOfEveryPayloadKind) {
  struct Case {
    FrameKind kind;
    std::vector<PayloadShape> payloads;
    uint16_t flags = 0;
  };
  for (uint32_t rows : {0u, 1u, 7u, 8u, 64u}) {
    for (uint32_t hidden : {1u, 31u, 128u, 200u, 7168u}) {
      const PayloadShape bf16{PayloadRole::activation, DType::bf16, rows, hidden};
      const PayloadShape f32{PayloadRole::activation, DType::f32, rows, hidden};
      const PayloadShape fp8{PayloadRole::activation, DType::f8_e4m3, rows, hidden};
      const PayloadShape int8{PayloadRole::activation, DType::i8, rows, hidden};
      const PayloadShape fp8_scale{PayloadRole::activation_scale, DType::f32, rows, (hidden + 127) / 128, 7};
      const PayloadShape mx_scale{PayloadRole::activation_scale, DType::f8_e8m0, rows, (hidden + 31) / 32, 5};
      const PayloadShape int8_scale{PayloadRole::activation_scale, DType::f32, rows, 1};
      const PayloadShape tokens{PayloadRole::token_ids, DType::i32, rows, 1};
      const PayloadShape ids{PayloadRole::expert_ids, DType::i32, rows, 6};
      const PayloadShape weights{PayloadRole::expert_weights, DType::f32, rows, 6};
      const PayloadShape shared_rows{PayloadRole::shared_rows, DType::u8, rows, 1};
      const PayloadShape times{PayloadRole::reply_times, DType::u32, 1, 4};
      const Case cases[] = {
          {FrameKind::ffn_request, {bf16}},
          {FrameKind::ffn_request, {f32, tokens}},
          {FrameKind::ffn_request, {bf16, ids, weights}},
          {FrameKind::ffn_request, {bf16, ids, weights, shared_rows}, kFramePartial},
          {FrameKind::ffn_request, {bf16, ids, weights}, kFramePartial | kFrameByMap},
          {FrameKind::cancel, {}, kFramePartial},
          {FrameKind::ffn_request, {fp8, fp8_scale, ids, weights}},
          {FrameKind::canary, {fp8, mx_scale, ids, weights}},
          {FrameKind::canary_echo, {int8, int8_scale, ids, weights}},
          {FrameKind::ffn_reply, {{PayloadRole::output, DType::f64, rows, hidden}, times}},
          {FrameKind::ffn_reply,
           {times,
            {PayloadRole::error_code, DType::u32, 1, 1},
            {PayloadRole::error_text, DType::u8, 1, hidden % 2000}}},
          {FrameKind::hello, {{PayloadRole::settings, DType::u8, 1, hidden}}},
          {FrameKind::hello_ack,
           {{PayloadRole::settings, DType::u8, 1, hidden}, {PayloadRole::pieces, DType::u32, rows, 6}}},
          {FrameKind::goodbye, {}},
      };
      for (const Case& item : cases) {
        FrameHeader header = request_header(rows);
        header.kind = item.kind;
        header.flags = item.flags;
        header.capacity = rows;
        const auto layout = FrameLayout::create(header, item.payloads);
        ASSERT_TRUE(layout.has_value()) << layout.error().message;
        const auto frame = encode(*layout);
        const auto view = parse_frame(frame);
        ASSERT_TRUE(view.has_value()) << frame_kind_name(item.kind) << ": " << view.error().message;
        header.total_bytes = static_cast<uint32_t>(frame.size());
        header.descriptors = static_cast<uint8_t>(item.payloads.size());
        header.header_crc = view->header.header_crc;
        EXPECT_EQ(view->header, header);
        size_t end = kHeaderBytes + kDescriptorBytes * item.payloads.size();
        for (size_t i = 0; i < item.payloads.size(); ++i) {
          const Descriptor& d = view->descriptors()[i];
          EXPECT_EQ(d, layout->descriptors()[i]);
          EXPECT_EQ(d.offset % kPayloadAlignment, 0u);
          EXPECT_LT(d.offset - end, kPayloadAlignment);
          end = d.offset + d.bytes;
        }
        EXPECT_EQ(end, frame.size());
      }
    }
  }
}

std::string parse_error(const std::vector<std::byte>& frame) {
  const auto view = parse_frame(frame);
  return view.has_value() ? "accepted" : view.error().message;
}

TEST(Frame, HeaderFaultsAreNamed) {
  const std::array<PayloadShape, 2> payloads = {PayloadShape{PayloadRole::activation, DType::bf16, 2, 40},
                                                PayloadShape{PayloadRole::token_ids, DType::i32, 2, 1}};
  const auto frame = encode(FrameLayout::create(request_header(2), payloads).value());
  ASSERT_EQ(parse_error(frame), "accepted");
  struct Case {
    size_t offset;
    uint64_t value;
    size_t width;
    const char* message;
  };
  const Case cases[] = {
      {0, 0x20544547, 4, "magic"},  // an HTTP request on our port
      {4, 2, 1, "protocol 2.0 there, 1.0 here"},
      {6, 128, 2, "header of 128 bytes"},
      {8, 99, 2, "frame kind 99 is unknown"},
      {10, 4, 2, "header flags 0x4, known are 0x3"},
      {10, 2, 2, "by_map without partial"},
      {10, 1, 2, "a part (flag partial) without a routing"},
      {12, 12, 4, "says 12 bytes"},
      {44, 9, 4, "rows 9 exceed capacity 8"},
      {48, 65, 4, "at most 64 rows"},
      {36, 5, 2, "tile 5 of 5"},
      {54, 4, 1, "row class 4"},
      {55, 9, 1, "9 descriptors"},
      {64, 99, 2, "role 99 must be understood"},
      {64 + 2, 99, 1, "dtype 99"},
      {64 + 2, 6, 1, "f8_e5m2"},
      {64 + 3, 1, 1, "block 2^1"},
      {64 + 4, 3, 4, "3 rows of"},
      {64 + 8, 41, 4, "row stride 80 is less"},
      {64 + 16, 192, 4, "leaves a gap"},
      {64 + 16, 64, 4, "overlaps"},
      {64 + 16, 129, 4, "no multiple of 64"},
      {64 + 24, 3, 4, "flags"},
      {64 + 28, 1, 4, "reserved"},
      {96, 1, 2, "appears twice"},
  };
  for (const Case& item : cases) {
    const std::string error = parse_error(patched(frame, item.offset, item.value, item.width));
    EXPECT_NE(error.find(item.message), std::string::npos) << item.offset << ": " << error;
  }
  // Without repairing the checksum any change of the header is caught.
  auto damaged = frame;
  damaged[33] ^= std::byte{1};
  EXPECT_NE(parse_error(damaged).find("checksum"), std::string::npos);
  // A tail that belongs to nobody.
  auto longer = frame;
  longer.resize(frame.size() + 64);
  EXPECT_NE(parse_error(patched(longer, 12, longer.size(), 4)).find("after the last payload"),
            std::string::npos);
}

// What no sender of ours makes: the same rules hold where a frame arrives.
TEST(Frame, PairRulesHoldAtTheReceiver) {
  const std::array<PayloadShape, 4> payloads = {
      PayloadShape{PayloadRole::activation, DType::f8_e4m3, 2, 200},
      PayloadShape{PayloadRole::activation_scale, DType::f32, 2, 2, 7},
      PayloadShape{PayloadRole::expert_ids, DType::i32, 2, 2},
      PayloadShape{PayloadRole::expert_weights, DType::f32, 2, 2}};
  const auto frame = encode(FrameLayout::create(request_header(2), payloads).value());
  ASSERT_EQ(parse_error(frame), "accepted");
  struct Patch {
    size_t offset;
    uint64_t value;
    size_t width;
  };
  constexpr size_t kValues = 64, kScales = 96, kIds = 128, kWeights = 160;  // descriptors
  const auto code = [](DType dtype) { return static_cast<uint64_t>(dtype); };
  const struct {
    std::vector<Patch> patches;
    const char* message;
  } cases[] = {
      {{{kScales, 77, 2}, {kScales + 24, 0, 4}}, "f8_e4m3 activation without activation_scale"},
      {{{kValues + 2, code(DType::bf16), 1}, {kValues + 8, 100, 4}},
       "activation_scale beside bf16 activation"},
      {{{kValues + 2, code(DType::f8_e5m2), 1}}, "f8_e5m2: too coarse"},
      {{{kValues + 2, code(DType::i8), 1}}, "i8 activation takes one f32 scale a row"},
      {{{kScales + 3, 5, 1}}, "f32 scales cover blocks of 2^7 values, not 2^5"},
      {{{kScales + 2, code(DType::f8_e8m0), 1}}, "f8_e8m0 scales cover blocks of 2^5 values, not 2^7"},
      {{{kScales + 8, 1, 4}}, "has 1 columns, 200 values a row in blocks of 128 need 2"},
      {{{kScales + 4, 1, 4}, {kScales + 12, 16, 4}}, "has 1 rows, expected 2"},
      {{{kIds, 77, 2}, {kIds + 24, 0, 4}, {kWeights, 78, 2}, {kWeights + 24, 0, 4}},
       "f8_e4m3 activation without a routing"},
  };
  for (const auto& item : cases) {
    auto wrong = frame;
    for (const Patch& patch : item.patches) wrong = patched(wrong, patch.offset, patch.value, patch.width);
    const std::string error = parse_error(wrong);
    EXPECT_NE(error.find(item.message), std::string::npos) << item.message << ": " << error;
  }
}

TEST(Frame, OptionalDescriptorOfALaterVersionIsSkipped) {
  const std::array<PayloadShape, 2> payloads = {PayloadShape{PayloadRole::activation, DType::bf16, 2, 40},
                                                PayloadShape{PayloadRole::token_ids, DType::i32, 2, 1}};
  auto frame = encode(FrameLayout::create(request_header(2), payloads).value());
  frame = patched(frame, 5, 3, 1);  // minor version 3
  const auto optional = patched(patched(frame, 96, 77, 2), 96 + 24, 0, 4);
  EXPECT_EQ(parse_error(optional), "accepted");
  EXPECT_NE(parse_error(patched(frame, 96, 77, 2)).find("must be understood"), std::string::npos);
}

TEST(Frame, PairRulesHoldAtTheSender) {
  const uint32_t rows = 2, hidden = 200;
  const PayloadShape bf16{PayloadRole::activation, DType::bf16, rows, hidden};
  const PayloadShape e4m3{PayloadRole::activation, DType::f8_e4m3, rows, hidden};
  const PayloadShape scale{PayloadRole::activation_scale, DType::f32, rows, 2, 7};
  const PayloadShape tokens{PayloadRole::token_ids, DType::i32, rows, 1};
  const PayloadShape ids{PayloadRole::expert_ids, DType::i32, rows, 2};
  const PayloadShape weights{PayloadRole::expert_weights, DType::f32, rows, 2};
  const PayloadShape output{PayloadRole::output, DType::bf16, rows, hidden};
  const PayloadShape times{PayloadRole::reply_times, DType::u32, 1, 4};
  struct Case {
    std::vector<PayloadShape> payloads;
    const char* message;
    FrameKind kind = FrameKind::ffn_request;
    uint16_t flags = 0;
  };
  const PayloadShape shared_rows{PayloadRole::shared_rows, DType::u8, rows, 1};
  const Case cases[] = {
      {{e4m3}, "f8_e4m3 activation without activation_scale"},
      {{bf16, scale}, "activation_scale beside bf16"},
      {{{PayloadRole::activation, DType::f8_e5m2, rows, hidden}, scale}, "f8_e5m2"},
      {{{PayloadRole::activation, DType::f16, rows, hidden}}, "dtype f16"},
      {{e4m3, {PayloadRole::activation_scale, DType::f32, 1, 2, 7}}, "has 1 rows, expected 2"},
      {{e4m3, {PayloadRole::activation_scale, DType::f32, rows, 3, 7}}, "has 3 columns"},
      {{e4m3, {PayloadRole::activation_scale, DType::f32, rows, 7, 5}}, "2^7"},
      {{e4m3, {PayloadRole::activation_scale, DType::bf16, rows, 2, 7}}, "dtype bf16"},
      {{{PayloadRole::activation, DType::i8, rows, hidden}}, "without activation_scale"},
      {{{PayloadRole::activation, DType::i8, rows, hidden}, scale}, "one f32 scale a row"},
      {{e4m3, scale}, "f8_e4m3 activation without a routing"},
      {{e4m3, scale, tokens}, "f8_e4m3 activation without a routing"},
      {{bf16, tokens, ids, weights}, "token_ids beside a routing"},
      {{bf16, ids}, "without expert_weights"},
      {{bf16, weights}, "without expert_ids"},
      {{bf16, ids, {PayloadRole::expert_weights, DType::f32, rows, 3}}, "beside 3 expert_weights"},
      {{bf16, {PayloadRole::expert_ids, DType::i64, rows, 2}, weights}, "dtype i64"},
      {{bf16, {PayloadRole::token_ids, DType::i64, rows, 1}}, "dtype i64"},
      {{tokens}, "activation is missing"},
      {{bf16, bf16}, "appears twice"},
      {{bf16, output}, "does not belong"},
      {{output, times, {PayloadRole::error_code, DType::u32, 1, 1}}, "come together", FrameKind::ffn_reply},
      {{times}, "exactly one of output and error", FrameKind::ffn_reply},
      {{output}, "reply_times is missing", FrameKind::ffn_reply},
      {{bf16, output}, "exactly one of activation and output", FrameKind::canary},
      {{}, "settings is missing", FrameKind::hello},
      {{bf16, ids, weights, shared_rows}, "shared_rows belongs to a part"},
      {{bf16, ids, weights, shared_rows},
       "shared_rows belongs to a part",
       FrameKind::ffn_request,
       kFramePartial | kFrameByMap},
      {{bf16, ids, weights, {PayloadRole::shared_rows, DType::u8, 1, 1}},
       "has 1 rows, expected 2",
       FrameKind::ffn_request,
       kFramePartial},
      {{bf16, tokens}, "a part (flag partial) without a routing", FrameKind::ffn_request, kFramePartial},
      {{}, "header flags 0x1 in a frame without rows", FrameKind::drain, kFramePartial},
  };
  for (const Case& item : cases) {
    FrameHeader header = request_header(rows);
    header.kind = item.kind;
    header.flags = item.flags;
    const auto layout = FrameLayout::create(header, item.payloads);
    ASSERT_FALSE(layout.has_value()) << item.message;
    EXPECT_NE(layout.error().message.find(item.message), std::string::npos) << layout.error().message;
  }
  const std::array<PayloadShape, 1> huge = {PayloadShape{PayloadRole::settings, DType::u8, 1, UINT32_MAX}};
  FrameHeader hello = request_header(0);
  hello.kind = FrameKind::hello;
  EXPECT_EQ(FrameLayout::create(hello, huge).error().code, ErrorCode::out_of_range);
}

}  // namespace
}  // namespace tandem
