// Replays tests/golden: bytes that were written from docs/protocol.md by another program. They never change:
// what this release makes of them, and what it writes itself, is what every other release of protocol 1 does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "afd/handshake.h"
#include "afd/tile_frame.h"
#include "base/bf16.h"
#include "transport/hello.h"
#include "transport/tcp_greeting.h"

namespace tandem {
namespace {

struct Golden {
  std::string name;
  std::map<std::string, std::string> facts;  // about, settings, frame, request, encoder, head, hello
  std::string decoded;                       // the lines of header and payloads
  std::vector<std::byte> bytes;
};

Golden read_golden(const std::filesystem::path& path) {
  Golden golden{.name = path.stem().string(), .facts = {}, .decoded = {}, .bytes = {}};
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line) && line != "bytes:") {
    const size_t colon = line.find(": ");
    const std::string key = line.substr(0, colon);
    if (key.starts_with("header ") || key == "payload" || key == "values" || key == "text") {
      golden.decoded += line + "\n";
    } else {
      golden.facts[key] = line.substr(colon + 2);
    }
  }
  while (std::getline(file, line)) {
    std::istringstream columns(line.substr(5, 47));  // behind the offset, before the words
    std::string byte;
    while (columns >> byte) golden.bytes.push_back(static_cast<std::byte>(std::stoi(byte, nullptr, 16)));
  }
  return golden;
}

std::vector<Golden> all_golden() {
  std::vector<Golden> all;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden")) {
    if (entry.path().extension() == ".txt") all.push_back(read_golden(entry.path()));
  }
  std::ranges::sort(all, {}, &Golden::name);
  return all;
}

