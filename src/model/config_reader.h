// ConfigReader: typed access to a JSON object of settings. The first thing that is wrong is kept, named with
// key and value, and returned by `status`; the getters then give harmless values, so that a parser reads as a
// list of keys. One thread.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

class ConfigReader {
 public:
  // `source` names the text in messages.
  static Result<ConfigReader> parse(std::string_view text, const std::string& source);

  // There and not null.
  bool has(const std::string& key) const;
  // There, and null: some families read that as "none" where an absent key has a default.
  bool is_null(const std::string& key) const;
  std::vector<std::string> keys() const;

  // A getter without a fallback requires the key; with one, the key may be absent or null.
  uint32_t u32(const std::string& key, uint32_t smallest = 0, uint32_t largest = kLargestDimension);
  uint32_t u32_or(const std::string& key, uint32_t fallback, uint32_t smallest = 0,
                  uint32_t largest = kLargestDimension);
  double number(const std::string& key);
  double number_or(const std::string& key, double fallback);
  // A finite number above 0.
  double positive_or(const std::string& key, double fallback);
  bool boolean_or(const std::string& key, bool fallback);
  std::string text_or(const std::string& key, const std::string& fallback);
  std::vector<std::string> texts(const std::string& key);
  // A list of numbers, or one number; empty when absent or null.
  std::vector<uint32_t> u32_list(const std::string& key);
  // The object behind `key`; one without keys when it is absent or null. Its errors are this reader's errors.
  ConfigReader object(const std::string& key);

  // `key` must be absent, null or false; true is refused as unsupported, with `why`.
  void require_false(const std::string& key, const std::string& why);

  // Keeps the first.
  void fail(ErrorCode code, const std::string& key, const std::string& what);
  Result<void> status() const;
  bool failed() const;
  // The value as written, for messages: "7", "\"text\"".
  std::string written(const std::string& key) const;

  // Larger than any dimension, vocabulary or context of a model; products of two such numbers still fit 64
  // bits.
  static constexpr uint32_t kLargestDimension = uint32_t{1} << 26;

 private:
  struct Node;
  struct Sink;

  std::shared_ptr<const Node> node_;
  std::shared_ptr<Sink> sink_;
  std::string prefix_;  // "rope_scaling."
};

}  // namespace tandem
