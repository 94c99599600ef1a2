#include "afd/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "afd/frame_testing.h"
#include "afd/tile_frame.h"

namespace tandem {
namespace {

PeerIdentity attention_peer() {
  return {"attention", 3, "alpha:11", 1};
}
PeerIdentity ffn_peer() {
  return {"ffn", 0, "beta:22", 2};
}

std::string difference(const SplitSettings& ours, const SplitSettings& theirs) {
  const auto hello = decode_hello(encode_hello(ffn_peer(), theirs));
  const Status same = compare_settings(ours, attention_peer(), hello.value());
  return same ? "" : same.error().message;
}

TEST(Handshake, EqualSettingsPass) {
  EXPECT_EQ(difference(small_settings(), small_settings()), "");
}

TEST(Handshake, EverySettingIsComparedAndNamed) {
  const SplitSettings ours = small_settings();
  const auto check = [&](std::string_view key, auto change) {
    SplitSettings theirs = ours;
    change(theirs);
    const std::string message = difference(ours, theirs);
    EXPECT_NE(message.find(std::string(key) + " is "), std::string::npos) << key << ": " << message;
    EXPECT_NE(message.find("attention rank 3 (alpha:11)"), std::string::npos) << message;
    EXPECT_NE(message.find("FFN rank 0 (beta:22)"), std::string::npos) << message;
  };
  check("model_fingerprint", [](auto& s) { s.model_fingerprint++; });
  check("hidden_size", [](auto& s) { s.hidden_size++; });
  check("num_layers", [](auto& s) { s.num_layers++; });
  check("moe_layers", [](auto& s) { s.moe_layers = {1, 3}; });
  check("draft_layers", [](auto& s) { s.num_draft_layers = 1; });
  check("num_experts", [](auto& s) { s.num_experts++; });
  check("top_k", [](auto& s) { s.top_k++; });
  check("moe_intermediate_size", [](auto& s) { s.moe_intermediate_size++; });
  check("shared_intermediate_size", [](auto& s) { s.shared_intermediate_size++; });
  check("vocab_size", [](auto& s) { s.vocab_size++; });
  check("gate", [](auto& s) { s.gate_on_attention = true; });
  check("shared_experts", [](auto& s) { s.shared_experts_on_attention = true; });
  check("hash_layers", [](auto& s) { s.num_hash_layers = 1; });
  check("token_ids", [](auto& s) { s.token_ids = true; });
  check("compute_dtype", [](auto& s) { s.compute_dtype = DType::f32; });
  check("weights", [](auto& s) { s.weights = "int8"; });
  check("activation_dtype", [](auto& s) { s.activation_dtype = DType::f32; });
  check("activation_dtype",
        [](auto& s) { s.set_dtypes(DType::bf16, SumMode::plain, ActivationFormat::fp8); });
  check("reply_dtype", [](auto& s) { s.reply_dtype = DType::f32; });
  check("deterministic", [](auto& s) { s.sum_mode = SumMode::deterministic; });
}

TEST(Handshake, NumericsMattersOnlyForDeterministicSums) {
  SplitSettings ours = small_settings(), theirs = small_settings();
  theirs.numerics_id = 99;
  EXPECT_EQ(difference(ours, theirs), "");  // logged
  ours.set_dtypes(DType::bf16, SumMode::deterministic);
  theirs.set_dtypes(DType::bf16, SumMode::deterministic);
  EXPECT_NE(difference(ours, theirs).find("numerics_id"), std::string::npos);
}

TEST(Handshake, EveryKeyMustBeThere) {
  const auto whole = decode_hello(encode_hello(ffn_peer(), small_settings())).value();
  for (const auto& [missing, value] : whole.settings) {
    Hello hello = whole;
    std::erase_if(hello.settings, [&](const auto& setting) { return setting.first == missing; });
    const Status same = compare_settings(small_settings(), attention_peer(), hello);
    ASSERT_FALSE(same.has_value()) << missing;
    EXPECT_NE(same.error().message.find(missing + " is " + value + " on attention rank 3"), std::string::npos)
        << same.error().message;
    EXPECT_NE(same.error().message.find("(absent) on FFN rank 0"), std::string::npos);
  }
}

TEST(Handshake, ALateOrMissingKeyIsADifference) {
  auto hello = decode_hello(encode_hello(ffn_peer(), small_settings())).value();
  std::erase_if(hello.settings, [](const auto& setting) { return setting.first == "top_k"; });
  EXPECT_NE(compare_settings(small_settings(), attention_peer(), hello).error().message.find("top_k is 2 on"),
            std::string::npos);
  hello = decode_hello(encode_hello(ffn_peer(), small_settings())).value();
  hello.settings.emplace_back("new_key", "7");
  EXPECT_NE(
      compare_settings(small_settings(), attention_peer(), hello).error().message.find("new_key is (absent)"),
      std::string::npos);
}

// Whoever may connect may also say a hello: what he makes us write is bounded.
TEST(Handshake, ADifferenceIsNoLongerThanAnErrorMayBe) {
  std::string text = "peer.role=attention\npeer.rank=0\npeer.name=h:1\npeer.incarnation=5\nhidden_size=77\n";
  for (int i = 0; i < 200; ++i)
    text += std::string(1000, 'k') + std::to_string(i) + "=" + std::string(1000, 'v') + "\n";
  const auto hello = decode_hello(text);
  ASSERT_TRUE(hello.has_value()) << hello.error().message;
  const Status same = compare_settings(small_settings(), ffn_peer(), *hello);
  ASSERT_FALSE(same.has_value());
  EXPECT_LE(same.error().message.size(), kMaxErrorTextBytes);
  EXPECT_NE(same.error().message.find("hidden_size is 24 on FFN rank 0"), std::string::npos);
}

// Section 8 of the protocol: what another minor version may bring, and what it may not.
TEST(Handshake, MinorVersionsMayDifferAndMajorOnesMayNot) {
  const auto refusal = [](const std::string& protocol, const std::string& more) {
    auto hello = decode_hello(encode_hello(attention_peer(), small_settings()) + more).value();
    for (auto& [key, value] : hello.settings) {
      if (key == "protocol") value = protocol;
    }
    const Status same = compare_settings(small_settings(), ffn_peer(), hello);
    return same ? "" : same.error().message;
  };
  EXPECT_EQ(refusal("1.0", ""), "");
  EXPECT_EQ(refusal("1.7", "may.features=colours,shapes\n"), "");
  EXPECT_NE(refusal("2.0", "").find("protocol is 1.0 on FFN rank 0"), std::string::npos);
  EXPECT_NE(refusal("10.0", "").find("protocol is 1.0"), std::string::npos);
  EXPECT_NE(refusal("", "").find("protocol is 1.0"), std::string::npos);
  EXPECT_NE(refusal("1.7", "features=colours\n").find("features is (absent) on FFN rank 0"),
            std::string::npos);
}

// A client without the model's files.
TEST(Handshake, AttentionMayLeaveEverySettingButTheProtocolToTheFfnRank) {
  const auto refusal = [](const PeerIdentity& peer, const auto& leaves_open) {
    SplitSettings strict = small_settings();
    strict.set_dtypes(DType::bf16, SumMode::deterministic);  // numerics_id counts
    auto hello = decode_hello(encode_hello(peer, strict)).value();
    for (auto& [key, value] : hello.settings) {
      if (leaves_open(key)) value = kUnstatedSetting;
    }
    const Status same = compare_settings(strict, ffn_peer(), hello);
    return same ? "" : same.error().message;
  };
  const auto all_but_protocol = [](const std::string& key) { return key != "protocol"; };
  EXPECT_EQ(refusal(attention_peer(), all_but_protocol), "");
  EXPECT_NE(refusal(attention_peer(), [](const std::string&) { return true; })
                .find("protocol is 1.0 on FFN rank 0"),
            std::string::npos);
  EXPECT_NE(refusal({"ffn", 1, "gamma:33", 3}, all_but_protocol).find("model_fingerprint is"),
            std::string::npos)
      << "FFN ranks all have the model";
}

TEST(Handshake, MalformedHelloIsRefused) {
  EXPECT_FALSE(decode_hello("").has_value());
  EXPECT_FALSE(decode_hello("peer.role=ffn\n").has_value());
  const std::string good = "peer.role=ffn\npeer.rank=0\npeer.name=h:1\npeer.incarnation=5\n";
  EXPECT_TRUE(decode_hello(good).has_value());
  EXPECT_NE(decode_hello(good + "a=1\na=2\n").error().message.find("a is given twice"), std::string::npos);
  EXPECT_FALSE(decode_hello(good + "no equals sign\n").has_value());
  EXPECT_FALSE(decode_hello(good + "=value\n").has_value());
  EXPECT_FALSE(decode_hello(good + "unterminated=1").has_value());
  EXPECT_FALSE(decode_hello("peer.role=ffn\npeer.rank=-1\npeer.name=h:1\npeer.incarnation=5\n").has_value());
  EXPECT_FALSE(
      decode_hello("peer.role=ffn\npeer.rank=70000\npeer.name=h:1\npeer.incarnation=5\n").has_value());
  std::string many = good;
  for (int i = 0; i < 300; ++i) many += "key" + std::to_string(i) + "=1\n";
  EXPECT_FALSE(decode_hello(many).has_value());
}

TEST(Handshake, CanariesHaveTheSizeOfTheLargestFrames) {
  for (int mode = 0; mode < 3; ++mode) {
    SplitSettings settings = small_settings();
    settings.token_ids = mode == 1;
    settings.gate_on_attention = mode == 2;
    for (uint16_t index = 0; index < kNumCanaries; ++index) {
      const auto canary = make_canary(settings, 5, 6, index).value();
      const auto frame = parse_frame(canary).value();
      EXPECT_EQ(frame.header.rows, kMaxTileRows);
      if (index == 0) {
        EXPECT_TRUE(read_request(frame, settings).has_value())
            << read_request(frame, settings).error().message;
      }
      const auto echo = echo_canary(canary);
      const auto echoed = parse_frame(echo).value();
      EXPECT_EQ(echoed.header.kind, FrameKind::canary_echo);
      EXPECT_TRUE(std::equal(canary.begin() + 64, canary.end(), echo.begin() + 64));
      EXPECT_LE(canary.size(), settings.endpoint_options(1).slot_bytes);
    }
  }
}

// Both have e4m3 values: the setting names the format.
TEST(Handshake, TheFormatOfActivationsIsNamed) {
  SplitSettings ours = small_settings(), theirs = small_settings();
  ours.set_dtypes(DType::bf16, SumMode::plain, ActivationFormat::fp8);
  theirs.set_dtypes(DType::bf16, SumMode::plain, ActivationFormat::mxfp8);
  EXPECT_EQ(difference(ours, theirs),
            "activation_dtype is fp8 on attention rank 3 (alpha:11) and mxfp8 on FFN rank 0 (beta:22): set "
            "activation_dtype alike on both sides");
}

TEST(Handshake, QuantizedCanariesCarryTheirScales) {
  for (const ActivationFormat format :
       {ActivationFormat::fp8, ActivationFormat::mxfp8, ActivationFormat::int8}) {
    SplitSettings settings = small_settings();
    settings.hidden_size = 200;
    settings.gate_on_attention = true;
    settings.set_dtypes(DType::bf16, SumMode::deterministic, format);
    const auto canary = make_canary(settings, 5, 6, 0).value();
    const auto frame = parse_frame(canary).value();
    const auto tile = read_request(frame, settings);
    ASSERT_TRUE(tile.has_value()) << tile.error().message;
    EXPECT_EQ(tile->in.format, format);
    EXPECT_EQ(frame.payload(PayloadRole::activation_scale).size(),
              kMaxTileRows * scale_row_bytes(format, 200));
    EXPECT_LE(canary.size(), settings.endpoint_options(1).slot_bytes);
    const auto values = frame.payload(PayloadRole::activation);
    EXPECT_EQ(std::ranges::count_if(
                  values, [](std::byte value) { return (value & std::byte{0x7f}) == std::byte{0x7f}; }),
              0)
        << "NaN in e4m3";
  }
}

TEST(Topology, PiecesSurviveTheWire) {
  const SplitSettings settings = small_settings();
  std::vector<Piece> pieces;
  for (uint16_t layer : settings.moe_layers) {
    for (uint16_t expert = 0; expert < 8; ++expert) {
      if (layer == 2 && expert % 2 == 1) continue;
      pieces.push_back({layer, expert, 0, 32, OwnerId{4, 0}});
    }
  }
  const auto words = encode_pieces(pieces);
  EXPECT_EQ(words.size(), 6u * (1 + 4 + 1));
  EXPECT_EQ(decode_pieces(words, 4, settings).value(), pieces);
  for (size_t word = 0; word < 6; ++word) {
    auto wrong = words;
    wrong[word] = 0xfffffff0u;
    EXPECT_FALSE(decode_pieces(wrong, 4, settings).has_value()) << word;
  }
}

TEST(Topology, AMissingPieceIsNamed) {
  const SplitSettings settings = small_settings();
  const auto all = ExpertMap::whole(settings.map_shape(), OwnerId{0, 0});
  FfnRankFacts facts;
  facts.address = "a";
  facts.pieces.assign(all.pieces().begin(), all.pieces().end());
  EXPECT_TRUE(assemble_topology(settings, {&facts, 1}, 1).has_value());
  std::erase_if(facts.pieces, [](const Piece& piece) { return piece.layer == 2 && piece.expert >= 6; });
  const auto missing = assemble_topology(settings, {&facts, 1}, 1);
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("layer 2: experts 6-7"), std::string::npos)
      << missing.error().message;
  const std::vector<FfnRankFacts> twins = {facts, facts};
  EXPECT_NE(assemble_topology(settings, twins, 1).error().message.find("both say"), std::string::npos);
}

}  // namespace
}  // namespace tandem
