#include "grammar/json_schema.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grammar/json_formats.h"
#include "grammar/json_integers.h"
#include "grammar/json_text.h"
#include "grammar/regex_grammar.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;  // properties keep their order
using E = GrammarExpression;

constexpr size_t kMaxSchemaBytes = 1 << 20;
constexpr int kMaxNesting = 64;  // bounds the stack of this reader; recursion in data goes through $ref
// Of the document, whatever is in it: bounds what is written out again (const, enum). parse_body of the
// server allows as much.
constexpr int kMaxDocumentDepth = 128;
// Of a property beside additionalProperties, which exclude it character by character.
constexpr size_t kMaxNameBytes = 1000;
// A repetition is a state for each time; longer texts and arrays are what no limit means in practice.
constexpr int64_t kMaxCount = 1 << 16;

// Assertions that are not read.
constexpr std::array kRefused = {"not",
                                 "if",
                                 "then",
                                 "else",
                                 "dependentRequired",
                                 "dependentSchemas",
                                 "dependencies",
                                 "patternProperties",
                                 "propertyNames",
                                 "minProperties",
                                 "maxProperties",
                                 "unevaluatedProperties",
                                 "unevaluatedItems",
                                 "contains",
                                 "minContains",
                                 "maxContains",
                                 "multipleOf",
                                 "$dynamicRef",
                                 "$recursiveRef"};
// Keywords that stand beside others without asserting anything.
constexpr std::array kAnnotations = {"title",      "description", "default",     "examples",      "example",
                                     "deprecated", "readOnly",    "writeOnly",   "$schema",       "$id",
                                     "$comment",   "$defs",       "definitions", "discriminator", "$anchor"};

bool is_one_of(std::string_view name, const auto& names) {
  return std::ranges::find(names, name) != names.end();
}

class SchemaReader {
 public:
  explicit SchemaReader(const Json& document) : document_(document), json_(rules_) {}

  Result<GrammarRules> read() {
    rules_.add("root");
    TANDEM_ASSIGN(E root, any(document_, "#", 0));
    rules_.rules[0].expression = std::move(root);
    return std::move(rules_);
  }

 private:
  std::unexpected<Error> bad(std::string_view path, std::string_view what) const {
    return make_error(ErrorCode::invalid_argument, fmt::format("JSON schema at {}: {}", path, what));
  }
  std::unexpected<Error> refuse(std::string_view path, std::string_view what) const {
    return make_error(ErrorCode::unsupported, fmt::format("JSON schema at {}: {}", path, what));
  }

