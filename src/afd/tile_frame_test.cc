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

  settings.gate_on_attention = false;
  const std::vector<int32_t> tokens = {0, 49};
  EXPECT_FALSE(
      check_routing_values(TokenIds{tokens}, 2, settings).has_value());  // nobody asked for token ids
  settings.token_ids = true;
  EXPECT_TRUE(check_routing_values(TokenIds{tokens}, 2, settings).has_value());
  const std::vector<int32_t> outside = {0, 50};
  EXPECT_EQ(check_routing_values(TokenIds{outside}, 2, settings).error().code, ErrorCode::out_of_range);
  EXPECT_FALSE(check_routing_values(NoRouting{}, 2, settings).has_value());
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
  EXPECT_NE(error_with(program, settings).find("program 4"), std::string::npos);
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

TEST(SplitSettings, UnsupportedCombinationsAreNamed) {
  EXPECT_TRUE(small_settings().validate().has_value());
  SplitSettings settings = small_settings();
  settings.token_ids = settings.gate_on_attention = true;
  EXPECT_NE(settings.validate().error().message.find("token ids"), std::string::npos);
  settings = small_settings();
  settings.sum_mode = SumMode::deterministic;
  EXPECT_FALSE(settings.validate().has_value());
  settings.set_dtypes(DType::bf16, SumMode::deterministic);
  EXPECT_TRUE(settings.validate().has_value());
  EXPECT_EQ(settings.traits().reply_dtype, DType::f64);
  settings = small_settings();
  settings.activation_dtype = DType::f8_e4m3;
  EXPECT_EQ(settings.validate().error().code, ErrorCode::unsupported);
  settings = small_settings();
  settings.moe_layers.clear();
  EXPECT_NE(settings.validate().error().message.find("no MoE layer"), std::string::npos);
}

}  // namespace
}  // namespace tandem