template <class T>
T at(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string value_text(DType dtype, std::span<const std::byte> bytes, size_t offset) {
  const auto real = [](double value) { return std::isnan(value) ? "nan" : fmt::format("{:g}", value); };
  switch (dtype) {
    case DType::f32:
      return real(at<float>(bytes, offset));
    case DType::f64:
      return real(at<double>(bytes, offset));
    case DType::bf16:
      return real(to_float(at<bf16>(bytes, offset)));
    case DType::i32:
      return fmt::format("{}", at<int32_t>(bytes, offset));
    case DType::u32:
      return fmt::format("{}", at<uint32_t>(bytes, offset));
    case DType::i8:
      return fmt::format("{}", at<int8_t>(bytes, offset));
    default:
      return fmt::format("{}", at<uint8_t>(bytes, offset));
  }
}

// What the file says behind `settings`..`encoder`, from what was parsed.
std::string decoded_text(const FrameView& view) {
  const FrameHeader& h = view.header;
  std::string text = fmt::format(
      "header major: {}\nheader minor: {}\nheader header_bytes: {}\nheader kind: {}\nheader flags: {}\n"
      "header total_bytes: {}\nheader session: {:#018x}\nheader incarnation: {:#010x}\nheader step: {}\n"
      "header layer: {}\nheader lane: {}\nheader tile: {}\nheader tiles: {}\nheader map_epoch: {}\n"
      "header rows: {}\nheader capacity: {}\nheader attempt: {}\nheader row_class: {}\nheader descriptors: "
      "{}\n"
      "header program: {}\nheader header_crc: {:#010x}\n",
      h.major, h.minor, h.header_bytes, frame_kind_name(h.kind), h.flags, h.total_bytes, h.session,
      h.incarnation, h.step, h.layer, h.lane, h.tile, h.tiles, h.map_epoch, h.rows, h.capacity, h.attempt,
      h.row_class, h.descriptors, h.program, h.header_crc);
  for (const Descriptor& d : view.descriptors()) {
    const std::string role = payload_role_name(d.role) == "unknown"
                                 ? fmt::format("{}", static_cast<uint16_t>(d.role))
                                 : std::string(payload_role_name(d.role));
    text += fmt::format("payload: {} {} rows={} cols={} stride={} block={} offset={} bytes={} flags={}\n",
                        role, dtype_name(d.dtype), d.rows, d.cols, d.row_stride, d.log2_block, d.offset,
                        d.bytes, d.flags);
    if (d.role == PayloadRole::settings || d.role == PayloadRole::error_text) {
      std::istringstream lines(
          std::string(reinterpret_cast<const char*>(view.bytes.data() + d.offset), d.bytes));
      for (std::string line; std::getline(lines, line);) text += "text: " + line + "\n";
    } else if (d.bytes != 0) {
      text += "values:";
      for (uint32_t row = 0; row < d.rows; ++row) {
        for (uint32_t col = 0; col < d.cols; ++col) {
          const size_t offset = d.offset + size_t{row} * d.row_stride + dtype_bytes(d.dtype, col);
          text += " " + value_text(d.dtype, view.bytes, offset);
        }
      }
      text += "\n";
    }
  }
  return text;
}

SplitSettings agreed(const std::string& line) {
  std::map<std::string, std::string> word;
  std::istringstream words(line);
  for (std::string one; words >> one;) word[one.substr(0, one.find('='))] = one.substr(one.find('=') + 1);
  SplitSettings settings;
  settings.hidden_size = static_cast<uint32_t>(std::stoul(word["hidden"]));
  settings.top_k = static_cast<uint32_t>(std::stoul(word["top_k"]));
  settings.num_experts = static_cast<uint32_t>(std::stoul(word["experts"]));
  settings.vocab_size = static_cast<uint32_t>(std::stoul(word["vocab"]));
  settings.shared_intermediate_size = static_cast<uint32_t>(std::stoul(word["shared"]));
  const std::string layers = word["moe_layers"];
  const size_t dash = layers.find('-');
  settings.num_layers = static_cast<uint32_t>(std::stoul(layers.substr(dash + 1))) + 1;
  for (auto layer = std::stoul(layers.substr(0, dash)); layer < settings.num_layers; ++layer)
    settings.moe_layers.push_back(static_cast<uint16_t>(layer));
  settings.gate_on_attention = word["gate"] == "attention";
  settings.token_ids = word["token_ids"] == "yes";
  const std::string activation = word["activation"];
  const ActivationFormat format = activation == "fp8"     ? ActivationFormat::fp8
                                  : activation == "mxfp8" ? ActivationFormat::mxfp8
                                  : activation == "int8"  ? ActivationFormat::int8
                                                          : ActivationFormat::plain;
  settings.set_dtypes(activation == "f32" ? DType::f32 : DType::bf16, SumMode::plain, format);
  std::istringstream sizes(word["programs"] == "none" ? "" : word["programs"]);
  for (std::string size; std::getline(sizes, size, ',');) {
    settings.graph = true;
    settings.capture_sizes.push_back(static_cast<uint32_t>(std::stoul(size)));
  }
  return settings;
}

std::string verdict(const Status& status, std::string_view good) {
  if (status) return std::string(good);
  constexpr std::array<std::string_view, 10> kNames = {"",
                                                       "invalid_argument",
                                                       "out_of_range",
                                                       "unsupported",
                                                       "resource_exhausted",
                                                       "unavailable",
                                                       "deadline_exceeded",
                                                       "cancelled",
                                                       "data_loss",
                                                       "internal"};
  return fmt::format("refused {}: {}", kNames[static_cast<size_t>(to_wire(status.error().code))],
                     status.error().message);
}

// "refused data_loss: words" stands for every reason of that code that has these words.
bool says(const std::string& got, const std::string& wanted) {
  const size_t words = wanted.find(": ");
  if (words == std::string::npos) return got == wanted;
  return got.starts_with(wanted.substr(0, words + 2)) &&
         got.find(wanted.substr(words + 2)) != std::string::npos;
}

template <class T>
Status status_of(const Result<T>& result) {
  if (result) return {};
  return std::unexpected(result.error());
}

std::vector<std::byte> encoded_again(const FrameView& view) {
  std::vector<PayloadShape> shapes;
  for (const Descriptor& d : view.descriptors())
    shapes.push_back({d.role, d.dtype, d.rows, d.cols, d.log2_block});
  const auto layout = FrameLayout::create(view.header, shapes);
  if (!layout) return {};
  std::vector<std::byte> frame(layout->total_bytes(), std::byte{0xcc});  // a slot may hold an older frame
  layout->encode(frame);
  for (const Descriptor& d : view.descriptors())
    std::ranges::copy(view.payload(d.role), layout->payload(frame, d.role).begin());
  return frame;
}

TEST(Golden, FramesAreDecodedAndWrittenAsTheyWere) {
  size_t frames = 0, refused = 0, served = 0;
  for (const Golden& golden : all_golden()) {
    if (golden.facts.contains("head")) continue;
    SCOPED_TRACE(golden.name + ": " + golden.facts.at("about"));
    ++frames;
    const auto view = parse_frame(golden.bytes);
    const std::string parsed = verdict(status_of(view), "accepted");
    EXPECT_TRUE(says(parsed, golden.facts.at("frame"))) << parsed;
    refused += view ? 0 : 1;
    if (!view) continue;
    EXPECT_EQ(decoded_text(*view), golden.decoded);
    if (golden.facts.at("encoder") == "writes these bytes") {
      EXPECT_TRUE(encoded_again(*view) == golden.bytes);
    }
    if (!golden.facts.contains("request")) continue;
    const auto tile = read_request(*view, agreed(golden.facts.at("settings")));
    const std::string handled = verdict(status_of(tile), "served");
    EXPECT_TRUE(says(handled, golden.facts.at("request"))) << handled;
    served += tile ? 1 : 0;
  }
  // A folder that is not found would pass.
  EXPECT_GE(frames, 100u);
  EXPECT_GE(refused, 50u);
  EXPECT_GE(served, 14u);
}

TEST(Golden, EveryKindAndEveryRoleIsThere) {
  std::vector<std::string> kinds, roles;
  for (const Golden& golden : all_golden()) {
    const auto view = parse_frame(golden.bytes);
    if (golden.facts.contains("head") || !view) continue;
    kinds.emplace_back(frame_kind_name(view->header.kind));
    for (const Descriptor& d : view->descriptors()) roles.emplace_back(payload_role_name(d.role));
  }
  for (const uint16_t kind : {1, 2, 3, 4, 5, 16, 17, 18, 19, 20}) {
    const std::string name(frame_kind_name(static_cast<FrameKind>(kind)));
    EXPECT_NE(std::ranges::find(kinds, name), kinds.end()) << name;
  }
  for (uint16_t role = 1; role <= 12; ++role) {
    const std::string name(payload_role_name(static_cast<PayloadRole>(role)));
    EXPECT_NE(std::ranges::find(roles, name), roles.end()) << name;
  }
}

TEST(Golden, HellosNameTheirPeers) {
  const auto hello_of = [](const char* name) {
    const Golden golden = read_golden(std::string("tests/golden/") + name + ".txt");
    const auto view = parse_frame(golden.bytes);
    const auto text = view->payload(PayloadRole::settings);
    return decode_hello({reinterpret_cast<const char*>(text.data()), text.size()});
  };
  EXPECT_EQ(hello_of("hello")->peer.text(), "attention rank 0 (a:411)");
  EXPECT_EQ(hello_of("hello")->peer.incarnation, 41u);
  EXPECT_EQ(hello_of("hello_ack")->peer.text(), "FFN rank 0 (b:97)");
  // Every key that this release compares, and no other.
  const auto hello = hello_of("hello");
  SplitSettings settings;
  settings.moe_layers = {3};
  std::vector<std::string> keys, compared;
  for (const auto& [key, value] : hello->settings) keys.push_back(key);
  for (const Setting& setting : list_settings(settings)) compared.push_back(setting.key);
  std::ranges::sort(keys);
  std::ranges::sort(compared);
  EXPECT_EQ(keys, compared);
}

TEST(Golden, TcpFramesAreDecodedAndWrittenAsTheyWere) {
  size_t seen = 0;
  for (const Golden& golden : all_golden()) {
    if (!golden.facts.contains("head")) continue;
    SCOPED_TRACE(golden.name);
    ++seen;
    const auto head = std::span(golden.bytes).first<TcpFrameLayout::kHeaderBytes>();
    const auto frame = TcpFrameLayout::decode(head);
    ASSERT_TRUE(frame.has_value()) << frame.error().message;
    constexpr std::array<std::string_view, 6> kNames = {"", "hello", "data", "credit", "heartbeat", "bye"};
    EXPECT_EQ(fmt::format("{} channel={} value={}", kNames.at(static_cast<size_t>(frame->kind)),
                          static_cast<int>(frame->channel), frame->value),
              golden.facts.at("head"));
    EXPECT_TRUE(std::ranges::equal(TcpFrameLayout::encode(*frame), head));
    const auto body = std::span(golden.bytes).subspan(TcpFrameLayout::kHeaderBytes);
    if (frame->kind == TcpFrameKind::hello || frame->kind == TcpFrameKind::data) {
      EXPECT_EQ(body.size(), frame->value);
    }
    if (golden.name != "tcp_hello") continue;
    EndpointOptions options;
    options.slot_bytes = 262144;
    EXPECT_TRUE(std::ranges::equal(make_greeting(options), golden.bytes));
  }
  EXPECT_EQ(seen, 6u);
}

}  // namespace
}  // namespace tandem
