#include "model/config_reader.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/strict_json.h"

namespace tandem {

using nlohmann::json;

struct ConfigReader::Node {
  json object = json::object();

  const json* find(const std::string& key) const {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
};

struct ConfigReader::Sink {
  std::string source;
  std::optional<Error> error;
};

namespace {

bool is_u32(const json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= std::numeric_limits<uint32_t>::max();
}

}  // namespace

Result<ConfigReader> ConfigReader::parse(std::string_view text, const std::string& source) {
  TANDEM_ASSIGN(json parsed, parse_strict_json(text, source));
  if (!parsed.is_object()) return make_error(ErrorCode::data_loss, source + " is not a JSON object");
  ConfigReader reader;
  auto node = std::make_shared<Node>();
  node->object = std::move(parsed);
  reader.node_ = std::move(node);
  reader.sink_ = std::make_shared<Sink>();
  reader.sink_->source = source;
  return reader;
}

bool ConfigReader::has(const std::string& key) const {
  return node_->find(key) != nullptr;
}

bool ConfigReader::is_null(const std::string& key) const {
  const auto it = node_->object.find(key);
  return it != node_->object.end() && it->is_null();
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : node_->object.items()) names.push_back(key);
  return names;
}

std::string ConfigReader::written(const std::string& key) const {
  const auto it = node_->object.find(key);
  return it == node_->object.end() ? "absent"
                                   : printable(it->dump(-1, ' ', false, json::error_handler_t::replace));
}

void ConfigReader::fail(ErrorCode code, const std::string& key, const std::string& what) {
  if (!sink_->error)
    sink_->error = Error{code, fmt::format("{}: {}{} {}", sink_->source, prefix_, key, what)};
}

Result<void> ConfigReader::status() const {
  if (sink_->error) return std::unexpected(*sink_->error);
  return {};
}

bool ConfigReader::failed() const {
  return sink_->error.has_value();
}

uint32_t ConfigReader::u32(const std::string& key, uint32_t smallest, uint32_t largest) {
  if (!has(key)) {
    fail(ErrorCode::invalid_argument, key, "is missing, and the family has no default for it");
    return smallest;
  }
  return u32_or(key, smallest, smallest, largest);
}

uint32_t ConfigReader::u32_or(const std::string& key, uint32_t fallback, uint32_t smallest,
                              uint32_t largest) {
  const json* value = node_->find(key);
  if (value == nullptr) return fallback;
  if (!is_u32(*value) || value->get<uint32_t>() < smallest || value->get<uint32_t>() > largest) {
    fail(ErrorCode::invalid_argument, key,
         fmt::format("is {}; a whole number from {} to {} would do", written(key), smallest, largest));
    return fallback;
  }
  return value->get<uint32_t>();
}

double ConfigReader::number(const std::string& key) {
  if (!has(key)) fail(ErrorCode::invalid_argument, key, "is missing, and the family has no default for it");
  return number_or(key, 1.0);
}

double ConfigReader::number_or(const std::string& key, double fallback) {
  const json* value = node_->find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>()) ||
      std::abs(value->get<double>()) > std::numeric_limits<float>::max()) {
    fail(ErrorCode::invalid_argument, key, fmt::format("is {}; a finite number would do", written(key)));
    return fallback;
  }
  return value->get<double>();
}

double ConfigReader::positive_or(const std::string& key, double fallback) {
  const double value = number_or(key, fallback);
  if (value > 0) return value;
  fail(ErrorCode::invalid_argument, key, fmt::format("is {}; a number above 0 would do", written(key)));
  return fallback;
}

bool ConfigReader::boolean_or(const std::string& key, bool fallback) {
  const json* value = node_->find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    fail(ErrorCode::invalid_argument, key, fmt::format("is {}; true or false would do", written(key)));
    return fallback;
  }
  return value->get<bool>();
}

std::string ConfigReader::text_or(const std::string& key, const std::string& fallback) {
  const json* value = node_->find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    fail(ErrorCode::invalid_argument, key, fmt::format("is {}; a text would do", written(key)));
    return fallback;
  }
  return value->get<std::string>();
}

std::vector<std::string> ConfigReader::texts(const std::string& key) {
  std::vector<std::string> list;
  const json* value = node_->find(key);
  if (value == nullptr) return list;
  bool good = value->is_array();
  if (good) {
    for (const json& item : *value) {
      good = good && item.is_string();
      if (good) list.push_back(item.get<std::string>());
    }
  }
  if (!good)
    fail(ErrorCode::invalid_argument, key, fmt::format("is {}; a list of texts would do", written(key)));
  return list;
}

std::vector<uint32_t> ConfigReader::u32_list(const std::string& key) {
  std::vector<uint32_t> list;
  const json* value = node_->find(key);
  if (value == nullptr) return list;
  if (is_u32(*value)) return {value->get<uint32_t>()};
  bool good = value->is_array();
  if (good) {
    for (const json& item : *value) {
      good = good && is_u32(item);
      if (good) list.push_back(item.get<uint32_t>());
    }
  }
  if (!good) {
    fail(ErrorCode::invalid_argument, key, fmt::format("is {}; whole numbers from 0 would do", written(key)));
  }
  return list;
}

ConfigReader ConfigReader::object(const std::string& key) {
  ConfigReader reader;
  reader.sink_ = sink_;
  reader.prefix_ = prefix_ + key + ".";
  auto node = std::make_shared<Node>();
  if (const json* value = node_->find(key); value != nullptr) {
    if (value->is_object()) {
      node->object = *value;
    } else {
      fail(ErrorCode::invalid_argument, key, fmt::format("is {}; an object would do", written(key)));
    }
  }
  reader.node_ = std::move(node);
  return reader;
}

void ConfigReader::require_false(const std::string& key, const std::string& why) {
  if (boolean_or(key, false)) fail(ErrorCode::unsupported, key, "is true; " + why);
}

}  // namespace tandem
