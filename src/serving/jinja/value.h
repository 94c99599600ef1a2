// Values of the Jinja subset: what templates compute with. Immutable but for Namespace; copying is cheap
// (shared).
//
// Every string remembers which of its bytes came from the request (messages, tools, extra variables) rather
// than from the template, so that the tokenizer can keep a user's words from becoming control tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace tandem::jinja {

struct Node;  // ast.h
class Value;

struct Text {
  std::string bytes;             // well-formed UTF-8
  std::vector<TextRange> input;  // bytes from the request: ascending, disjoint, not empty

  void append(std::string_view template_text) { bytes += template_text; }
  void append(const Text& other);
  Text slice(size_t begin, size_t end) const;  // bytes
  // `text` with all of it marked as input if any of `from` is: for operations that do not keep positions.
  static Text derived(std::string text, const Text& from);
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;        // 1 + the depth of the deepest container inside
  uint64_t weight = 1;  // about what it costs to walk through it, counting shared parts each time
};

struct Map {
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion; keys differ
  int depth = 1;
  uint64_t weight = 1;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> entries;
};

struct Undefined {
  std::string name;
  bool operator==(const Undefined&) const { return true; }
};
struct None {
  bool operator==(const None&) const { return true; }
};

// A global of the environment that is called: range, namespace, raise_exception, ...
struct Function {
  std::string name;
};

struct Macro {
  const Node* node;  // owned by the template
};

// No value nests deeper: bounds every recursion over values.
inline constexpr int kMaxValueDepth = 64;
// No value is heavier: a list that holds a list twice, and so on, would be exponentially long when written
// out.
inline constexpr uint64_t kMaxValueWeight = 20'000'000;

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(None none) : data_(none) {}
  Value(bool boolean) : data_(boolean) {}
  Value(int64_t integer) : data_(integer) {}
  Value(double number) : data_(number) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(std::string_view template_text) : Value(Text{std::string(template_text), {}}) {}
  Value(const char* template_text) : Value(std::string_view(template_text)) {}
  Value(std::shared_ptr<Namespace> space) : data_(std::move(space)) {}
  Value(Function function) : data_(std::make_shared<const Function>(std::move(function))) {}
  Value(Macro macro) : data_(macro) {}

  // Containers. Errors: `out_of_range` beyond kMaxValueDepth and kMaxValueWeight, `unsupported` for a
  // namespace inside (it could hold itself).
  static Result<Value> list(std::vector<Value> items, bool tuple = false);
  static Result<Value> map(std::vector<std::pair<Value, Value>> entries);
  // A string all of whose bytes come from the request.
  static Value input(std::string text);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_boolean() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(data_); }  // not booleans
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_boolean() || is_integer() || is_float(); }

  const Text* text() const { return pointer<Text>(); }
  const List* list() const { return pointer<List>(); }
  const Map* map() const { return pointer<Map>(); }
  const Function* function() const { return pointer<Function>(); }
  const Macro* macro() const { return std::get_if<Macro>(&data_); }
  Namespace* space() const {
    const auto* held = std::get_if<std::shared_ptr<Namespace>>(&data_);
    return held != nullptr ? held->get() : nullptr;
  }
  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  bool boolean() const { return std::get<bool>(data_); }
  // Of a boolean or an integer.
  int64_t integer() const {
    return is_boolean() ? static_cast<int64_t>(boolean()) : std::get<int64_t>(data_);
  }
  // Of any number.
  double number() const { return is_float() ? std::get<double>(data_) : static_cast<double>(integer()); }

  bool truthy() const;
  // "str", "int", "dict", ... as Python calls it, for errors.
  std::string_view type_name() const;
  // A member of a map by a string key, or undefined.
  const Value* find(std::string_view key) const;
  int depth() const;
  uint64_t weight() const;

 private:
  template <class T>
  const T* pointer() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&data_);
    return held != nullptr ? held->get() : nullptr;
  }

  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<const Map>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Function>, Macro>
      data_;
};

// Python's ==. Functions, macros and namespaces equal nothing.
bool equal(const Value& a, const Value& b);
// A bound of the steps that `equal` and `less` take.
uint64_t comparison_cost(const Value& a, const Value& b);
// Python's < : an error that names both types when there is no order.
Result<bool> less(const Value& a, const Value& b);

// Python's str() and repr().
Text to_text(const Value& value);
Text to_repr(const Value& value);

struct JsonStyle {
  int indent = -1;  // spaces a level; -1: one line
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// json.dumps. Error: names the type that has no JSON.
Result<Text> to_json(const Value& value, const JsonStyle& style);

// A JSON document as a value; all of its strings are input. Errors: `invalid_argument`.
Result<Value> from_json(std::string_view json);

}  // namespace tandem::jinja
