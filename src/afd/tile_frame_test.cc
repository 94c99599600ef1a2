#include "afd/tile_frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

namespace tandem {
namespace {

SplitSettings small_settings() {
  SplitSettings settings;
  settings.hidden_size = 6;
  settings.num_layers = 3;
  settings.vocab_size = 50;
  settings.num_experts = 4;
  settings.top_k = 2;
  settings.moe_layers = {1, 2};
  return settings;
}

FrameHeader header_of(uint32_t rows) {
  FrameHeader header;
  header.kind = FrameKind::ffn_request;
  header.layer = 2;
  header.tiles = 1;
  header.rows = rows;
  header.capacity = rows;
  return header;
}

TEST(TileFrame, StridedRowsArriveDenseWithTheirRouting) {
  SplitSettings settings = small_settings();
  settings.gate_on_attention = true;
  std::vector<uint16_t> rows(3 * 10, 0xffff);  // stride 10, four values of every row are somebody else's
  for (size_t row = 0; row < 3; ++row) {
    for (size_t i = 0; i < 6; ++i) rows[row * 10 + i] = static_cast<uint16_t>(row * 100 + i);
  }
  const std::vector<int32_t> ids = {0, 1, 2, 3, 1, 0};
  const std::vector<float> weights = {0.5f, 0.25f, 1, 2, 0, -1};
  const TileView tile{
      .header = header_of(3), .in = {DType::bf16, rows.data(), 10}, .routing = RoutingView{ids, weights, 2}};
  const auto layout = request_layout(tile.header, settings).value();
  std::vector<std::byte> frame(layout.total_bytes());
  write_request(tile, layout, settings, frame);
  const auto view = parse_frame(frame);
  ASSERT_TRUE(view.has_value()) << view.error().message;
  const auto got = read_request(*view, settings);
  ASSERT_TRUE(got.has_value()) << got.error().message;
  EXPECT_EQ(got->in.row_stride, 6u);
  for (size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(std::memcmp(static_cast<const uint16_t*>(got->in.data) + row * 6, &rows[row * 10], 12), 0);
  }
  const auto& routing = std::get<RoutingView>(got->routing);
  EXPECT_TRUE(std::ranges::equal(routing.ids, ids));
  EXPECT_TRUE(std::ranges::equal(routing.weights, weights));
}

constexpr ActivationFormat kQuantized[] = {ActivationFormat::fp8, ActivationFormat::mxfp8,
                                           ActivationFormat::int8};

SplitSettings quantized_settings(ActivationFormat format, uint32_t hidden) {
  SplitSettings settings = small_settings();
  settings.gate_on_attention = true;
  settings.hidden_size = hidden;
  settings.set_dtypes(DType::bf16, SumMode::plain, format);
  return settings;
}

// Rows whose every byte names its row, of values and scales alike.
struct MarkedRows {
  std::vector<std::byte> values, scales;
  ActivationView view;

