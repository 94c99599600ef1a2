// What each type of a JSON schema asserts (declared in json_schema_reader.h).
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "grammar/json_formats.h"
#include "grammar/json_integers.h"
#include "grammar/json_schema_reader.h"
#include "grammar/regex_grammar.h"
#include "tokenizer/unicode.h"

namespace tandem {
namespace {

using E = GrammarExpression;

// Of a property beside additionalProperties, which exclude it character by character.
constexpr size_t kMaxNameBytes = 1000;
// A repetition is a state for each time; longer texts and arrays are what no limit means in practice.
constexpr int64_t kMaxCount = 1 << 16;

}  // namespace

Result<std::optional<uint32_t>> SchemaReader::count(const Json& schema, const char* keyword,
                                                    const std::string& path) const {
  const auto value = schema.find(keyword);
  if (value == schema.end()) return std::nullopt;
  if (!value->is_number_integer() || value->get<int64_t>() < 0 || value->get<int64_t>() > kMaxCount) {
    return bad(path,
               fmt::format("{} is {}; it must be an integer in 0..{}", keyword, value->dump(), kMaxCount));
  }
  return value->get<uint32_t>();
}

Result<SchemaReader::Counts> SchemaReader::counts(const Json& schema, const char* min, const char* max,
                                                  const std::string& path) const {
  TANDEM_ASSIGN(const auto low, count(schema, min, path));
  TANDEM_ASSIGN(const auto high, count(schema, max, path));
  const Counts out{low.value_or(0), high.value_or(E::kUnbounded)};
  if (out.min > out.max) return bad(path, fmt::format("{} is above {}", min, max));
  return out;
}

Result<E> SchemaReader::number(const Json& schema, const std::string& path) {
  for (const char* bound : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    if (schema.contains(bound)) {
      return refuse(
          path,
          fmt::format("\"{}\" of a number is not supported; use an integer, or check the answer", bound));
    }
  }
  return json_.number();
}

Result<std::optional<int64_t>> SchemaReader::bound(const Json& schema, const char* keyword,
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

Result<E> SchemaReader::integer(const Json& schema, const std::string& path) {
  TANDEM_ASSIGN(auto min, bound(schema, "minimum", path));
  TANDEM_ASSIGN(auto max, bound(schema, "maximum", path));
  TANDEM_ASSIGN(const auto above, bound(schema, "exclusiveMinimum", path));
  TANDEM_ASSIGN(const auto below, bound(schema, "exclusiveMaximum", path));
  if (above) min = std::max(min.value_or(INT64_MIN), *above == INT64_MAX ? *above : *above + 1);
  if (below) max = std::min(max.value_or(INT64_MAX), *below == INT64_MIN ? *below : *below - 1);
  if (!min && !max) return json_.integer();
  if (min.value_or(INT64_MIN) > max.value_or(INT64_MAX))
    return bad(path, "no integer lies within the bounds");
  if (min.value_or(0) > kMostInteger || max.value_or(0) < -kMostInteger)
    return refuse(path,
                  "bounds that only integers of more than 18 digits keep are not supported; use a string");
  return integers_between(min, max);
}

Result<E> SchemaReader::string(const Json& schema, const std::string& path) {
  TANDEM_ASSIGN(const Counts length, counts(schema, "minLength", "maxLength", path));
  const bool has_length = length.min > 0 || length.max != E::kUnbounded;
  std::string pattern;
  RegexMatch match = RegexMatch::inside;
  if (const auto value = schema.find("pattern"); value != schema.end()) {
    if (!value->is_string())
      return bad(path, fmt::format("pattern is {}; it must be a string", value->dump()));
    if (schema.contains("format"))
      return refuse(path, "a format beside a pattern is not supported; put it into the pattern");
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
  auto expression = regex_grammar(pattern, match, E::range(0, kMaxCodepoint));
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
      if (std::ranges::find(names, name) == names.end()) {
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

}  // namespace tandem
