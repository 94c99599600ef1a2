#include "serving/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tokenizer/unicode.h"

namespace tandem::jinja {

void Text::append(const Text& other) {
  const size_t base = bytes.size();
  bytes += other.bytes;
  for (const TextRange& range : other.input) {
    if (!input.empty() && input.back().end == base + range.begin) {
      input.back().end = base + range.end;
    } else {
      input.push_back({base + range.begin, base + range.end});
    }
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text out{bytes.substr(begin, end - begin), {}};
  for (const TextRange& range : input) {
    const size_t from = std::max(range.begin, begin);
    const size_t to = std::min(range.end, end);
    if (from < to) out.input.push_back({from - begin, to - begin});
  }
  return out;
}

Text Text::derived(std::string text, const Text& from) {
  Text out{std::move(text), {}};
  if (!from.input.empty() && !out.bytes.empty()) out.input.push_back({0, out.bytes.size()});
  return out;
}

Value Value::input(std::string text) {
  Text out{std::move(text), {}};
  if (!out.bytes.empty()) out.input.push_back({0, out.bytes.size()});
  return out;
}

namespace {

Status admit(const Value& item, int& depth, uint64_t& weight) {
  if (item.space() != nullptr) {
    return make_error(ErrorCode::unsupported, "a namespace inside another value is not supported");
  }
  depth = std::max(depth, item.depth() + 1);
  if (depth > kMaxValueDepth) {
    return make_error(ErrorCode::out_of_range, fmt::format("a value nests deeper than {}", kMaxValueDepth));
  }
  weight += item.weight();
  if (weight > kMaxValueWeight)
    return make_error(ErrorCode::out_of_range, "a list or dict becomes too large");
  return {};
}

}  // namespace

Result<Value> Value::list(std::vector<Value> items, bool tuple) {
  List out{std::move(items), tuple, 1, 1};
  for (const Value& item : out.items) TANDEM_TRY(admit(item, out.depth, out.weight));
  Value value;
  value.data_ = std::make_shared<const List>(std::move(out));
  return value;
}

Result<Value> Value::map(std::vector<std::pair<Value, Value>> entries) {
  Map out{std::move(entries), 1, 1};
  for (const auto& [key, item] : out.entries) {
    TANDEM_TRY(admit(item, out.depth, out.weight));
    out.weight += key.weight();
    if (key.list() != nullptr || key.map() != nullptr || key.space() != nullptr) {
      return make_error(ErrorCode::unsupported,
                        fmt::format("a {} as a key is not supported", key.type_name()));
    }
  }
  Value value;
  value.data_ = std::make_shared<const Map>(std::move(out));
  return value;
}

int Value::depth() const {
  return list() != nullptr ? list()->depth : map() != nullptr ? map()->depth : 0;
}

uint64_t Value::weight() const {
  if (text() != nullptr) return 1 + text()->bytes.size() / 16;
  return list() != nullptr ? list()->weight : map() != nullptr ? map()->weight : 1;
}

uint64_t comparison_cost(const Value& a, const Value& b) {
  // Entries of two dicts are looked for one in the other.
  const bool containers =
      (a.list() != nullptr || a.map() != nullptr) && (b.list() != nullptr || b.map() != nullptr);
  return containers ? a.weight() * b.weight() : std::min(a.weight(), b.weight());
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (text() != nullptr) return !text()->bytes.empty();
  if (list() != nullptr) return !list()->items.empty();
  if (map() != nullptr) return !map()->entries.empty();
  return true;
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "None";
  if (is_boolean()) return "bool";
  if (is_integer()) return "int";
  if (is_float()) return "float";
  if (text() != nullptr) return "str";
  if (list() != nullptr) return list()->tuple ? "tuple" : "list";
  if (map() != nullptr) return "dict";
  if (space() != nullptr) return "namespace";
  return macro() != nullptr ? "macro" : "function";
}

const Value* Value::find(std::string_view key) const {
  if (map() == nullptr) return nullptr;
  for (const auto& [name, item] : map()->entries) {
    if (name.text() != nullptr && name.text()->bytes == key) return &item;
  }
  return nullptr;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes == b.text()->bytes;
  if (a.list() != nullptr && b.list() != nullptr) {
    return a.list()->tuple == b.list()->tuple &&
           std::equal(a.list()->items.begin(), a.list()->items.end(), b.list()->items.begin(),
                      b.list()->items.end(), equal);
  }
  if (a.map() != nullptr && b.map() != nullptr) {
    const auto& left = a.map()->entries;
    const auto& right = b.map()->entries;
    return left.size() == right.size() && std::all_of(left.begin(), left.end(), [&](const auto& entry) {
             return std::any_of(right.begin(), right.end(), [&](const auto& other) {
               return equal(entry.first, other.first) && equal(entry.second, other.second);
             });
           });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

Result<bool> less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_float() && !b.is_float()) return a.integer() < b.integer();
    return a.number() < b.number();
  }
  if (a.text() != nullptr && b.text() != nullptr)
    return a.text()->bytes < b.text()->bytes;  // UTF-8 keeps the order
  if (a.list() != nullptr && b.list() != nullptr) {
    const auto& left = a.list()->items;
    const auto& right = b.list()->items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i])) return less(left[i], right[i]);
    }
    return left.size() < right.size();
  }
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("{} and {} have no order", a.type_name(), b.type_name()));
}

