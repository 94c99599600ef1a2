#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "grammar/json_schema_reader.h"

namespace tandem {
namespace {

using E = GrammarExpression;

constexpr size_t kMaxSchemaBytes = 1 << 20;
constexpr int kMaxNesting = 64;  // bounds the stack of this reader; recursion in data goes through $ref
// Of the document, whatever is in it: bounds what is written out again (const, enum), also of a schema that
// comes as a text inside a request.
constexpr int kMaxDocumentDepth = 128;

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

// What the types assert (json_schema_types.cc), but for "format", which tools write beside enumerations too.
constexpr std::array kTypeAssertions = {"properties",
                                        "required",
                                        "additionalProperties",
                                        "items",
                                        "prefixItems",
                                        "minItems",
                                        "maxItems",
                                        "pattern",
                                        "minLength",
                                        "maxLength",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum"};

bool has_type(const SchemaReader::Json& value, const SchemaReader::Json& type) {
  if (type == "number") return value.is_number();
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
  }
  return type == value.type_name();  // string, boolean, array, object, null
}

bool is_one_of(std::string_view name, const auto& names) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

Result<GrammarRules> SchemaReader::read() {
  rules_.add("root");
  TANDEM_ASSIGN(E root, any(document_, "#", 0));
  rules_.rules[0].expression = std::move(root);
  return std::move(rules_);
}

std::unexpected<Error> SchemaReader::bad(std::string_view path, std::string_view what) const {
  return make_error(ErrorCode::invalid_argument, fmt::format("JSON schema at {}: {}", path, what));
}

std::unexpected<Error> SchemaReader::refuse(std::string_view path, std::string_view what) const {
  return make_error(ErrorCode::unsupported, fmt::format("JSON schema at {}: {}", path, what));
}

Result<E> SchemaReader::any(const Json& schema, const std::string& path, int depth) {
  if (depth > kMaxNesting) return refuse(path, fmt::format("nesting deeper than {}; use $ref", kMaxNesting));
  if (schema.is_boolean()) {
    if (schema.get<bool>()) return json_.value();
    return bad(path, "false allows no value; leave the property out");
  }
  if (!schema.is_object())
    return bad(path, fmt::format("{} is not a schema; it must be an object", schema.dump()));
  for (const auto& [name, value] : schema.items()) {
    if (is_one_of(name, kRefused) || (name == "uniqueItems" && value != false)) {
      return refuse(
          path, fmt::format("the keyword \"{}\" is not supported; leave it out and check the answer", name));
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
  if (const auto value = schema.find("const"); value != schema.end())
    return one_of_values(schema, "const", Json::array({*value}), path);
  if (const auto values = schema.find("enum"); values != schema.end()) {
    if (!values->is_array() || values->empty()) return bad(path, "enum must be a list of at least one value");
    return one_of_values(schema, "enum", *values, path);
  }
  return by_type(schema, path, depth);
}

Result<E> SchemaReader::one_of_values(const Json& schema, std::string_view keyword, const Json& values,
                                      const std::string& path) const {
  for (const auto& [name, value] : schema.items()) {
    if (name == keyword || (!is_one_of(name, kTypeAssertions) && name != "enum")) continue;
    return refuse(path,
                  fmt::format("\"{}\" beside \"{}\" is not supported; leave it out, and the values that it "
                              "excludes",
                              name, keyword));
  }
  const Json type = schema.value("type", Json());
  const Json names = type.is_array() ? type : Json::array({type});
  std::vector<E> options;
  for (const Json& value : values) {
    const auto is_its_type = [&](const Json& name) { return has_type(value, name); };
    if (type.is_null() || std::ranges::any_of(names, is_its_type))
      options.push_back(E::literal(value.dump()));
  }
  if (options.empty()) return bad(path, fmt::format("no value of {} has the type {}", keyword, type.dump()));
  return E::choice(std::move(options));
}

Status SchemaReader::stands_alone(const Json& schema, std::string_view keyword,
                                  const std::string& path) const {
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

Result<E> SchemaReader::any_of(const Json& schemas, const std::string& path, int depth) {
  if (!schemas.is_array() || schemas.empty()) return bad(path, "it must be a list of at least one schema");
  std::vector<E> options;
  for (size_t i = 0; i < schemas.size(); ++i) {
    TANDEM_ASSIGN(E option, any(schemas[i], fmt::format("{}/{}", path, i), depth + 1));
    options.push_back(std::move(option));
  }
  return E::choice(std::move(options));
}

Result<const SchemaReader::Json*> SchemaReader::target_of(const Json& reference,
                                                          const std::string& path) const {
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

Result<E> SchemaReader::reference(const Json& value, const std::string& path, int depth) {
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
Result<E> SchemaReader::all_of(const Json& schemas, const std::string& path, int depth) {
  if (!schemas.is_array() || schemas.empty()) return bad(path, "allOf must be a list of at least one schema");
  if (schemas.size() == 1) return any(schemas[0], path + "/allOf/0", depth + 1);
  Json merged = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
  for (const Json& part : schemas) {
    const Json* schema = &part;
    if (part.is_object() && part.contains("$ref")) {
      TANDEM_TRY(stands_alone(part, "$ref", path));
      TANDEM_ASSIGN(schema, target_of(part["$ref"], path));
    }
    if (!schema->is_object()) return bad(path, "allOf must be a list of schemas");
    for (const auto& [name, value] : schema->items()) {
      if (is_one_of(name, kAnnotations) || (name == "type" && value == "object")) continue;
      if (name == "properties" && value.is_object()) {
        for (const auto& [property, property_schema] : value.items()) {
          Json& into = merged["properties"][property];
          if (!into.is_null() && into != property_schema) {
            return refuse(path, fmt::format("allOf with two schemas for \"{}\" is not supported; merge them",
                                            property));
          }
          into = property_schema;
        }
      } else if (name == "required" && value.is_array()) {
        for (const Json& required : value) merged["required"].push_back(required);
      } else if (name == "additionalProperties" && (!merged.contains(name) || merged[name] == value)) {
        merged[name] = value;
      } else {
        return refuse(path,
                      fmt::format("\"{}\" inside allOf is not supported; merge the schemas into one", name));
      }
    }
  }
  return any(merged, path + "/allOf", depth + 1);
}

Result<E> SchemaReader::by_type(const Json& schema, const std::string& path, int depth) {
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

std::string SchemaReader::guess_type(const Json& schema) {
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

Result<E> SchemaReader::of_type(const std::string& type, const Json& schema, const std::string& path,
                                int depth) {
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

Result<GrammarRules> json_schema_grammar(std::string_view schema) {
  if (schema.size() > kMaxSchemaBytes) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("a JSON schema may have at most {} bytes", kMaxSchemaBytes));
  }
  bool too_deep = false;
  const auto look = [&](int depth, SchemaReader::Json::parse_event_t, SchemaReader::Json&) {
    too_deep = too_deep || depth > kMaxDocumentDepth;
    return !too_deep;
  };
  const SchemaReader::Json document = SchemaReader::Json::parse(schema, look, false);
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
