#include "tokenizer/case_file.h"

#include <fmt/format.h>
#include <charconv>
#include <optional>
#include <vector>

namespace tandem {
namespace {

std::optional<std::string> from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    uint8_t byte = 0;
    if (std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16).ec != std::errc()) return std::nullopt;
    out += static_cast<char>(byte);
  }
  return out;
}

std::string join(const std::vector<int32_t>& ids) {
  std::string out;
  for (int32_t id : ids) {
    if (!out.empty()) out += ' ';
    out += std::to_string(id);
  }
  return out;
}

}  // namespace

std::string check_tokenizer_case(const Tokenizer& tokenizer, std::string_view line) {
  const size_t first = line.find('\t');
  const size_t second = line.find('\t', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos)
    return "the case has not three fields";
  const auto text = from_hex(line.substr(0, first));
  const auto decoded = from_hex(line.substr(second + 1));
  const std::string_view wanted = line.substr(first + 1, second - first - 1);
  if (!text || !decoded) return "the case is not hexadecimal";

  const auto ids = tokenizer.encode(*text);
  if (!ids) return ids.error().message;
  if (join(*ids) != wanted) {
    return fmt::format("encode of {}: wanted {}, got {}", line.substr(0, first), wanted, join(*ids));
  }
  const auto whole = tokenizer.decode(*ids);
  if (!whole) return whole.error().message;
  if (*whole != *decoded)
    return fmt::format("decode of {}: wanted \"{}\", got \"{}\"", wanted, *decoded, *whole);
  IncrementalDecoder decoder(tokenizer);
  std::string joined;
  for (int32_t id : *ids) {
    auto delta = decoder.push(id);
    if (!delta) return delta.error().message;
    joined += *delta;
  }
  joined += decoder.flush();
  if (joined != *decoded) return fmt::format("incremental decode of {}: got \"{}\"", wanted, joined);
  return {};
}

}  // namespace tandem