  MarkedRows(ActivationFormat format, uint32_t rows, uint32_t hidden, size_t padding) {
    view.dtype = value_dtype(format, DType::bf16);
    view.format = format;
    view.row_stride = hidden + padding;
    view.scale_stride = scale_cols(format, hidden) + padding;
    const size_t scale_bytes = dtype_bytes(scale_dtype(format), view.scale_stride);
    values.assign(rows * view.row_stride, std::byte{0xff});
    scales.assign(rows * scale_bytes, std::byte{0xff});
    for (size_t row = 0; row < rows; ++row) {
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(row * view.row_stride), hidden,
                  static_cast<std::byte>(row));
      std::fill_n(scales.begin() + static_cast<std::ptrdiff_t>(row * scale_bytes),
                  scale_row_bytes(format, hidden), static_cast<std::byte>(64 + row));
    }
    view.data = values.data();
    view.scales = scales.data();
  }
};

// The rows of a part and their scales travel under one permutation (a scale under another row's values would
// still be a well-formed frame).
TEST(TileFrame, ScalesTravelWithTheirRowsUnderOnePermutation) {
  constexpr uint32_t kHiddenSize = 200;
  for (const ActivationFormat format : kQuantized) {
    const SplitSettings settings = quantized_settings(format, kHiddenSize);
    const MarkedRows rows(format, 5, kHiddenSize, 3);
    const std::vector<uint32_t> order = {4, 0, 3};
    const std::vector<int32_t> ids = {0, 1, 2, 3, 1, 0};
    const std::vector<float> weights(6, 0.5f);
    const TileView tile{.header = header_of(3),
                        .in = rows.view,
                        .routing = RoutingView{ids, weights, 2},
                        .part = {.row_index = order}};
    const auto layout = request_layout(tile.header, settings).value();
    std::vector<std::byte> frame(layout.total_bytes());
    write_request(tile, layout, settings, frame);
    const auto view = parse_frame(frame);
    ASSERT_TRUE(view.has_value()) << view.error().message;
    const auto got = read_request(*view, settings);
    ASSERT_TRUE(got.has_value()) << got.error().message;
    EXPECT_EQ(got->in.format, format);
    EXPECT_EQ(got->in.row_stride, kHiddenSize);
    EXPECT_EQ(got->in.scale_stride, scale_cols(format, kHiddenSize));
    const size_t scale_bytes = scale_row_bytes(format, kHiddenSize);
    for (size_t row = 0; row < order.size(); ++row) {
      const std::vector<std::byte> values(kHiddenSize, static_cast<std::byte>(order[row]));
      const std::vector<std::byte> scales(scale_bytes, static_cast<std::byte>(64 + order[row]));
      EXPECT_EQ(std::memcmp(static_cast<const std::byte*>(got->in.data) + row * kHiddenSize, values.data(),
                            kHiddenSize),
                0);
      EXPECT_EQ(std::memcmp(static_cast<const std::byte*>(got->in.scales) + row * scale_bytes, scales.data(),
                            scale_bytes),
                0);
    }
  }
}

// What a row of 7168 costs on the wire, routing and padding aside.
TEST(TileFrame, BytesOfARowOnTheWire) {
  const auto bytes = [](const SplitSettings& settings) {
    const auto layout = request_layout(header_of(64), settings).value();
    size_t sum = 0;
    for (const Descriptor& d : layout.descriptors()) {
      if (d.role == PayloadRole::activation || d.role == PayloadRole::activation_scale) sum += d.bytes;
    }
    EXPECT_EQ(sum % 64, 0u);
    return sum / 64;
  };
  SplitSettings plain = quantized_settings(ActivationFormat::plain, 7168);
  EXPECT_EQ(bytes(plain), 14336u);
  EXPECT_EQ(bytes(quantized_settings(ActivationFormat::fp8, 7168)), 7168u + 56 * 4);
  EXPECT_EQ(bytes(quantized_settings(ActivationFormat::mxfp8, 7168)), 7168u + 224);
  EXPECT_EQ(bytes(quantized_settings(ActivationFormat::int8, 7168)), 7168u + 4);
}

// The pair rules where a request enters the connector, before any frame.
TEST(TileFrame, ASenderWithoutTheAgreedScalesIsRefused) {
  constexpr uint32_t kHiddenSize = 200;
  const MarkedRows fp8(ActivationFormat::fp8, 2, kHiddenSize, 0);
  const std::vector<uint16_t> bf16_rows(2 * kHiddenSize);
  const std::vector<int32_t> ids = {0, 1, 2, 3};
  const std::vector<float> weights(4, 0.5f);
  std::vector<std::byte> out(2 * kHiddenSize * 2);
  const auto refusal = [&](const ActivationView& in, ActivationFormat agreed) {
    FfnRequest request;
    request.layer = 1;
    request.rows = request.capacity = 2;
    request.in = in;
    request.routing = RoutingView{ids, weights, 2};
    request.out = {out.data(), out.size(), MemorySpace::host};
    const Status status = check_request(request, quantized_settings(agreed, kHiddenSize));
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_EQ(refusal(fp8.view, ActivationFormat::fp8), "accepted");
  ActivationView view = fp8.view;
  view.scales = nullptr;
  EXPECT_EQ(refusal(view, ActivationFormat::fp8), "f8_e4m3 (fp8) rows without their scales");
  view = fp8.view;
  view.scale_stride = 1;
  EXPECT_EQ(refusal(view, ActivationFormat::fp8),
            "f8_e4m3 (fp8) rows of 200 values with 1 scales each where 2 are expected");
  EXPECT_EQ(refusal(fp8.view, ActivationFormat::mxfp8),
            "an activation of f8_e4m3 (fp8) rows of 200 where f8_e4m3 (mxfp8) rows of 200 are expected");
  EXPECT_EQ(refusal(fp8.view, ActivationFormat::plain),
            "an activation of f8_e4m3 (fp8) rows of 200 where bf16 rows of 200 are expected");
  view = fp8.view;
  view.dtype = DType::f8_e5m2;
  EXPECT_EQ(refusal(view, ActivationFormat::fp8),
            "an activation of f8_e5m2 (fp8) rows of 200 where f8_e4m3 (fp8) rows of 200 are expected");
  view = {DType::bf16, bf16_rows.data(), kHiddenSize};
  EXPECT_EQ(refusal(view, ActivationFormat::plain), "accepted");
  view.scales = fp8.view.scales;
  EXPECT_EQ(refusal(view, ActivationFormat::plain), "a scale beside bf16 rows, which have none");
}

// Both have e4m3 values: only the scales tell them apart.
TEST(TileFrame, AnotherQuantizationThanAgreedIsRefusedAtTheReceiver) {
  const auto error = [](ActivationFormat sent, ActivationFormat agreed) {
    const SplitSettings sender = quantized_settings(sent, 200);
    const MarkedRows rows(sent, 1, 200, 0);
    const std::vector<int32_t> ids = {0, 1};
    const std::vector<float> weights = {0.5f, 0.5f};
    const TileView tile{.header = header_of(1), .in = rows.view, .routing = RoutingView{ids, weights, 2}};
    const auto layout = request_layout(tile.header, sender).value();
    std::vector<std::byte> frame(layout.total_bytes());
    write_request(tile, layout, sender, frame);
    const auto view = parse_frame(frame).value();
    const auto got = read_request(view, quantized_settings(agreed, 200));
    return got ? std::string("accepted") : got.error().message;
  };
  EXPECT_EQ(error(ActivationFormat::fp8, ActivationFormat::fp8), "accepted");
  EXPECT_EQ(error(ActivationFormat::mxfp8, ActivationFormat::fp8),
            "f8_e4m3 activation with f8_e8m0 scales, the session agreed on fp8");
  EXPECT_EQ(error(ActivationFormat::fp8, ActivationFormat::mxfp8),
            "f8_e4m3 activation with f32 scales, the session agreed on mxfp8");
  EXPECT_EQ(error(ActivationFormat::int8, ActivationFormat::fp8),
            "activation of i8, the session agreed on f8_e4m3");
  EXPECT_EQ(error(ActivationFormat::int8, ActivationFormat::plain),
            "activation of i8, the session agreed on bf16");
}

TEST(TileFrame, ValuesAreChecked) {
  SplitSettings settings = small_settings();
  settings.gate_on_attention = true;
  const auto check = [&](std::vector<int32_t> ids, std::vector<float> weights, uint32_t rows,
                         uint32_t top_k = 2) {
    const auto status = check_routing_values(RoutingView{ids, weights, top_k}, rows, settings);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(check({0, 3}, {1, 0}, 1), "");
  EXPECT_NE(check({0, 4}, {1, 1}, 1), "");
  EXPECT_NE(check({0, -999999}, {1, 1}, 1), "");
  EXPECT_NE(check({0, 1, 2, 3}, {1, 1, 0, 0}, 2), "");
  EXPECT_NE(check({0, 1}, {1, std::numeric_limits<float>::quiet_NaN()}, 1), "");
  EXPECT_NE(check({0, 1}, {1, std::numeric_limits<float>::infinity()}, 1), "");
  EXPECT_NE(check({0, 1}, {1, 1}, 2), "");
  EXPECT_NE(check({0, 1, 2}, {1, 1, 1}, 1, 3), "");
  EXPECT_NE(check_routing_values(NoRouting{}, 1, settings).error().message.find("no routing"),
            std::string::npos);

  // A part: wherever the gate is, a row may have no slot here if it wants its shared experts.
  settings.gate_on_attention = false;
  settings.shared_intermediate_size = 8;
  const auto check_part = [&](std::vector<float> weights, std::vector<uint8_t> shared_rows,
                              uint16_t flags = kFramePartial) {
    const std::vector<int32_t> ids = {0, 1, 2, 3};
    const auto status = check_routing_values(RoutingView{ids, weights, 2}, 2, settings,
                                             {.flags = flags, .shared_rows = shared_rows});
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(check_part({1, 0, 0, 0}, {0, 1}), "");
  EXPECT_EQ(check_part({1, 0, 0, 1}, {}), "");
  EXPECT_NE(check_part({1, 0, 0, 0}, {1, 0}).find("row 1: all weights are 0 and no shared experts"),
            std::string::npos);
  EXPECT_NE(check_part({1, 0, 0, 0}, {}).find("a row without work"), std::string::npos);
  EXPECT_NE(check_part({1, 0, 0, 1}, {0, 2}).find("shared_rows is 2"), std::string::npos);
  EXPECT_NE(check_part({1, 0, 0, 1}, {1}).find("shared_rows of 1"), std::string::npos);
  EXPECT_NE(check_part({1, 0, 0, 0}, {}, kFramePartial | kFrameByMap).find("all weights of row 1 are 0"),
            std::string::npos);
  EXPECT_NE(check_part({1, 0, 0, 1}, {}, 0).find("the placement agreed on asks for no routing"),
            std::string::npos);
  settings.shared_experts_on_attention = true;
  EXPECT_NE(check_part({1, 0, 0, 1}, {0, 1}).find("FFN ranks add no shared experts"), std::string::npos);

  const std::vector<int32_t> tokens = {0, 49};
  EXPECT_FALSE(
      check_routing_values(TokenIds{tokens}, 2, settings).has_value());  // nobody asked for token ids
  settings.token_ids = true;
  EXPECT_TRUE(check_routing_values(TokenIds{tokens}, 2, settings).has_value());
  const std::vector<int32_t> outside = {0, 50};
  EXPECT_EQ(check_routing_values(TokenIds{outside}, 2, settings).error().code, ErrorCode::out_of_range);
  EXPECT_FALSE(check_routing_values(NoRouting{}, 2, settings).has_value());
}

TEST(TileFrame, AProgramIsNamedWithinItsRows) {
  SplitSettings settings = small_settings();
  settings.graph = true;
  settings.capture_sizes = {2, 8};
  const std::vector<uint16_t> rows(size_t{4} * settings.hidden_size);
  const auto read = [&](uint32_t num_rows, uint32_t word) {
    FrameHeader header = header_of(num_rows);
    header.program = word;
    const TileView tile{.header = header,
                        .in = {settings.activation_dtype, rows.data(), settings.hidden_size},
                        .routing = NoRouting{}};
    const auto layout = request_layout(header, settings).value();
    std::vector<std::byte> frame(layout.total_bytes());
    write_request(tile, layout, settings, frame);
    const auto view = parse_frame(frame).value();
    const auto got = read_request(view, settings);
    return got ? std::string("accepted") : got.error().message;
  };
  EXPECT_EQ(read(3, 0), "accepted");
  EXPECT_EQ(read(2, 2), "accepted");
  EXPECT_EQ(read(3, 8), "accepted");
  EXPECT_EQ(read(4, 16), "accepted");  // of no program: it runs eager, and counts as a miss
  EXPECT_EQ(read(3, 2), "program 2 has room for as many rows, the tile has 3");

  FfnRequest request;
  request.layer = 1;
  request.rows = request.capacity = 2;
  std::vector<std::byte> out(size_t{2} * 8 * settings.hidden_size);
  request.in = {settings.activation_dtype, rows.data(), settings.hidden_size};
  request.out = {out.data(), out.size(), MemorySpace::host};
  request.program = 2;
  EXPECT_TRUE(check_request(request, settings).has_value());
  request.program = 4;
  EXPECT_EQ(check_request(request, settings).error().message,
            "program 4 for 2 rows: not one of the capture sizes, or too small");
  settings.graph = false;
  EXPECT_FALSE(check_request(request, settings).has_value());
}

TEST(TileFrame, CaptureSizesAscend) {
  SplitSettings settings = small_settings();
  settings.graph = true;
  EXPECT_NE(settings.validate().error().message.find("capture_sizes: none"), std::string::npos);
  for (const std::vector<uint32_t>& sizes : {std::vector<uint32_t>{0}, {8, 8}, {16, 8}, {5000}}) {
    settings.capture_sizes = sizes;
    EXPECT_NE(settings.validate().error().message.find("ascending numbers of rows"), std::string::npos);
  }
  settings.capture_sizes = {1, 8, 4096};
  EXPECT_TRUE(settings.validate().has_value());
  EXPECT_TRUE(settings.is_captured(8));
  EXPECT_FALSE(settings.is_captured(0) || settings.is_captured(9));
  const auto differs = [](const SplitSettings& one, const SplitSettings& other, const std::string& key) {
    const auto a = list_settings(one), b = list_settings(other);
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].key == key) return a[i].value != b[i].value;
    }
    return false;
  };
  SplitSettings fewer = settings, eager = settings;
  fewer.capture_sizes = {1, 8};
  eager.graph = false;
  EXPECT_TRUE(differs(settings, fewer, "capture_sizes"));
  EXPECT_FALSE(differs(settings, fewer, "execution"));
  EXPECT_TRUE(differs(settings, eager, "execution"));
}

TEST(TileFrame, ARequestThatIsNotAsAgreedIsRefused) {
  const SplitSettings settings = small_settings();
  const std::vector<uint16_t> rows(2 * 6);
  const auto error_with = [&](FrameHeader header, SplitSettings sender) {
    const std::vector<float> wide(2 * 16);
    const TileView tile{.header = header,
                        .in = {sender.activation_dtype, wide.data(), sender.hidden_size},
                        .routing = NoRouting{}};
    const auto layout = request_layout(header, sender).value();
    std::vector<std::byte> frame(layout.total_bytes());
    write_request(tile, layout, sender, frame);
    const auto view = parse_frame(frame).value();
    const auto got = read_request(view, settings);
    return got ? std::string("accepted") : got.error().message;
  };
  EXPECT_EQ(error_with(header_of(2), settings), "accepted");
  FrameHeader dense_layer = header_of(2);
  dense_layer.layer = 0;
  EXPECT_EQ(error_with(dense_layer, settings), "layer 0 has no experts");
  FrameHeader program = header_of(2);
  program.program = 4;
  EXPECT_EQ(error_with(program, settings), "program 4: the session agreed on execution eager, program 0");
  SplitSettings wider = settings;
  wider.hidden_size = 8;
  EXPECT_NE(error_with(header_of(2), wider).find("8 columns"), std::string::npos);
  SplitSettings other = settings;
  other.activation_dtype = DType::f32;
  EXPECT_NE(error_with(header_of(2), other).find("activation of f32"), std::string::npos);
}

TEST(TileFrame, RepliesCarryTimesAndErrors) {
  const SplitSettings settings = small_settings();
  const FfnTimes times{1, 2, 3, 4};
  const auto layout = reply_layout(header_of(2), settings).value();
  std::vector<std::byte> frame(layout.total_bytes());
  const auto output = write_reply(layout, times, frame);
  ASSERT_EQ(output.size(), 2 * 6 * 2u);
  std::ranges::fill(output, std::byte{0x41});
  const auto view = parse_frame(frame).value();
  const auto reply = read_reply(view, settings).value();
  EXPECT_TRUE(reply.status.has_value());
  EXPECT_EQ(reply.output.size(), output.size());
  EXPECT_EQ(reply.output[23], std::byte{0x41});
  EXPECT_EQ(reply.times.queue_us, 1u);
  EXPECT_EQ(reply.times.residence_us, 4u);

  const Error error{ErrorCode::resource_exhausted, "no\nroom\x01" + std::string(5000, 'x')};
  const auto error_layout = error_reply_layout(header_of(2), error).value();
  std::vector<std::byte> error_frame(error_layout.total_bytes());
  write_error_reply(error_layout, times, error, error_frame);
  const auto error_view = parse_frame(error_frame).value();
  const auto failed = read_reply(error_view, settings).value();
  ASSERT_FALSE(failed.status.has_value());
  EXPECT_EQ(failed.status.error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(failed.status.error().message.substr(0, 9), "no room x");
  EXPECT_LE(failed.status.error().message.size(), kMaxErrorTextBytes);
}

TEST(TileFrame, OnlyRepliesAreReadAsReplies) {
  for (const FrameKind kind : {FrameKind::cancel, FrameKind::drain, FrameKind::goodbye}) {
    FrameHeader header = header_of(2);
    header.kind = kind;
    const auto layout = FrameLayout::create(header, {});
    ASSERT_TRUE(layout) << layout.error().message;
    std::vector<std::byte> frame(layout->total_bytes());
    layout->encode(frame);
    const auto view = parse_frame(frame);
    ASSERT_TRUE(view) << view.error().message;
    const auto reply = read_reply(*view, small_settings());
    ASSERT_FALSE(reply.has_value());
    EXPECT_EQ(reply.error().message, std::string(frame_kind_name(kind)) + " is no reply");
  }
}

TEST(SplitSettings, UnsupportedCombinationsAreNamed) {
  EXPECT_TRUE(small_settings().validate().has_value());
  SplitSettings settings = small_settings();
  settings.token_ids = settings.gate_on_attention = true;
  EXPECT_NE(settings.validate().error().message.find("token ids"), std::string::npos);
  settings = small_settings();
  settings.num_hash_layers = 3;
  EXPECT_EQ(settings.validate().error().message,
            "no token ids with the gate on FFN: the model takes the experts of 3 layers by token id; set "
            "send_token_ids, or compute_gate_on_attention");
  settings.token_ids = true;
  EXPECT_TRUE(settings.validate().has_value());
  settings.token_ids = false;
  settings.gate_on_attention = true;  // the look-up happens there
  EXPECT_TRUE(settings.validate().has_value());
  settings = small_settings();
  settings.sum_mode = SumMode::deterministic;
  EXPECT_FALSE(settings.validate().has_value());
  settings.set_dtypes(DType::bf16, SumMode::deterministic);
  EXPECT_TRUE(settings.validate().has_value());
  EXPECT_EQ(settings.traits().reply_dtype, DType::f64);
  settings = small_settings();
  settings.activation_dtype = DType::f8_e4m3;
  EXPECT_EQ(
      settings.validate().error().message,
      "activation_dtype f8_e4m3 in format plain with compute dtype bf16: send the compute dtype, or fp8, "
      "mxfp8 or int8");
  for (const ActivationFormat format : kQuantized) {
    settings = quantized_settings(format, 200);
    EXPECT_TRUE(settings.validate().has_value());
    EXPECT_EQ(settings.traits().activation_format, format);
    settings.gate_on_attention = false;
    EXPECT_EQ(settings.validate().error().message,
              "activation_dtype " + std::string(activation_format_name(format)) +
                  " with the gate on FFN: the router must see the rows before they are rounded; set "
                  "compute_gate_on_attention, or send bf16");
  }
  settings = small_settings();
  settings.moe_layers.clear();
  EXPECT_NE(settings.validate().error().message.find("no MoE layer"), std::string::npos);
}

}  // namespace
}  // namespace tandem