namespace {

// Python's repr of a float: the shortest digits that read back the same, exponents outside [1e-4, 1e16).
std::string float_repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const double magnitude = std::fabs(number);
  const bool plain = number == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string out(buffer, end.ptr);
  if (plain && out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string scalar_text(const Value& value) {
  if (value.is_none()) return "None";
  if (value.is_boolean()) return value.boolean() ? "True" : "False";
  if (value.is_integer()) return std::to_string(value.integer());
  if (value.is_float()) return float_repr(value.number());
  return fmt::format("<{}>", value.type_name());
}

// Not printable in Python's sense: escaped by repr.
bool escaped_by_repr(char32_t c) {
  if (c == U' ') return false;
  switch (general_category(c)) {
    case Category::Cc:
    case Category::Cf:
    case Category::Cn:
    case Category::Co:
    case Category::Zl:
    case Category::Zp:
    case Category::Zs:
      return true;
    default:
      return false;
  }
}

// Appends one character of a string, marked like the original.
void append_piece(Text& out, std::string_view piece, const Text& from, size_t begin, size_t end) {
  const bool marked = std::any_of(from.input.begin(), from.input.end(), [&](const TextRange& range) {
    return range.begin < end && begin < range.end;
  });
  out.append(marked ? Text::derived(std::string(piece), Text{"x", {{0, 1}}}) : Text{std::string(piece), {}});
}

Text string_repr(const Text& text) {
  const bool use_double =
      text.bytes.find('\'') != std::string::npos && text.bytes.find('"') == std::string::npos;
  const char quote = use_double ? '"' : '\'';
  Text out{std::string(1, quote), {}};
  for (size_t offset = 0; offset < text.bytes.size();) {
    const size_t begin = offset;
    const char32_t c = next_codepoint(text.bytes, offset);
    std::string piece = text.bytes.substr(begin, offset - begin);
    if (c == '\n') {
      piece = "\\n";
    } else if (c == '\r') {
      piece = "\\r";
    } else if (c == '\t') {
      piece = "\\t";
    } else if (c == '\\' || c == static_cast<char32_t>(quote)) {
      piece.insert(0, 1, '\\');
    } else if (escaped_by_repr(c)) {
      const auto code = static_cast<uint32_t>(c);
      piece = code < 0x100     ? fmt::format("\\x{:02x}", code)
              : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                               : fmt::format("\\U{:08x}", code);
    }
    append_piece(out, piece, text, begin, offset);
  }
  out.append(std::string_view(&quote, 1));
  return out;
}

}  // namespace

Text to_text(const Value& value) {
  if (value.text() != nullptr) return *value.text();
  if (value.is_undefined()) return {};
  return to_repr(value);
}

Text to_repr(const Value& value) {
  Text out;
  if (value.text() != nullptr) return string_repr(*value.text());
  if (value.list() != nullptr) {
    const List& list = *value.list();
    out.append(list.tuple ? "(" : "[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out.append(", ");
      out.append(to_repr(list.items[i]));
    }
    if (list.tuple && list.items.size() == 1) out.append(",");
    out.append(list.tuple ? ")" : "]");
    return out;
  }
  if (value.map() != nullptr) {
    out.append("{");
    bool first = true;
    for (const auto& [key, item] : value.map()->entries) {
      if (!first) out.append(", ");
      first = false;
      out.append(to_repr(key));
      out.append(": ");
      out.append(to_repr(item));
    }
    out.append("}");
    return out;
  }
  if (value.is_undefined()) return {"Undefined", {}};
  return {scalar_text(value), {}};
}

namespace {

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  Status write(const Value& value, int level) {
    if (value.text() != nullptr) {
      write_string(*value.text());
    } else if (value.is_none()) {
      out_.append("null");
    } else if (value.is_boolean()) {
      out_.append(value.boolean() ? "true" : "false");
    } else if (value.is_float() && std::isnan(value.number())) {
      out_.append("NaN");
    } else if (value.is_float() && std::isinf(value.number())) {
      out_.append(value.number() < 0 ? "-Infinity" : "Infinity");
    } else if (value.is_number()) {
      out_.append(scalar_text(value));
    } else if (value.list() != nullptr) {
      return write_list(*value.list(), level);
    } else if (value.map() != nullptr) {
      return write_map(*value.map(), level);
    } else {
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("a value of type {} has no JSON", value.type_name()));
    }
    return {};
  }