  Result<E> any(const Json& schema, const std::string& path, int depth) {
    if (depth > kMaxNesting)
      return refuse(path, fmt::format("nesting deeper than {}; use $ref", kMaxNesting));
    if (schema.is_boolean()) {
      if (schema.get<bool>()) return json_.value();
      return bad(path, "false allows no value; leave the property out");
    }
    if (!schema.is_object())
      return bad(path, fmt::format("{} is not a schema; it must be an object", schema.dump()));
    for (const auto& [name, value] : schema.items()) {
      if (is_one_of(name, kRefused) || (name == "uniqueItems" && value != false)) {
        return refuse(
            path,
            fmt::format("the keyword \"{}\" is not supported; leave it out and check the answer", name));
      }
    }
    if (const auto nullable = schema.find("nullable"); nullable != schema.end() && *nullable == true) {
      Json inner = schema;
      inner.erase("nullable");
      TANDEM_ASSIGN(E value, any(inner, path, depth + 1));
      return E::choice({std::move(value), json_.null()});
    }
    for (const char* name : {"$ref", "anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(name)) continue;
      TANDEM_TRY(stands_alone(schema, name, path));
      if (std::string_view(name) == "$ref") return reference(schema[name], path, depth);
      if (std::string_view(name) == "allOf") return all_of(schema[name], path, depth);
      return any_of(schema[name], fmt::format("{}/{}", path, name), depth);
    }
    if (const auto value = schema.find("const"); value != schema.end()) return E::literal(value->dump());
    if (const auto values = schema.find("enum"); values != schema.end()) {
      if (!values->is_array() || values->empty())
        return bad(path, "enum must be a list of at least one value");
      std::vector<E> options;
      for (const Json& value : *values) options.push_back(E::literal(value.dump()));
      return E::choice(std::move(options));
    }
    return by_type(schema, path, depth);
  }

  Status stands_alone(const Json& schema, std::string_view keyword, const std::string& path) const {
    for (const auto& [name, value] : schema.items()) {
      if (name == keyword || is_one_of(name, kAnnotations)) continue;
      // A type beside anyOf says what its branches say again.
      if (name == "type" && keyword != "$ref") continue;
      return refuse(
          path, fmt::format("\"{}\" beside \"{}\" is not supported; move it into the schemas of \"{}\"", name,
                            keyword, keyword));
    }
    return {};
  }

  Result<E> any_of(const Json& schemas, const std::string& path, int depth) {
    if (!schemas.is_array() || schemas.empty()) return bad(path, "it must be a list of at least one schema");
    std::vector<E> options;
    for (size_t i = 0; i < schemas.size(); ++i) {
      TANDEM_ASSIGN(E option, any(schemas[i], fmt::format("{}/{}", path, i), depth + 1));
      options.push_back(std::move(option));
    }
    return E::choice(std::move(options));
  }

  Result<const Json*> target_of(const Json& reference, const std::string& path) const {
    if (!reference.is_string()) return bad(path, "$ref must be a string");
    const auto& text = reference.get_ref<const std::string&>();
    if (!text.starts_with('#')) {
      return refuse(path, fmt::format("$ref \"{}\" leaves the document; only \"#/...\" is followed", text));
    }
    try {
      return &document_.at(Json::json_pointer(text.substr(1)));
    } catch (const Json::exception&) {
      return bad(path, fmt::format("$ref \"{}\" leads nowhere", text));
    }
  }

  Result<E> reference(const Json& value, const std::string& path, int depth) {
    TANDEM_ASSIGN(const Json* target, target_of(value, path));
    const auto& text = value.get_ref<const std::string&>();
    const auto [at, is_new] = references_.try_emplace(text, static_cast<uint32_t>(rules_.rules.size()));
    const uint32_t number = at->second;
    if (is_new) {
      rules_.add(text);
      TANDEM_ASSIGN(E expression, any(*target, text, depth + 1));
      rules_.rules[number].expression = std::move(expression);
    }
    return E::call(number);
  }

  // Objects of several parts, as inheritance is written: their properties together.
  Result<E> all_of(const Json& schemas, const std::string& path, int depth) {
    if (!schemas.is_array() || schemas.empty())
      return bad(path, "allOf must be a list of at least one schema");
    if (schemas.size() == 1) return any(schemas[0], path + "/allOf/0", depth + 1);
    Json merged = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    for (const Json& part : schemas) {
      const Json* schema = &part;
      if (part.is_object() && part.contains("$ref")) {
        TANDEM_ASSIGN(schema, target_of(part["$ref"], path));
      }
      if (!schema->is_object()) return bad(path, "allOf must be a list of schemas");
      for (const auto& [name, value] : schema->items()) {
        if (is_one_of(name, kAnnotations) || (name == "type" && value == "object")) continue;
        if (name == "properties" && value.is_object()) {
          for (const auto& [property, property_schema] : value.items()) {
            Json& into = merged["properties"][property];
            if (!into.is_null() && into != property_schema) {
              return refuse(
                  path,
                  fmt::format("allOf with two schemas for \"{}\" is not supported; merge them", property));
            }
            into = property_schema;
          }
        } else if (name == "required" && value.is_array()) {
          for (const Json& required : value) merged["required"].push_back(required);
        } else if (name == "additionalProperties" && (!merged.contains(name) || merged[name] == value)) {
          merged[name] = value;
        } else {
          return refuse(
              path, fmt::format("\"{}\" inside allOf is not supported; merge the schemas into one", name));
        }
      }
    }
    return any(merged, path + "/allOf", depth + 1);
  }

  Result<E> by_type(const Json& schema, const std::string& path, int depth) {
    std::vector<std::string> types;
    if (const auto type = schema.find("type"); type != schema.end()) {
      for (const Json& name : type->is_array() ? *type : Json::array({*type})) {
        if (!name.is_string())
          return bad(path, fmt::format("type is {}; it must be a name or a list of names", type->dump()));
        types.push_back(name.get<std::string>());
      }
      if (types.empty()) return bad(path, "type is an empty list");
    } else {
      types.push_back(guess_type(schema));
    }
    std::vector<E> options;
    for (const std::string& type : types) {
      TANDEM_ASSIGN(E option, of_type(type, schema, path, depth));
      options.push_back(std::move(option));
    }
    return options.size() == 1 ? std::move(options[0]) : E::choice(std::move(options));
  }

  static std::string guess_type(const Json& schema) {
    struct Hint {
      const char* keyword;
      const char* type;
    };
    constexpr std::array kHints = {Hint{"properties", "object"},
                                   Hint{"required", "object"},
                                   Hint{"additionalProperties", "object"},
                                   Hint{"items", "array"},
                                   Hint{"prefixItems", "array"},
                                   Hint{"minItems", "array"},
                                   Hint{"maxItems", "array"},
                                   Hint{"pattern", "string"},
                                   Hint{"format", "string"},
                                   Hint{"minLength", "string"},
                                   Hint{"maxLength", "string"},
                                   Hint{"minimum", "number"},
                                   Hint{"maximum", "number"},
                                   Hint{"exclusiveMinimum", "number"},
                                   Hint{"exclusiveMaximum", "number"}};
    for (const Hint& hint : kHints) {
      if (schema.contains(hint.keyword)) return hint.type;
    }
    return "any";
  }

  Result<E> of_type(const std::string& type, const Json& schema, const std::string& path, int depth) {
    if (type == "object") return object(schema, path, depth);
    if (type == "array") return array(schema, path, depth);
    if (type == "string") return string(schema, path);
    if (type == "integer") return integer(schema, path);
    if (type == "number") return number(schema, path);
    if (type == "boolean") return json_.boolean();
    if (type == "null") return json_.null();
    if (type == "any") return json_.value();
    return bad(path, fmt::format("unknown type \"{}\"", type));
  }

  Result<std::optional<uint32_t>> count(const Json& schema, const char* keyword,
                                        const std::string& path) const {
    const auto value = schema.find(keyword);
    if (value == schema.end()) return std::nullopt;
    if (!value->is_number_integer() || value->get<int64_t>() < 0 || value->get<int64_t>() > kMaxCount) {
      return bad(path,
                 fmt::format("{} is {}; it must be an integer in 0..{}", keyword, value->dump(), kMaxCount));
    }
    return value->get<uint32_t>();
  }
  struct Counts {
    uint32_t min = 0, max = E::kUnbounded;
  };
  Result<Counts> counts(const Json& schema, const char* min, const char* max, const std::string& path) const {
    TANDEM_ASSIGN(const auto low, count(schema, min, path));
    TANDEM_ASSIGN(const auto high, count(schema, max, path));
    const Counts out{low.value_or(0), high.value_or(E::kUnbounded)};
    if (out.min > out.max) return bad(path, fmt::format("{} is above {}", min, max));
    return out;
  }

  Result<E> object(const Json& schema, const std::string& path, int depth);
  Result<E> array(const Json& schema, const std::string& path, int depth);
  Result<E> string(const Json& schema, const std::string& path);

  Result<E> number(const Json& schema, const std::string& path) {
    for (const char* bound : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      if (schema.contains(bound)) {
        return refuse(
            path,
            fmt::format("\"{}\" of a number is not supported; use an integer, or check the answer", bound));
      }
    }
    return json_.number();
  }

  Result<std::optional<int64_t>> bound(const Json& schema, const char* keyword,
                                       const std::string& path) const {
    const auto value = schema.find(keyword);
    if (value == schema.end()) return std::nullopt;
    const bool fits =
        value->is_number_integer() &&
        !(value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
    // A bound like 10.0 is an integer too.
    const bool is_whole =
        value->is_number_float() &&
        value->get<double>() ==
            static_cast<double>(static_cast<int64_t>(std::clamp(value->get<double>(), -1e15, 1e15)));
    if (!fits && !is_whole)
      return bad(path, fmt::format("{} is {}; it must be an integer", keyword, value->dump()));
    return is_whole ? static_cast<int64_t>(value->get<double>()) : value->get<int64_t>();
  }

  Result<E> integer(const Json& schema, const std::string& path) {
    TANDEM_ASSIGN(auto min, bound(schema, "minimum", path));
    TANDEM_ASSIGN(auto max, bound(schema, "maximum", path));
    TANDEM_ASSIGN(const auto above, bound(schema, "exclusiveMinimum", path));
    TANDEM_ASSIGN(const auto below, bound(schema, "exclusiveMaximum", path));
    if (above) min = std::max(min.value_or(INT64_MIN), *above == INT64_MAX ? *above : *above + 1);
    if (below) max = std::min(max.value_or(INT64_MAX), *below == INT64_MIN ? *below : *below - 1);
    if (!min && !max) return json_.integer();
    if (min.value_or(INT64_MIN) > max.value_or(INT64_MAX))
      return bad(path, "no integer lies within the bounds");
    return integers_between(min, max);
  }

  const Json& document_;
  GrammarRules rules_;
  JsonText json_;
  std::map<std::string, uint32_t> references_;
};

Result<E> SchemaReader::string(const Json& schema, const std::string& path) {
  TANDEM_ASSIGN(const Counts length, counts(schema, "minLength", "maxLength", path));
  const bool has_length = length.min > 0 || length.max != E::kUnbounded;
  std::string pattern;
  RegexMatch match = RegexMatch::inside;
  if (const auto value = schema.find("pattern"); value != schema.end()) {
    if (!value->is_string())
      return bad(path, fmt::format("pattern is {}; it must be a string", value->dump()));
    pattern = value->get<std::string>();
  } else if (const auto format = schema.find("format"); format != schema.end()) {
    const auto known = json_format_pattern(format->is_string() ? format->get<std::string>() : format->dump());
    if (!known) {
      return refuse(
          path, fmt::format("format {} is not supported; it may be {}", format->dump(), json_format_names()));
    }
    pattern = *known;
    match = RegexMatch::whole;
  } else {
    if (!has_length) return json_.string();
    return E::sequence(
        {E::literal("\""), E::repeat(json_.character(), length.min, length.max), E::literal("\"")});
  }
  if (has_length)
    return refuse(path, "a length beside a pattern or format is not supported; put it into the pattern");
  auto expression = regex_grammar(pattern, match, E::range(0, 0x10FFFF));
  if (!expression)
    return make_error(expression.error().code,
                      fmt::format("JSON schema at {}: {}", path, expression.error().message));
  return E::sequence({E::literal("\""), escaped_for_json(*expression), E::literal("\"")});
}

Result<E> SchemaReader::array(const Json& schema, const std::string& path, int depth) {
  TANDEM_ASSIGN(const Counts length, counts(schema, "minItems", "maxItems", path));
  E item = json_.value();
  bool has_items = true;
  if (const auto items = schema.find("items"); items != schema.end()) {
    has_items = *items != false;
    if (has_items) {
      TANDEM_ASSIGN(item, any(*items, path + "/items", depth + 1));
    }
  }
  std::vector<E> prefix;
  if (const auto items = schema.find("prefixItems"); items != schema.end()) {
    if (!items->is_array()) return bad(path, "prefixItems must be a list of schemas");
    for (size_t i = 0; i < items->size() && i < length.max; ++i) {
      TANDEM_ASSIGN(E element, any((*items)[i], fmt::format("{}/prefixItems/{}", path, i), depth + 1));
      prefix.push_back(std::move(element));
    }
  }
  const auto fixed = static_cast<uint32_t>(prefix.size());
  if (!has_items && length.min > fixed)
    return bad(path, "minItems asks for more items than there are schemas for");
  if (prefix.empty()) return json_.list("[", std::move(item), length.min, has_items ? length.max : 0, "]");

  // From the last element to the first: what may follow the element before.
  const auto after_comma = [this](E element) {
    return E::sequence({E::literal(","), json_.space(), std::move(element)});
  };
  E rest = E::sequence({});
  if (has_items && length.max > fixed) {
    rest = E::repeat(after_comma(std::move(item)), length.min > fixed ? length.min - fixed : 0,
                     length.max == E::kUnbounded ? length.max : length.max - fixed);
  }
  for (uint32_t i = fixed; i-- > 0;) {
    E element =
        i == 0 ? E::sequence({json_.space(), std::move(prefix[i])}) : after_comma(std::move(prefix[i]));
    rest = E::sequence({std::move(element), std::move(rest)});
    if (i >= length.min) rest = E::optional(std::move(rest));
  }
  return E::sequence({E::literal("["), std::move(rest), json_.space(), E::literal("]")});
}

Result<E> SchemaReader::object(const Json& schema, const std::string& path, int depth) {
  struct Property {
    uint32_t rule;
    bool required = false;
  };
  std::vector<Property> properties;
  std::vector<std::string> names;
  const auto add = [&](const std::string& name, E value) {
    names.push_back(name);
    E member = json_.member(E::literal(Json(name).dump()), std::move(value));
    properties.push_back({rules_.add(fmt::format("{}/properties/{}", path, name), std::move(member))});
  };
  const auto declared = schema.find("properties");
  if (declared != schema.end()) {
    if (!declared->is_object()) return bad(path, "properties must be an object");
    for (const auto& [name, value] : declared->items()) {
      TANDEM_ASSIGN(E expression, any(value, fmt::format("{}/properties/{}", path, name), depth + 1));
      add(name, std::move(expression));
    }
  }
  // Absent: anything in an object that declares nothing, nothing else in one that does.
  std::optional<E> additional;
  const auto others = schema.find("additionalProperties");
  if (others == schema.end() ? properties.empty() : *others != false) {
    additional = json_.value();
    if (others != schema.end()) {
      TANDEM_ASSIGN(additional, any(*others, path + "/additionalProperties", depth + 1));
    }
  }
  if (const auto required = schema.find("required"); required != schema.end()) {
    if (!required->is_array()) return bad(path, "required must be a list of names");
    for (const Json& entry : *required) {
      if (!entry.is_string())
        return bad(path, fmt::format("required names {}, which is not a string", entry.dump()));
      const auto name = entry.get<std::string>();
      if (!is_one_of(name, names)) {
        if (!additional)
          return bad(path, fmt::format("required names \"{}\", which is not among the properties", name));
        add(name, *additional);
      }
      properties[static_cast<size_t>(std::ranges::find(names, name) - names.begin())].required = true;
    }
  }

  // Behind the last declared property: others. From there to the first, twice: what may come once something
  // has been written, and what may come when nothing has.
  E after = E::sequence({}), first = E::sequence({});
  const auto after_comma = [this](E member) {
    return E::sequence({E::literal(","), json_.space(), std::move(member)});
  };
  if (additional) {
    for (const std::string& name : names) {
      if (name.size() <= kMaxNameBytes) continue;
      return refuse(path,
                    fmt::format("a property whose name has {} bytes beside additionalProperties: at most {}",
                                name.size(), kMaxNameBytes));
    }
    const E member = json_.member(json_.string_except(names), std::move(*additional));
    after = E::repeat(after_comma(member), 0);
    first = E::optional(E::sequence({json_.space(), member, after}));
  }
  for (size_t i = properties.size(); i-- > 0;) {
    const E member = E::call(properties[i].rule);
    const E rest = E::call(rules_.add(fmt::format("{} after property {}", path, i), std::move(after)));
    E with = E::sequence({json_.space(), member, rest});
    first = properties[i].required ? std::move(with) : E::choice({std::move(with), std::move(first)});
    after = E::sequence({after_comma(member), rest});
    if (!properties[i].required) after = E::choice({std::move(after), rest});
  }
  return E::sequence({E::literal("{"), std::move(first), json_.space(), E::literal("}")});
}

}  // namespace

Result<GrammarRules> json_schema_grammar(std::string_view schema) {
  if (schema.size() > kMaxSchemaBytes) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("a JSON schema may have at most {} bytes", kMaxSchemaBytes));
  }
  bool too_deep = false;
  const auto look = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDocumentDepth;
    return !too_deep;
  };
  const Json document = Json::parse(schema, look, false);
  if (too_deep) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("the JSON schema nests deeper than {} levels", kMaxDocumentDepth));
  }
  if (document.is_discarded()) return make_error(ErrorCode::invalid_argument, "the JSON schema is not JSON");
  return SchemaReader(document).read();
}

GrammarRules json_object_grammar() {
  GrammarRules rules;
  rules.add("root");
  JsonText json(rules);
  E object = json.object();
  rules.rules[0].expression = std::move(object);
  return rules;
}

}  // namespace tandem
