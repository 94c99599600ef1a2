// Mutations of valid frames: never a crash or a read outside (the sanitizer build watches), and whatever is
// accepted is consistent.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "afd/frame_testing.h"
#include "afd/tile_frame.h"

namespace tandem {
namespace {

std::vector<std::byte> valid_frame(const SplitSettings& settings, std::mt19937& random) {
  FrameHeader header;
  header.kind = FrameKind::ffn_request;
  header.layer = 1;
  header.tiles = 1;
  header.rows = random() % 9;
  header.capacity = 8;
  const std::vector<uint16_t> activation(size_t{header.rows} * settings.hidden_size, 0x3f80);
  const std::vector<int32_t> tokens(header.rows, 5);
  const std::vector<int32_t> ids(size_t{header.rows} * settings.top_k, 7);
  const std::vector<float> weights(size_t{header.rows} * settings.top_k, 0.5f);
  TileView tile{
      .header = header, .in = {DType::bf16, activation.data(), settings.hidden_size}, .routing = NoRouting{}};
  if (settings.token_ids) tile.routing = TokenIds{tokens};
  if (settings.gate_on_attention) tile.routing = RoutingView{ids, weights, settings.top_k};
  const auto layout = request_layout(header, settings).value();
  std::vector<std::byte> frame(layout.total_bytes());
  write_request(tile, layout, settings, frame);
  return frame;
}

void check_accepted(const FrameView& view, const std::vector<std::byte>& frame,
                    const SplitSettings& settings) {
  ASSERT_LE(view.header.rows, view.header.capacity);
  ASSERT_LE(view.header.capacity, kMaxTileRows);
  size_t end = kHeaderBytes + kDescriptorBytes * view.header.descriptors;
  for (const Descriptor& d : view.descriptors()) {
    ASSERT_GE(d.offset, end);
    ASSERT_EQ(size_t{d.rows} * d.row_stride, d.bytes);
    ASSERT_GE(d.row_stride, dtype_bytes(d.dtype, d.cols));
    end = size_t{d.offset} + d.bytes;
    ASSERT_LE(end, frame.size());
  }
  ASSERT_EQ(end, frame.size());
  if (view.header.kind != FrameKind::ffn_request) return;
  const auto tile = read_request(view, settings);
  if (!tile) return;
  if (const auto* routing = std::get_if<RoutingView>(&tile->routing)) {
    for (const int32_t id : routing->ids) ASSERT_LT(static_cast<uint32_t>(id), settings.num_experts);
  }
  if (const auto* tokens = std::get_if<TokenIds>(&tile->routing)) {
    for (const int32_t id : tokens->ids) ASSERT_LT(static_cast<uint32_t>(id), settings.vocab_size);
  }
}

constexpr int kMutations = 1'000'000;  // some seconds; under sanitizers half a minute

TEST(FrameFuzz, MutationsAreRefusedOrConsistent) {
  std::mt19937 random(1);
  int accepted = 0;
  const SplitSettings modes[] = {settings_of_mode(0), settings_of_mode(1), settings_of_mode(2)};
  size_t in_use = 0;
  for (int round = 0; round < kMutations; ++round) {
    // What the first rounds took was warm-up: error texts, tables. Afterwards nothing may stay.
    if (round == kMutations / 10) in_use = mallinfo2().uordblks;
    const SplitSettings& settings = modes[round % 3];
    std::vector<std::byte> frame = valid_frame(settings, random);
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < changes; ++i) {
      // Most mutations hit header and descriptors, where they matter.
      const size_t area = random() % 4 != 0 ? std::min<size_t>(frame.size(), 192) : frame.size();
      switch (random() % 4) {
        case 0:
          frame[random() % area] ^= static_cast<std::byte>(1u << (random() % 8));
          break;
        case 1:
          frame[random() % area] = static_cast<std::byte>(random());
          break;
        case 2: {
          constexpr uint32_t kEdges[] = {0, 1, 63, 64, 65, 0x7fffffff, 0x80000000, 0xffffffff};
          const size_t offset = random() % (area / 4) * 4;
          std::memcpy(frame.data() + offset, &kEdges[random() % 8], 4);
          break;
        }
        default:
          frame.resize(random() % (frame.size() + 64));
          break;
      }
      if (frame.size() < kHeaderBytes) break;
    }
    if (frame.size() >= kHeaderBytes &&
        random() % 8 != 0) {  // usually repaired, so that deeper checks are reached
      if (random() % 2 == 0) repair_size(frame);
      repair_checksum(frame);
    }
    // An allocation of exactly this size: a read past the end is an error under ASan.
    auto exact = std::make_unique<std::byte[]>(frame.size());
    if (!frame.empty()) std::memcpy(exact.get(), frame.data(), frame.size());
    const auto view = parse_frame({exact.get(), frame.size()});
    if (view) {
      ++accepted;
      check_accepted(*view, frame, settings);
      if (HasFatalFailure()) return;
    } else {
      ASSERT_FALSE(view.error().message.empty());
    }
  }
  EXPECT_LE(mallinfo2().uordblks, in_use + 4096);  // 0 of 0 under sanitizers, which count for themselves
  EXPECT_GT(
      accepted,
      kMutations / 60);  // mutations of values and of free fields pass: the test looks behind the header
}

TEST(FrameFuzz, EveryTruncationIsRefused) {
  std::mt19937 random(2);
  for (unsigned mode = 0; mode < kRoutingModes; ++mode) {
    const auto frame = valid_frame(settings_of_mode(mode), random);
    ASSERT_TRUE(parse_frame(frame).has_value());
    for (size_t size = 0; size < frame.size(); ++size) {
      ASSERT_FALSE(parse_frame(std::span(frame).first(size)).has_value()) << size;
    }
  }
}

TEST(FrameFuzz, RandomBytesAreRefused) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(random() % 400);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (bytes.size() >= 4 && round % 2 == 0) std::memcpy(bytes.data(), "TAFD", 4);
    ASSERT_FALSE(parse_frame(bytes).has_value());
  }
}

}  // namespace
}  // namespace tandem