  Text take() { return std::move(out_); }

 private:
  void new_line(int level) {
    if (style_.indent < 0) return;
    out_.append("\n");
    out_.append(std::string(static_cast<size_t>(style_.indent) * static_cast<size_t>(level), ' '));
  }

  Status write_list(const List& list, int level) {
    out_.append("[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line(level + 1);
      TANDEM_TRY(write(list.items[i], level + 1));
    }
    if (!list.items.empty()) new_line(level);
    out_.append("]");
    return {};
  }

  Status write_map(const Map& map, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    entries.reserve(map.entries.size());
    for (const auto& entry : map.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      for (const auto* entry : entries) {
        if (entry->first.text() == nullptr) {
          return make_error(ErrorCode::unsupported,
                            "sort_keys with keys that are not strings is not supported");
        }
      }
      std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
        return a->first.text()->bytes < b->first.text()->bytes;
      });
    }
    out_.append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line(level + 1);
      const Value& key = entries[i]->first;
      if (key.text() != nullptr) {
        write_string(*key.text());
      } else {
        // json.dumps writes other scalar keys as strings of their JSON.
        out_.append("\"");
        TANDEM_TRY(write(key, level));
        out_.append("\"");
      }
      out_.append(style_.key_separator);
      TANDEM_TRY(write(entries[i]->second, level + 1));
    }
    if (!entries.empty()) new_line(level);
    out_.append("}");
    return {};
  }

  void write_string(const Text& text) {
    out_.append("\"");
    // Stretches that need no escape are copied at once.
    size_t copied = 0;
    for (size_t offset = 0; offset < text.bytes.size();) {
      const size_t begin = offset;
      const char32_t c = next_codepoint(text.bytes, offset);
      const std::string escape = escape_of(c);
      if (escape.empty()) continue;
      out_.append(text.slice(copied, begin));
      append_piece(out_, escape, text, begin, offset);
      copied = offset;
    }
    out_.append(copied == 0 ? text : text.slice(copied, text.bytes.size()));
    out_.append("\"");
  }

  std::string escape_of(char32_t c) const {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    const auto code = static_cast<uint32_t>(c);
    if (code < 0x20 || (style_.ensure_ascii && code >= 0x7F && code < 0x10000 && code != 0x7F)) {
      return fmt::format("\\u{:04x}", code);
    }
    if (style_.ensure_ascii && code >= 0x10000) {
      return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                         0xDC00 + ((code - 0x10000) & 0x3FF));
    }
    return {};
  }

  const JsonStyle& style_;
  Text out_;
};

}  // namespace

Result<Text> to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  TANDEM_TRY(writer.write(value, 0));
  return writer.take();
}

}  // namespace tandem::jinja
