#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "serving/jinja/value.h"

namespace tandem::jinja {
namespace {

using nlohmann::json;

// Builds values while the text is read: no second tree, and objects of any size in linear time.
class Builder : public nlohmann::json_sax<json> {
 public:
  Result<Value> result() {
    if (!error_.empty()) return make_error(ErrorCode::invalid_argument, error_);
    return std::move(result_);
  }

  bool null() override { return add(Value(None{})); }
  bool boolean(bool value) override { return add(Value(value)); }
  bool number_integer(int64_t value) override { return add(Value(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return fail(fmt::format("the JSON integer {} is above {}", value, INT64_MAX));
    }
    return add(Value(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string&) override { return add(Value(value)); }
  bool string(std::string& value) override { return add(Value::input(std::move(value))); }
  bool binary(json::binary_t&) override { return fail("the JSON holds binary data"); }
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }
  bool key(std::string& name) override {
    Level& level = levels_.back();
    // A name that comes twice keeps its first place and its last value, as in Python.
    const auto [found, fresh] = level.index.emplace(name, level.entries.size());
    level.target = found->second;
    if (fresh) level.entries.emplace_back(Value::input(name), Value());
    return true;
  }
  bool end_object() override {
    auto value = Value::map(std::move(levels_.back().entries));
    return close(std::move(value));
  }
  bool end_array() override {
    auto value = Value::list(std::move(levels_.back().items));
    return close(std::move(value));
  }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    return fail(fmt::format("not valid JSON: {}", error.what()));
  }

 private:
  struct Level {
    bool object = false;
    std::vector<Value> items;
    std::vector<std::pair<Value, Value>> entries;
    std::unordered_map<std::string, size_t> index;
    size_t target = 0;
  };

  bool fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }
  bool add(Value value) {
    if (levels_.empty()) {
      result_ = std::move(value);
    } else if (levels_.back().object) {
      levels_.back().entries[levels_.back().target].second = std::move(value);
    } else {
      levels_.back().items.push_back(std::move(value));
    }
    return true;
  }
  bool open(bool object) {
    if (levels_.size() >= static_cast<size_t>(kMaxValueDepth)) {
      return fail(fmt::format("the JSON nests deeper than {}", kMaxValueDepth));
    }
    levels_.emplace_back();
    levels_.back().object = object;
    return true;
  }
  bool close(Result<Value> value) {
    levels_.pop_back();
    return value ? add(std::move(*value)) : fail(value.error().message);
  }

  std::vector<Level> levels_;
  Value result_;
  std::string error_;
};

}  // namespace

Result<Value> from_json(std::string_view text) {
  Builder builder;
  // Without exceptions: the builder keeps the message.
  json::sax_parse(text.begin(), text.end(), &builder);
  return builder.result();
}

}  // namespace tandem::jinja
