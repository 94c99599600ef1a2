// SchemaReader: a JSON schema as rules; private to json_schema.cc (references, combinations, types) and
// json_schema_types.cc (what each type asserts).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "grammar/grammar_expression.h"
#include "grammar/json_text.h"

namespace tandem {

class SchemaReader {
 public:
  using Json = nlohmann::ordered_json;  // properties keep their order

  explicit SchemaReader(const Json& document) : document_(document), json_(rules_) {}
  Result<GrammarRules> read();

 private:
  using E = GrammarExpression;
  std::unexpected<Error> bad(std::string_view path, std::string_view what) const;
  std::unexpected<Error> refuse(std::string_view path, std::string_view what) const;

  // `path`: of the schema in the document, for messages. `depth`: of nesting.
  Result<E> any(const Json& schema, const std::string& path, int depth);
  Status stands_alone(const Json& schema, std::string_view keyword, const std::string& path) const;
  // Of const or enum: the values that the type beside it has.
  Result<E> one_of_values(const Json& schema, std::string_view keyword, const Json& values,
                          const std::string& path) const;
  Result<E> any_of(const Json& schemas, const std::string& path, int depth);
  Result<const Json*> target_of(const Json& reference, const std::string& path) const;
  Result<E> reference(const Json& value, const std::string& path, int depth);
  // Objects of several parts, as inheritance is written: their properties together.
  Result<E> all_of(const Json& schemas, const std::string& path, int depth);
  Result<E> by_type(const Json& schema, const std::string& path, int depth);
  static std::string guess_type(const Json& schema);
  Result<E> of_type(const std::string& type, const Json& schema, const std::string& path, int depth);

  Result<std::optional<uint32_t>> count(const Json& schema, const char* keyword,
                                        const std::string& path) const;
  struct Counts {
    uint32_t min = 0, max = E::kUnbounded;
  };
  Result<Counts> counts(const Json& schema, const char* min, const char* max, const std::string& path) const;
  Result<E> number(const Json& schema, const std::string& path);
  Result<std::optional<int64_t>> bound(const Json& schema, const char* keyword,
                                       const std::string& path) const;
  Result<E> integer(const Json& schema, const std::string& path);
  Result<E> object(const Json& schema, const std::string& path, int depth);
  Result<E> array(const Json& schema, const std::string& path, int depth);
  Result<E> string(const Json& schema, const std::string& path);

  const Json& document_;
  GrammarRules rules_;
  JsonText json_;
  std::map<std::string, uint32_t> references_;
};

}  // namespace tandem
