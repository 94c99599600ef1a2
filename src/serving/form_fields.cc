#include "serving/form_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "grammar/grammar_expression.h"

namespace tandem {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// How a field writes its grammar.
enum class Notation : uint8_t { schema, text, list, flag };

struct FormField {
  const char* name;
  GrammarKind kind;
  Notation notation;
};
constexpr FormField kTopFields[] = {
    {"guided_json", GrammarKind::json_schema, Notation::schema},
    {"guided_regex", GrammarKind::regex, Notation::text},
    {"guided_choice", GrammarKind::choice, Notation::list},
    {"guided_grammar", GrammarKind::gbnf, Notation::text},
    {"json_schema", GrammarKind::json_schema, Notation::schema},
    {"grammar", GrammarKind::gbnf, Notation::text},
};
constexpr FormField kStructuredOutputs[] = {
    {"json", GrammarKind::json_schema, Notation::schema},      {"regex", GrammarKind::regex, Notation::text},
    {"choice", GrammarKind::choice, Notation::list},           {"grammar", GrammarKind::gbnf, Notation::text},
    {"json_object", GrammarKind::json_object, Notation::flag},
};

class FormReader {
 public:
  FormReader(FieldReader& fields, std::string_view body, GrammarSpec& out)
      : fields_(fields), body_(body), out_(out) {}

  void read() {
    read_response_format();
    for (const FormField& field : kTopFields) read_field(fields_, field, {field.name}, field.name);
    if (const json* outputs = fields_.take("structured_outputs")) read_structured_outputs(*outputs);
    fields_.accept({"guided_decoding_backend"});
    check();
  }

 private:
  using Path = std::initializer_list<const char*>;

  void set(GrammarKind kind, std::string text, std::string name) {
    if (!out_.empty() && fields_.ok()) {
      return fields_.fail(
          name, fmt::format("{} and {} both give the answer a form: give one of them", name_, name));
    }
    out_.kind = kind;
    out_.text = std::move(text);
    name_ = std::move(name);
  }

  // The value at `path` as the body has it, keys in their order.
  std::string as_written(Path path) const {
    const ordered_json whole = ordered_json::parse(body_);
    const ordered_json* value = &whole;
    for (const char* step : path) value = &value->at(step);
    return value->dump();
  }

  void read_field(FieldReader& reader, const FormField& field, Path path, const std::string& name) {
    const json* value = reader.take(field.name);
    if (value == nullptr) return;
    const auto bad = [&](std::string_view what) {
      reader.fail(field.name, fmt::format("{} is {}; it must be {}", name, shown(*value), what));
    };
    switch (field.notation) {
      case Notation::schema:
        // vLLM's clients send a schema's text as well.
        if (value->is_string()) return set(field.kind, value->get<std::string>(), name);
        if (!value->is_object() && !value->is_boolean()) return bad("a JSON schema");
        return set(field.kind, as_written(path), name);
      case Notation::text:
        if (!value->is_string() || value->get_ref<const std::string&>().empty())
          return bad("a string that is not empty");
        return set(field.kind, value->get<std::string>(), name);
      case Notation::list:
        if (!value->is_array()) return bad("a list of strings");
        return set(field.kind, value->dump(), name);
      case Notation::flag:
        if (!value->is_boolean()) return bad("true or false");
        if (value->get<bool>()) set(field.kind, "", name);
        return;
    }
  }

  void read_structured_outputs(const json& value) {
    if (!value.is_object()) {
      return fields_.fail("structured_outputs",
                          fmt::format("structured_outputs is {}; it must be an object", shown(value)));
    }
    FieldReader inner(value, "structured_outputs.");
    for (const FormField& field : kStructuredOutputs) {
      read_field(inner, field, {"structured_outputs", field.name},
                 fmt::format("structured_outputs.{}", field.name));
    }
    inner.refuse("structural_tag", "use tools for calls inside a text");
    inner.refuse("whitespace_pattern", "whitespace is at most a space or an indented line here");
    inner.accept({"disable_fallback", "disable_any_whitespace", "disable_additional_properties"});
    pass_on(inner);
  }

  void read_response_format() {
    const json* value = fields_.take("response_format");
    if (value == nullptr) return;
    if (!value->is_object()) {
      return fields_.fail("response_format",
                          fmt::format("response_format is {}; it must be an object", shown(*value)));
    }
    FieldReader inner(*value, "response_format.");
    const std::string type = inner.text("type").value_or("");
    if (type == "json_object") {
      set(GrammarKind::json_object, "", "response_format");
    } else if (type == "json_schema") {
      read_json_schema(inner);
    } else if (type != "text") {
      inner.fail("type",
                 fmt::format("response_format.type is {}; it must be text, json_object or json_schema",
                             type.empty() ? "missing" : shown(json(type))));
    }
    pass_on(inner);
  }

  void read_json_schema(FieldReader& outer) {
    const json* value = outer.take("json_schema");
    if (value == nullptr || !value->is_object()) {
      return outer.fail("json_schema",
                        "response_format.json_schema is missing; it must be an object with name and schema");
    }
    FieldReader inner(*value, "response_format.json_schema.");
    // The grammar is kept whether it is called strict or not.
    inner.accept({"name", "description", "strict"});
    const json* schema = inner.take("schema");
    if (schema == nullptr) {
      inner.fail("schema", "response_format.json_schema.schema is missing; give a JSON schema");
    } else if (!schema->is_object() && !schema->is_boolean()) {
      inner.fail("schema", fmt::format("response_format.json_schema.schema is {}; it must be a JSON schema",
                                       shown(*schema)));
    } else {
      set(GrammarKind::json_schema, as_written({"response_format", "json_schema", "schema"}),
          "response_format");
    }
    if (!inner.finish()) {
      const ApiError error = inner.take_error();
      outer.fail("json_schema", error.message);
    }
  }

  void pass_on(FieldReader& inner) {
    if (inner.finish()) return;
    const ApiError error = inner.take_error();
    fields_.fail(error.param, error.message);
  }

  void check() {
    if (out_.empty() || !fields_.ok()) return;
    if (const auto rules = grammar_rules(out_); !rules)
      fields_.fail(name_, fmt::format("{}: {}", name_, rules.error().message));
  }

  FieldReader& fields_;
  std::string_view body_;
  GrammarSpec& out_;
  std::string name_;  // of the field that gave the form
};

}  // namespace

void read_answer_form(FieldReader& fields, std::string_view body, GrammarSpec& out) {
  FormReader(fields, body, out).read();
}

}  // namespace tandem
